"""From stored runs to what people read: metrics, costs, statistics, comparisons; tables, figures
and the report are packages within.
"""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.reporting import comparison
    from pfl_bench.reporting.comparison import Comparison, bars, scored, sparkline
    from pfl_bench.reporting.metrics import metric
    from pfl_bench.reporting.published import published_accuracy
    from pfl_bench.reporting.read_store import ReadStore
    from pfl_bench.reporting.rivals import Duel, duels, stored_methods
    from pfl_bench.reporting.rows import round_row, run_row
    from pfl_bench.reporting.verdict import advice, reference

__getattr__, __dir__, __all__ = face(__name__, __file__)
