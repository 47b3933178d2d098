"""What several commands share: lists on the command line, a table as it is asked for, how runs are
carried out, the runs behind a figure."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.cli.shared import commas, figure_runs
    from pfl_bench.cli.shared.asked_table import AskedTable
    from pfl_bench.cli.shared.figure_runs import (
        Wanted,
        algorithms,
        dealt,
        kept_model,
        methods,
        read,
        trained_model,
        without_series,
    )
    from pfl_bench.cli.shared.running import CLUSTER, execution, running_options

__getattr__, __dir__, __all__ = face(__name__, __file__)
