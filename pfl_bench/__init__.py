"""pfl-bench: a benchmark suite for personalized federated learning.

`import pfl_bench as pfl` gives `pfl.run`, `pfl.table`, `pfl.Store` and `pfl.register`; see
docs/python.md. Importing the package is cheap: torch is imported by the modules that compute.
"""

from typing import TYPE_CHECKING

from pfl_bench.base import VERSION as __version__
from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.api import Result, Store, Table, check, run, table
    from pfl_bench.base import UserError
    from pfl_bench.config import knob
    from pfl_bench.engine import Algorithm
    from pfl_bench.plugins import register

__getattr__, __dir__, __all__ = face(__name__, __file__)
