"""The same search for every method: which configurations are tried, which is taken, and the file
that says so.
"""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.tuning.trials import Choice, Effort, planned_runs, tune
    from pfl_bench.tuning.tuned import read_tuned, write_tuned

__getattr__, __dir__, __all__ = face(__name__, __file__)
