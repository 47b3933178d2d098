"""What training costs: when a run has converged, and the time until then.

Converged is the first round after which the best accuracy improves by no more than THRESHOLD until
the end of the run. Time is that of whole rounds, evaluation included, the same for every algorithm.
What is sent is counted by the simulator, from the messages themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pfl_bench.store import RoundRecord

THRESHOLD = 0.001
"""A tenth of a percentage point of accuracy."""

CRITERION = (
    "converged: the first iteration after which the best accuracy improves by no more than "
    f"{100 * THRESHOLD:g} percentage points until the end of the run; times are of whole "
    "iterations, evaluation included"
)


@dataclass(frozen=True)
class Convergence:
    """The round in which a run converged and the time until its end."""

    round: int
    minutes: float

    @property
    def minutes_per_round(self) -> float:
        return self.minutes / self.round


def convergence(records: Sequence[RoundRecord], threshold: float = THRESHOLD) -> Convergence | None:
    """When a run converged; None where no round was scored."""
    scored = [(r.round, r.accuracy) for r in records if r.accuracy is not None]
    if not scored:
        return None
    enough = max(accuracy for _, accuracy in scored) - threshold
    # Accuracies are quotients of counts: a difference of exactly the threshold must not depend on
    # how it was rounded.
    reached = next(
        round
        for round, accuracy in scored
        if accuracy >= enough or math.isclose(accuracy, enough, rel_tol=0, abs_tol=1e-12)
    )
    seconds = math.fsum(r.total_seconds for r in records if r.round <= reached)
    return Convergence(reached, seconds / 60)
