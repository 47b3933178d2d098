"""How far our figures agree with the paper's: rankings, differences, winners, a paired test.

A line is what competes: the cells of one column, or of one row where the columns compete. Figures
on stand-in data are compared by rank only, since the paper's were measured on other data.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pfl_bench.reporting.metrics import metric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pfl_bench.reporting.tables import Cell, CellPlan, TablePlan
    from pfl_bench.store import Metric

EXACT_UP_TO = 16
"""So many seeds' sign flips are enumerated; of more, SAMPLED are drawn."""
SAMPLED = 99_999

_DECIMALS = 9
_SLACK = 1e-13
"""Sums of the same differences in another order may differ in the last bits: they are rounded to so
many decimals, and large ones compared to within this share."""


@dataclass(frozen=True)
class PairedTest:
    """A method against the best of the others, on the seeds that both have."""

    method: str
    rival: str
    difference: float
    """Mean of the method's figures less the rival's."""
    digits: int
    """As many as the measure is shown with."""
    seeds: int
    p: float
    smallest_p: float
    """What the test gives at best with so many seeds."""


@dataclass(frozen=True)
class Agreement:
    """One line of a table beside the paper's. None where there is too little to tell."""

    line: str
    competitors: int
    """Those that both we and the paper have a figure for."""
    kendall: float | None
    spearman: float | None
    mean_absolute_difference: float | None
    paper_winners: tuple[str, ...]
    """Those with the best figure, more than one where they are equal."""
    our_winners: tuple[str, ...]
    """Among all that we have a figure for, like the figures in bold: Local counts too."""
    test: PairedTest | None

    @property
    def same_winner(self) -> bool:
        """A tie shows no winner, neither theirs nor another."""
        return len(self.our_winners) == 1 and self.our_winners == self.paper_winners


def is_standin(cell: CellPlan) -> bool:
    return any(config.source == "standin" for config in cell.configs)


def agreement(plan: TablePlan) -> list[Agreement]:
    """Every line that the paper has figures for, or in which the table's method is tested."""
    found = (_of_line(plan, line, cells) for line, cells in plan.spec.lines().items())
    return [one for one in found if one.competitors or one.test]


def _of_line(plan: TablePlan, line: str, cells: Sequence[Cell]) -> Agreement:
    measure = metric(cells[0].measure)
    plans = {plan.spec.competitor(cell): plan.cells[cell.row, cell.column] for cell in cells}
    means = {name: cell.mean for name, cell in plans.items()}
    ours = {name: mean for name, mean in means.items() if mean is not None}
    paper = {
        name: cell.cell.published.mean
        for name, cell in plans.items()
        if cell.cell.published is not None and cell.cell.published.mean is not None
    }
    both = [name for name in paper if name in ours]
    x, y = [ours[name] for name in both], [paper[name] for name in both]
    comparable = both and not any(is_standin(plans[name]) for name in both)
    return Agreement(
        line=line,
        competitors=len(both),
        kendall=kendall(x, y),
        spearman=spearman(x, y),
        mean_absolute_difference=(
            statistics.fmean(abs(a - b) for a, b in zip(x, y, strict=True)) if comparable else None
        ),
        paper_winners=winners(dict(zip(both, y, strict=True)), measure.lower_is_better),
        our_winners=winners(ours, measure.lower_is_better) if both else (),
        test=_against_best(plan.spec.method, plans, ours, measure),
    )


def winners(figures: Mapping[str, float], lower_is_better: bool = False) -> tuple[str, ...]:
    """The names with the best figure; nobody wins alone against nobody."""
    if len(figures) < 2:
        return ()
    best = (min if lower_is_better else max)(figures.values())
    return tuple(name for name, value in figures.items() if value == best)


def kendall(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Kendall's τ-b; None for fewer than two pairs or where all values of a side are equal."""
    return _correlation("kendalltau", x, y)


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's ρ: the correlation of the ranks; None where `kendall` is."""
    return _correlation("spearmanr", x, y)


def _correlation(name: str, x: Sequence[float], y: Sequence[float]) -> float | None:
    from scipy import stats

    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return float(getattr(stats, name)(x, y).statistic)


def sign_flip_test(differences: Sequence[float]) -> float:
    """Two-sided p of paired differences: the share of all ways to flip their signs under which the
    mean is at least as far from zero as the one observed; of ways that are drawn, the observed one
    counts as one more."""
    import numpy as np

    n = len(differences)
    if n < 2:
        return 1.0  # either sign is as far from zero
    values = np.asarray(differences, dtype=float)
    is_sampled = n > EXACT_UP_TO
    means = np.round(_signs(n, is_sampled).astype(float) @ values / n, _DECIMALS)
    observed = np.round(np.mean(values), _DECIMALS)
    slack = _SLACK * abs(observed)
    below = np.count_nonzero(means <= observed + slack)
    above = np.count_nonzero(means >= observed - slack)
    return min(1.0, 2 * (min(below, above) + is_sampled) / (len(means) + is_sampled))


@lru_cache(maxsize=2)
def _signs(n: int, is_sampled: bool) -> NDArray[np.int8]:
    """All ways to flip n signs, one a row, or some that are drawn. They are the same for every pair
    of methods, and drawing them takes much longer than using them."""
    import numpy as np

    from pfl_bench.base import seeds

    if not is_sampled:
        ways = np.arange(2**n)[:, None] >> np.arange(n) & 1
        return (1 - 2 * ways).astype(np.int8)
    both = np.tile(np.array([1, -1], dtype=np.int8), (SAMPLED, n, 1))
    return seeds.numpy_generator(0, "sign flips").permuted(both, axis=-1)[..., 0].copy()


def _against_best(
    method: str | None,
    plans: Mapping[str, CellPlan],
    ours: Mapping[str, float],
    measure: Metric,
) -> PairedTest | None:
    others = {name: mean for name, mean in ours.items() if name != method}
    if method is None or method not in ours or not others:
        return None
    rival = (min if measure.lower_is_better else max)(others, key=others.__getitem__)
    a, b = plans[method].by_seed, plans[rival].by_seed
    differences = [a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())]
    if not differences:
        return None
    n = len(differences)
    return PairedTest(
        method=method,
        rival=rival,
        difference=statistics.fmean(differences),
        digits=measure.digits,
        seeds=n,
        p=sign_flip_test(differences),
        smallest_p=2.0 ** (1 - n) if n <= EXACT_UP_TO else 2 / (SAMPLED + 1),
    )
