"""Running: one run, many, here and on a cluster."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.execution import checkup
    from pfl_bench.execution.checkup import Check, Pacing
    from pfl_bench.execution.configuration import (
        Fingerprint,
        configure,
        data_key,
        load_data,
        pfllib_path,
    )
    from pfl_bench.execution.estimates import (
        Pace,
        estimate,
        longest_first,
        makespan,
        work_per_round,
    )
    from pfl_bench.execution.many import Outcome, run_all
    from pfl_bench.execution.observer import (
        Began,
        Computed,
        Ended,
        Event,
        Failed,
        Note,
        Observer,
        Round,
    )
    from pfl_bench.execution.options import (
        AS_MANY_AS_PAY,
        PLACES,
        Execution,
        choose_device,
        default_workers,
    )
    from pfl_bench.execution.request import FollowUp, Request
    from pfl_bench.execution.resources import jobs_for
    from pfl_bench.execution.runner import prepare
    from pfl_bench.execution.trained_model import (
        KeptModel,
        kept_simulator,
        trained_simulator,
    )

__getattr__, __dir__, __all__ = face(__name__, __file__)
