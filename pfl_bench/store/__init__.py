"""What a run leaves behind: its folder, its records and checkpoints, and the store of all runs."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.store import curve, stored_run
    from pfl_bench.store.archive import is_archive, merge, pack
    from pfl_bench.store.folder import Checkpoint, RunBusy
    from pfl_bench.store.index import cached_at, load_cached, save_cached
    from pfl_bench.store.metric import Metric
    from pfl_bench.store.provenance import (
        arithmetic,
        current_provenance,
        machine,
        peak_memory,
        utc_now,
    )
    from pfl_bench.store.records import (
        NEWCOMERS,
        VALIDATION,
        DamagedError,
        Ending,
        RoundRecord,
        best_round,
        flat,
        from_json,
        same_result,
        summarise,
        to_json,
        worst_decile,
    )
    from pfl_bench.store.store import Store
    from pfl_bench.store.stored_run import StoredRun, read_run, remarks
    from pfl_bench.store.summary import Score, Summary
    from pfl_bench.store.writer import Configuration, RunWriter

__getattr__, __dir__, __all__ = face(__name__, __file__)
