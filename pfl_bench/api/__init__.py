"""pfl-bench from Python: runs, tables, the store. `import pfl_bench` shows the names that are meant
for users; the command line is made of all.
"""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.api.asking import COMPARING, Asked, gather, profile_for, seeds_named
    from pfl_bench.api.checking import check
    from pfl_bench.api.client_model import ClientModel
    from pfl_bench.api.progress import Course, Lines, duration, terms, title
    from pfl_bench.api.results import SHORT_KEY, Result, Store, named_run
    from pfl_bench.api.runs import run
    from pfl_bench.api.tables import Table, check_validated, table, table_profile

__getattr__, __dir__, __all__ = face(__name__, __file__)
