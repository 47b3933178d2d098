"""What a table says: entries and footnotes, with the facts of its `caption`.

Laid out once, and shown by `terminal`, `markdown`, `latex`, `files` and `plot`; every word and
value that they show is decided here, so that all formats say the same.
"""

from __future__ import annotations

import statistics
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl_bench.base import UserError
from pfl_bench.plugins import load_algorithm
from pfl_bench.reporting import intervals
from pfl_bench.reporting.metrics import metric
from pfl_bench.reporting.ranking import Match, matches
from pfl_bench.reporting.statistics import Agreement, agreement, is_standin
from pfl_bench.reporting.tables.caption import facts
from pfl_bench.reporting.verdict import MARK, rising

if TYPE_CHECKING:
    from pfl_bench.reporting.intervals import Interval
    from pfl_bench.reporting.tables.plan import CellPlan, Place, TablePlan
    from pfl_bench.reporting.tables.spec import Published, TableSpec
    from pfl_bench.store import Metric


@dataclass(frozen=True)
class Ranks:
    """A cell's place among those of its line that both we and the paper have values for."""

    ours: int
    paper: int


@dataclass(frozen=True)
class Entry:
    """One cell: our value, and the paper's as far as it may stand beside it."""

    measure: Metric
    status: str
    mean: float | None
    std: float | None
    seeds: int
    wanted: int
    published: Published | None
    standin: bool
    ranks: Ranks | None
    is_best: bool
    mark: str | None
    """The footnote that says why the cell is skipped, diverged or without a value, or what its
    method computes beyond the others."""
    rising: int = 0
    """How many of its runs still rise."""
    interval: Interval | None = None
    """Of the mean, where the table was asked for intervals."""

    @property
    def difference(self) -> float | None:
        """Ours less the paper's; there is none on stand-in data."""
        if self.standin or self.mean is None or self.published is None:
            return None
        return None if self.published.mean is None else self.mean - self.published.mean

    @property
    def text(self) -> str:
        """Our side: mean ± std, or the word that stands for it; how many seeds there are only where
        some are missing."""
        if self.status in ("skipped", "diverged", "not run"):
            return self.status
        if self.mean is None:
            return "–"
        seeds = "" if self.seeds == self.wanted else f" ({self.seeds} of {self.wanted})"
        mark = f" {MARK}" if self.rising else ""
        interval = f" {self.span}" if self.interval else ""
        return f"{self.measure.show(self.mean)}{self._spread}{seeds}{interval}{mark}"

    @property
    def _spread(self) -> str:
        is_plain = self.std is None or (self.measure.is_counted and not self.std)
        return "" if is_plain else f" ± {self.measure.show(self.std or 0.0)}"

    @property
    def span(self) -> str:
        """The interval as it is written, where there is one."""
        return f"[{', '.join(map(self.measure.show, self.interval))}]" if self.interval else ""

    @property
    def shown(self) -> str:
        """Our mean alone, for a picture."""
        if self.mean is None:
            return self.text
        return self.measure.show(self.mean) + (f" {MARK}" if self.rising else "")

    @property
    def shown_with_std(self) -> str:
        """The same with its standard deviation."""
        if self.mean is None:
            return self.text
        mark = f" {MARK}" if self.rising else ""
        return f"{self.measure.show(self.mean)}{self._spread}{mark}"

    @property
    def beside(self) -> str:
        """The paper's side: its value and the difference, or on stand-in data the two ranks."""
        if self.published is None:
            return ""
        if self.published.mean is None:
            return f"paper: {self.published.status}"
        if self.standin:
            return f"rank {self.ranks.ours}, paper {self.ranks.paper}" if self.ranks else ""
        text = f"paper {self.measure.show(self.published.mean)}"
        if self.difference is None:
            return text
        return f"{text}, {signed(self.difference, self.measure.digits)}"


@dataclass(frozen=True)
class Content:
    """A table laid out."""

    plan: TablePlan
    entries: Mapping[Place, Entry]
    footnotes: Mapping[str, str]
    facts: Mapping[str, str]
    """What the caption adds to the title: profile, data, seeds, scoring, versions, command, …"""
    agreement: list[Agreement]
    matches: list[Match]


