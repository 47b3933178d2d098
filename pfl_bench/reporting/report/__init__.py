"""Everything stored as one page for the browser."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.reporting.report.page import write_report

__getattr__, __dir__, __all__ = face(__name__, __file__)
