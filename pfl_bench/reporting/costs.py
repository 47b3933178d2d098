"""What training costs: when a run has converged, how long a round takes, what a client sends.

The first round is left out of time and traffic: in it caches are cold, and some methods send
nothing yet. Time is that of whole rounds, evaluation included, the same for every algorithm; what
is sent is counted by the simulator, from the messages themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pfl_bench.store import RoundRecord, curve

CRITERION = (
    "converged: the first iteration in whose neighbourhood (a tenth of the run) the mean accuracy "
    f"is within {100 * curve.RISE:g} percentage points of the highest such mean; total time is "
    "that many iterations at the mean time of one, evaluation included; times and traffic leave "
    f"out the first iteration; {curve.RISING}"
)
FLATTENED = (
    "a run that has learnt and flattened; this one is still rising by the rule below, or never "
    "left the level of its first iteration"
)
TWO_ROUNDS = "at least two iterations, since the first is left out"


def scores(records: Sequence[RoundRecord]) -> list[float]:
    """The accuracies of the rounds that were scored."""
    return [record.accuracy for record in records if record.accuracy is not None]


def iterations(records: Sequence[RoundRecord]) -> int | None:
    """The round in which a run converged; None of one that has not, or never began to learn."""
    rounds = [record.round for record in records if record.accuracy is not None]
    reached = curve.converged(scores(records))
    return None if reached is None else rounds[reached]


def minutes_per_iteration(records: Sequence[RoundRecord]) -> float | None:
    later = records[1:]
    seconds = math.fsum(record.total_seconds for record in later)
    return seconds / 60 / len(later) if later else None


def total_minutes(records: Sequence[RoundRecord]) -> float | None:
    """Until convergence."""
    rounds, each = iterations(records), minutes_per_iteration(records)
    return None if rounds is None or each is None else rounds * each


def per_client(records: Sequence[RoundRecord], name: str) -> float | None:
    """What a client that joins sends or receives in an iteration: bytes or parameters, up or down,
    by the name of the record's field."""
    later = records[1:]
    joined = sum(len(record.joined) for record in later)
    return sum(getattr(record, name) for record in later) / joined if joined else None