def lay_out(plan: TablePlan) -> Content:
    marks = _Marks()
    ranks, best = _competition(plan)
    entries = {
        place: _entry(cell, ranks.get(place), place in best, marks, plan.spec)
        for place, cell in plan.cells.items()
    }
    compared, fought = (agreement(plan), matches(plan)) if plan.profile.ranks else ([], [])
    return Content(plan, entries, marks.texts, facts(plan), compared, fought)


def signed(value: float, digits: int = 2) -> str:
    """A difference with its sign, the minus a true one; what rounds to zero has no sign."""
    text = f"{abs(value):.{digits}f}"
    if not float(text):
        return f"±{text}"
    return f"{'+' if value > 0 else '−'}{text}"


class _Marks:
    """Footnotes by their marks a, b, …; a text said twice keeps its mark."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def mark(self, text: str) -> str:
        for mark, known in self.texts.items():
            if known == text:
                return mark
        rounds, letter = divmod(len(self.texts), 26)
        mark = string.ascii_lowercase[letter] * (rounds + 1)
        self.texts[mark] = text
        return mark


def _entry(
    cell: CellPlan, ranks: Ranks | None, is_best: bool, marks: _Marks, spec: TableSpec
) -> Entry:
    values = list(cell.by_seed.values())
    measure = metric(cell.cell.measure)
    told = ""
    if cell.status in ("skipped", "diverged") and cell.reason:
        told = f"{cell.status}: {cell.reason}"
    elif cell.seeds and not values and measure.needs:
        told = f"no value: it takes {measure.needs}"
    elif values and spec.metric == "accuracy":
        told = _more_work(cell)
    return Entry(
        measure=measure,
        status=cell.status,
        mean=cell.mean,
        std=_spread(cell, values),
        seeds=len(values),
        wanted=len(cell.configs),
        published=cell.cell.published,
        standin=is_standin(cell),
        ranks=ranks,
        is_best=is_best,
        mark=marks.mark(told) if told else None,
        rising=rising(cell.runs) if cell.mean is not None and spec.metric == "accuracy" else 0,
        interval=intervals.of_cell(cell, spec.interval) if spec.interval else None,
    )


def _more_work(cell: CellPlan) -> str:
    """What the cell's method computes beyond the others, which its accuracy owes something to."""
    config = cell.configs[0]
    try:
        kind = load_algorithm(config.algo)
        return f"{kind.title} {kind.more_work.format(**config.hyper)}" if kind.more_work else ""
    except (UserError, KeyError):  # a method that is not at hand, or was another one then
        return ""


def _spread(cell: CellPlan, values: list[float]) -> float | None:
    """The sample standard deviation over seeds, or over all that the measure is a mean of."""
    each = metric(cell.cell.measure).each
    if each is not None:
        values = [value for run in cell.runs if run is not None for value in each(run)]
    return statistics.stdev(values) if len(values) > 1 else None


def _competition(plan: TablePlan) -> tuple[dict[Place, Ranks], set[Place]]:
    """The ranks within each line, and the best cells of each, where they differ."""
    ranks: dict[Place, Ranks] = {}
    best: set[Place] = set()
    for cells in plan.spec.lines().values():
        sign = -1 if metric(cells[0].measure).lower_is_better else 1
        plans = {(cell.row, cell.column): plan.cells[cell.row, cell.column] for cell in cells}
        means = {place: cell.mean for place, cell in plans.items()}
        ours = {place: sign * mean for place, mean in means.items() if mean is not None}
        if len(set(ours.values())) > 1:
            best |= {place for place, mean in ours.items() if mean == max(ours.values())}
        paper = {
            place: sign * cell.cell.published.mean
            for place, cell in plans.items()
            if cell.cell.published and cell.cell.published.mean is not None and place in ours
        }
        for place in paper if plan.profile.ranks else ():
            ranks[place] = Ranks(
                _place(ours[place], (ours[p] for p in paper)),
                _place(paper[place], paper.values()),
            )
    return ranks, best


def _place(value: float, among: Iterable[float]) -> int:
    return 1 + sum(other > value for other in among)
