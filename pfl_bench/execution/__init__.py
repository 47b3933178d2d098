"""Running: one run, many, here and on a cluster."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.execution.configuration import Fingerprint, configure, load_data
    from pfl_bench.execution.estimates import longest_first, makespan
    from pfl_bench.execution.runner import (
        Options,
        Watcher,
        choose_device,
        default_workers,
        execute,
        prepare,
    )
    from pfl_bench.execution.tensorboard import check_installed, execute_logged
    from pfl_bench.execution.trained_model import trained
    from pfl_bench.execution.workers import Crew, Hire, TableWatcher, check_runnable, run_missing

__getattr__, __dir__, __all__ = face(__name__, __file__)
