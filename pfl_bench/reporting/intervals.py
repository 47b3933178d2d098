"""Bootstrap confidence intervals of a cell's mean: over seeds, or over clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pfl_bench.reporting.verdict import best_record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pfl_bench.reporting.tables import CellPlan

LEVEL = 0.95
RESAMPLES = 9_999
_BATCH = 1000
_FEW = 100
"""Draws of so many are kept in memory, where they take 8 MB at most."""
OVER = {
    "seeds": (
        f"[low, high]: {100 * LEVEL:g} % percentile bootstrap over seeds of the mean; with five "
        "seeds or fewer it is too narrow, and it says nothing of other partitions"
    ),
    "clients": (
        f"[low, high]: {100 * LEVEL:g} % percentile bootstrap over clients, all seeds of a client "
        "together; what another draw of clients would change, not another training"
    ),
}
"""What an interval can be taken over, and what that does and does not allow for."""

Interval = tuple[float, float]


def over_seeds(values: Sequence[float]) -> Interval | None:
    """Of the mean; None for fewer than two values."""
    import numpy as np

    if len(values) < 2:
        return None
    drawn = np.asarray(values, dtype=float)
    return _bootstrap(len(drawn), lambda chosen: drawn[chosen].mean(axis=-1))


def over_clients(counts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Interval | None:
    """Of the accuracy in percent, the mean over seeds: for each seed, how many answers are correct
    and how many there are, by client. None where the seeds do not have the same clients, or there
    are fewer than two with test samples."""
    import numpy as np

    if len({len(total) for _, total in counts}) != 1:
        return None
    correct, total = (np.asarray(rows, dtype=float) for rows in zip(*counts, strict=True))
    tested = total.min(axis=0) > 0
    if tested.sum() < 2:
        return None
    correct, total = correct[:, tested], total[:, tested]

    def accuracy(chosen: Any) -> Any:
        each = correct[:, chosen].sum(axis=-1) / total[:, chosen].sum(axis=-1)
        return 100 * each.mean(axis=0)

    return _bootstrap(int(tested.sum()), accuracy)


def _bootstrap(count: int, statistic: Any) -> Interval:
    """`statistic` is told which of `count` were drawn, as positions in the last axis."""
    import numpy as np

    draws = _few_draws(count) if count <= _FEW else _draws(count)
    values = np.concatenate([statistic(chosen) for chosen in draws])
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _draws(count: int) -> Iterator[NDArray[np.int64]]:
    """Positions drawn with replacement, a resample a row, so many rows at a time."""
    from pfl_bench.base import seeds

    generator = seeds.numpy_generator(0, "bootstrap")
    for start in range(0, RESAMPLES, _BATCH):
        rows = min(_BATCH, RESAMPLES - start)
        yield generator.integers(0, count, size=(rows, count))


@lru_cache(maxsize=2)
def _few_draws(count: int) -> tuple[NDArray[np.int64], ...]:
    """The same, kept: every cell of a table has about as many seeds."""
    return tuple(_draws(count))


def of_cell(cell: CellPlan, over: str) -> Interval | None:
    """The interval of the cell's mean; over clients, of the best rounds' accuracy alone."""
    if cell.mean is None:
        return None
    if over == "seeds":
        return over_seeds(list(cell.by_seed.values()))
    if cell.cell.measure != "accuracy":
        return None
    finished = (run for run in cell.runs if run is not None and run.status == "finished")
    best = [record for run in finished if (record := best_record(run)) is not None]
    return over_clients([(r.correct or [], r.total or []) for r in best]) if best else None
