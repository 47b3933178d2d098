"""The methods of a whole table beside one another: ranks, tests of one against every other, and how
often each is near the best.

What competes is a line (`TableSpec.lines`): the cells of a column, or of a row where the columns
compete. Nothing here compares with the paper; that is in `statistics`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl_bench.reporting.metrics import metric

if TYPE_CHECKING:
    from pfl_bench.reporting.tables import TablePlan

FEWEST_PAIRS = 6
"""With fewer the signed-rank test cannot fall below 0.05, whatever the differences."""
LEVEL = 0.05

MATCHES = (
    "Wilcoxon's signed-rank test of the differences between equal seeds in all lines (two-sided, "
    "equal values left out), Holm's correction over the rivals. It does not allow for dependence: "
    "lines share datasets and seeds share a partition, so that there is less evidence than pairs "
    "and p is too small rather than too large; a few seeds say nothing of other partitions."
)
RANKS = (
    "Mean rank over the lines, each by its mean over seeds; methods joined by a bar are no farther "
    f"apart than the critical difference of Nemenyi's test (level {LEVEL:g}), which takes the "
    "lines for independent, though some share a dataset, and does not see how much seeds differ."
)
PROFILES = (
    "Share of all lines and seeds in which a method is within so many points of the best of its "
    "line and seed (after Dolan and Moré). It depends on which methods take part, and lines that "
    "share a dataset count each."
)


@dataclass(frozen=True)
class Match:
    """The table's method against one other, over lines and seeds that both have."""

    rival: str
    pairs: int
    better: int
    worse: int
    """Pairs in which the method is better and worse than the rival."""
    median: float
    """Of the method's values less the rival's."""
    p: float
    adjusted: float
    """p after Holm's correction."""


@dataclass(frozen=True)
class Ranking:
    """Mean ranks, 1 for the best."""

    means: Mapping[str, float]
    """By method, the best first."""
    lines: int
    critical: float
    """The difference between two mean ranks that the lines can tell apart."""
    p: float | None
    """Friedman's test that all methods rank alike; None for fewer than three."""
    left_out: tuple[str, ...]
    """Methods that do not have a value in every line."""

    def groups(self) -> list[tuple[str, ...]]:
        """The largest sets of neighbours that are not told apart, two methods at least."""
        names = list(self.means)
        found: list[tuple[str, ...]] = []
        for k, first in enumerate(names):
            near = [n for n in names[k:] if self.means[n] - self.means[first] <= self.critical]
            if len(near) > 1 and not (found and near[-1] in found[-1]):
                found.append(tuple(near))
        return found


# --- one against every other ------------------------------------------------------------------


def matches(plan: TablePlan) -> list[Match]:
    """The table's method against every other, the most telling first; none where it has no method
    or too few pairs."""
    spec, method = plan.spec, plan.spec.method
    if method is None:
        return []
    differences: dict[str, list[float]] = {}
    better: dict[str, list[bool]] = {}
    for cells in spec.lines().values():
        lower = metric(cells[0].measure).lower_is_better
        plans = {spec.competitor(cell): plan.cells[cell.row, cell.column] for cell in cells}
        if method not in plans or plans[method].mean is None:
            continue
        ours = plans[method].by_seed
        for name, cell in plans.items():
            theirs = cell.by_seed if name != method and cell.mean is not None else {}
            for seed in sorted(ours.keys() & theirs.keys()):
                difference = ours[seed] - theirs[seed]
                differences.setdefault(name, []).append(difference)
                if difference:
                    better.setdefault(name, []).append((difference < 0) == lower)
    tested = {name: found for name, found in differences.items() if len(found) >= FEWEST_PAIRS}
    raw = {name: signed_rank_test(found) for name, found in tested.items()}
    adjusted = dict(zip(raw, holm(list(raw.values())), strict=True))
    found = [
        Match(
            name,
            len(tested[name]),
            sum(better.get(name, [])),
            len(better.get(name, [])) - sum(better.get(name, [])),
            statistics.median(tested[name]),
            p,
            adjusted[name],
        )
        for name, p in raw.items()
    ]
    return sorted(found, key=lambda one: one.p)


def signed_rank_test(differences: Sequence[float]) -> float:
    """Wilcoxon's two-sided p; zeros say nothing and are left out."""
    from scipy import stats

    # Equal differences that differ in their last bits are ties.
    known = [rounded for value in differences if (rounded := round(value, 9))]
    return float(stats.wilcoxon(known).pvalue) if known else 1.0


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for their number by Holm's step-down procedure, in their order."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, k in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[k]))
        adjusted[k] = highest
    return adjusted


# --- all at once ------------------------------------------------------------------------------


def ranking(plan: TablePlan) -> Ranking | None:
    """None where fewer than two methods have a value in every line, or there is one line only."""
    scores = _scores(plan)
    names = _competitors(plan)
    whole = [name for name in names if all(name in line for line in scores)]
    if len(whole) < 2 or len(scores) < 2:
        return None
    from scipy import stats

    rows = [stats.rankdata([-line[name] for name in whole]) for line in scores]
    means = {name: statistics.fmean(row[k] for row in rows) for k, name in enumerate(whole)}
    columns = [[line[name] for line in scores] for name in whole]
    friedman = float(stats.friedmanchisquare(*columns).pvalue) if len(whole) > 2 else None
    return Ranking(
        means=dict(sorted(means.items(), key=lambda pair: pair[1])),
        lines=len(scores),
        critical=critical_difference(len(whole), len(scores)),
        p=None if friedman is None or math.isnan(friedman) else friedman,
        left_out=tuple(name for name in names if name not in whole),
    )


def critical_difference(methods: int, lines: int, level: float = LEVEL) -> float:
    """Nemenyi's: the studentized range at infinitely many degrees of freedom over √2, times the
    standard error of a difference between mean ranks."""
    from scipy import stats

    range_ = float(stats.studentized_range.ppf(1 - level, methods, math.inf))
    return range_ / math.sqrt(2) * math.sqrt(methods * (methods + 1) / (6 * lines))


def gaps(plan: TablePlan) -> dict[str, list[float]]:
    """By method, how far it is behind the best of its line and seed, for every line and seed in
    which all methods have a value; ascending."""
    spec = plan.spec
    found: dict[str, list[float]] = {name: [] for name in _competitors(plan)}
    for cells in spec.lines().values():
        sign = -1 if metric(cells[0].measure).lower_is_better else 1
        plans = {spec.competitor(cell): plan.cells[cell.row, cell.column] for cell in cells}
        runs = {name: cell.by_seed for name, cell in plans.items() if cell.mean is not None}
        if not runs or len(runs) < len(found):
            continue
        for seed in set.intersection(*(set(values) for values in runs.values())):
            best = max(sign * values[seed] for values in runs.values())
            for name, values in runs.items():
                found[name].append(best - sign * values[seed])
    return {name: sorted(values) for name, values in found.items() if values}


def _competitors(plan: TablePlan) -> list[str]:
    """Those that have a value somewhere."""
    spec = plan.spec
    cells = (plan.cells[place] for place in spec.cells)
    return list(dict.fromkeys(spec.competitor(c.cell) for c in cells if c.mean is not None))


def _scores(plan: TablePlan) -> list[dict[str, float]]:
    """By line, each method's mean over seeds, more being better; lines without any left out."""
    spec, found = plan.spec, []
    for cells in spec.lines().values():
        sign = -1 if metric(cells[0].measure).lower_is_better else 1
        means = {spec.competitor(c): plan.cells[c.row, c.column].mean for c in cells}
        found.append({name: sign * mean for name, mean in means.items() if mean is not None})
    return [line for line in found if line]
