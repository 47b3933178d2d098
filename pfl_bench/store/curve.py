"""What the accuracies of a run's scored rounds, in their order, say of it: whether it still rises,
where it converged, whether to go on.

Plain numbers in, plain answers out, so that the runner, the tables and the report judge alike.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Sequence

RISE = 0.005
"""Half a percentage point: what counts as a rise, and how near to the top is near enough. Several
times what the mean of a tenth of a run moves by chance on a few hundred test samples."""
LAST = 0.05
"""The share of a run at its end in which a best round shows that it had not ended."""
TENTH = 10
LATE_START = 3
"""So many times the patience is had with a run that has not begun to learn: some methods stand
still for a hundred rounds, at their start or at what takes no training, and learn then."""
BEGUN = 0.03
"""Three percentage points: a run that has begun to learn is so far above what takes no training.
Half a point is too little: methods waver by one or two around it before they leave it."""

_SLACK = 1e-9
"""Means of equal accuracies may differ in the last bits."""

RISING = (
    "a run is still rising when its best round lies in the last "
    f"{100 * LAST:g} % of its scored rounds, or the mean accuracy of its last tenth exceeds that "
    f"of the tenth before by more than {100 * RISE:g} percentage points"
)


def smoothed(scores: Sequence[float], width: int) -> list[float]:
    """The mean of each score and its neighbours, `width` of them in all; fewer at the ends."""
    reach = max(0, width // 2)
    sums = [0.0, *itertools.accumulate(scores)]
    spans = ((max(0, k - reach), min(len(scores), k + reach + 1)) for k in range(len(scores)))
    return [(sums[high] - sums[low]) / (high - low) for low, high in spans]


def still_rising(scores: Sequence[float]) -> bool:
    """Whether more rounds would change the run's score; see RISING. A single round shows no end."""
    count = len(scores)
    if count < 2:
        return count == 1
    best = max(range(count), key=scores.__getitem__)
    if best >= count - math.ceil(LAST * count):
        return True
    tenth = max(1, count // TENTH)
    gained = statistics.fmean(scores[-tenth:]) - statistics.fmean(scores[-2 * tenth : -tenth])
    return gained > RISE + _SLACK


def converged(scores: Sequence[float]) -> int | None:
    """The position of the first score whose neighbourhood (a tenth of the run) is within RISE of
    the highest. None of a run that still rises, and of one that never left where it began."""
    if still_rising(scores) or not scores:
        return None
    curve = smoothed(scores, len(scores) // TENTH)
    enough = max(curve) - RISE - _SLACK
    first = next(k for k, score in enumerate(curve) if score >= enough)
    return first or None


class Patience:
    """Tells when so many scored rounds have brought nothing. It looks at the mean of the latest
    scores (a tenth as many as the patience), so that one lucky round among noisy ones does not put
    those to shame that follow; and it waits LATE_START times as long with a run that has not yet
    begun: risen above its start, and clearly above `untrained`, what takes no training, where that
    is known. Told of one score after another, each at the same cost."""

    def __init__(self, patience: int, untrained: float | None = None) -> None:
        self._patience = patience
        self._untrained = -math.inf if untrained is None else untrained
        self._latest: deque[float] = deque(maxlen=max(1, patience // TENTH))
        self._start: float | None = None
        self._top, self._since = -math.inf, 0

    def add(self, score: float) -> None:
        self._latest.append(score)
        mean = statistics.fmean(self._latest)
        if self._start is None:
            self._start = mean
        self._since = 0 if mean > self._top + _SLACK else self._since + 1
        self._top = max(self._top, mean)

    @property
    def is_out(self) -> bool:
        has_risen = self._start is not None and self._top - self._start > RISE
        has_begun = has_risen and self._top - self._untrained > BEGUN
        return self._since >= self._patience * (1 if has_begun else LATE_START)
