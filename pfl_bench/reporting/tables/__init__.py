"""A table: what it is, what it misses, what it says, its formats and its picture."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.reporting.tables import markup
    from pfl_bench.reporting.tables.caption import remarks, small_models, still_rising
    from pfl_bench.reporting.tables.compared import Block, blocks
    from pfl_bench.reporting.tables.content import Content, Entry, lay_out, signed
    from pfl_bench.reporting.tables.files import to_frame, write_all
    from pfl_bench.reporting.tables.latex import to_latex
    from pfl_bench.reporting.tables.markdown import to_markdown
    from pfl_bench.reporting.tables.plan import (
        CellPlan,
        Place,
        PlannedRun,
        TablePlan,
        check_runnable,
        fingerprints,
        foresee,
        known_to,
        plan_table,
        refreshed,
        run_missing,
    )
    from pfl_bench.reporting.tables.plot import Look
    from pfl_bench.reporting.tables.reading import load_table, table_names
    from pfl_bench.reporting.tables.spec import Cell, TableSpec
    from pfl_bench.reporting.tables.terminal import to_terminal

__getattr__, __dir__, __all__ = face(__name__, __file__)
