"""How runs and tables in the making look, on a terminal and in a pipe."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.cli.views.filling import watch_filling
    from pfl_bench.cli.views.run import (
        duration,
        outcome,
        report,
        time_profile,
        title,
        watch_runs,
    )
    from pfl_bench.cli.views.table import label, print_grid, watch_table

__getattr__, __dir__, __all__ = face(__name__, __file__)
