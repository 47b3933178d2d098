"""One module per figure. A figure is drawn from what is stored, or from a partition or a trained
model that it is given; running what is missing is the business of `pfl_bench.cli.figure`.

Sizes, colours and files are those of `pfl_bench.base.plot_style`.
"""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.reporting.figures import (
        caption,
        clients,
        convergence,
        curves,
        distribution,
        profiles,
        ranks,
        tablecurves,
    )
    from pfl_bench.reporting.figures.methods import Method, Trial, drawable
    from pfl_bench.reporting.figures.of_method import (
        CLIENT,
        MethodFigure,
        Option,
        check_client,
        method_figure,
        method_figures,
    )

__getattr__, __dir__, __all__ = face(__name__, __file__)
