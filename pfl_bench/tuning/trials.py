"""The trials of a table: every cell's configurations run, the best by validation is taken.

The runs are ordinary ones, stored under their configuration: what is there is taken, what was cut
off continues, and they go the road of all runs. What is tried is in `draws`, what is written in
`tuned`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pfl_bench.base import UserError
from pfl_bench.config import Profile, RunConfig
from pfl_bench.execution import Execution, Observer, Request, data_key, run_all
from pfl_bench.reporting import metric
from pfl_bench.reporting.tables import (
    Cell,
    CellPlan,
    Place,
    TablePlan,
    TableSpec,
    check_runnable,
    plan_table,
)
from pfl_bench.store import Store
from pfl_bench.tuning.draws import Draw, draws, searched

FIRST_SEED = 10_000
"""Seeds of tuning begin here; those of a table's runs begin with 0."""
SCORE = "validation_accuracy"


@dataclass(frozen=True)
class Effort:
    """How hard is searched, for every method alike."""

    budget: int
    """Configurations of each cell, its defaults among them."""
    seeds: int = 1
    halving: bool = False
    """Give up the worse half of the configurations after a part of the rounds, again and again."""

    def __post_init__(self) -> None:
        for name, value in (("budget", self.budget), ("tuning_seeds", self.seeds)):
            if not 1 <= value <= 1000:
                raise UserError(f"{name} cannot be {value}; allowed: a whole number from 1 to 1000")

    @property
    def rungs(self) -> list[tuple[int, int]]:
        """How many configurations go on, and for which part of the rounds (one over the second):
        (8, 4), (4, 2), (2, 1) for a budget of 8."""
        last = max(0, math.floor(math.log2(self.budget)) - 1) if self.halving else 0
        return [(math.ceil(self.budget / 2**k), 2 ** (last - k)) for k in range(last + 1)]

    @property
    def seed_list(self) -> list[int]:
        return [FIRST_SEED + k for k in range(self.seeds)]


@dataclass(frozen=True)
class Choice:
    """What was found for a cell."""

    place: Place
    draw: Draw | None
    """None where no configuration has a score."""
    score: float | None = None
    """Validation accuracy in percent, mean over the tuning seeds."""
    default_score: float | None = None
    """The same of the defaults, as far as they came."""
    reason: str | None = None
    """Why nothing was found."""
    ranges: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Trial:
    """A cell with one of its configurations, run for a part of its rounds."""

    place: Place
    draw: Draw
    plan: CellPlan

    @property
    def score(self) -> float | None:
        """None of a configuration of which a seed diverged or cannot run."""
        runs = [run for run in self.plan.runs if run is not None and run.status == "finished"]
        known = [score for run in runs if (score := metric(SCORE).read(run)) is not None]
        return statistics.fmean(known) if len(known) == len(self.plan.configs) else None


def tune(
    spec: TableSpec,
    profile: Profile,
    effort: Effort,
    store: Store,
    options: Execution,
    observer: Observer | None = None,
) -> tuple[list[Choice], dict[str, str]]:
    """The best configuration of every cell by validation accuracy, and why runs failed, by the
    `request` of each; where one failed nothing is chosen."""
    _check_validation(spec, profile, store, options)
    alive = {place: draws(cell, effort.budget) for place, cell in spec.cells.items()}
    defaults: dict[Place, float | None] = {}
    trials: list[Trial] = []
    for count, part in effort.rungs:
        alive = {place: _best(place, some, trials)[:count] for place, some in alive.items()}
        plans = plan_trials(spec, profile, effort.seeds, alive, part, store, options)
        keeping = replace(options, keep_state=options.keep_state or part > 1)
        requests = _missing(plans)
        outcome = run_all(requests, store, keeping, observer)
        if outcome.failures:
            return [], outcome.failures
        for request in requests:
            run = outcome.runs[request.config.request]
            plans = {k: plan.with_run(request.config, run) for k, plan in plans.items()}
        trials = _trials(plans, alive)
        defaults |= {t.place: t.score for t in trials if t.draw.number == 0}
    return [_choice(cell, trials, defaults) for cell in spec.cells.values()], {}


def planned_runs(
    spec: TableSpec, profile: Profile, effort: Effort, store: Store, options: Execution
) -> tuple[int, int]:
    """How many runs tuning takes at most, the rungs of halving counted one by one, and how many of
    the first rung are missing."""
    _check_validation(spec, profile, store, options)
    alive = {place: draws(cell, effort.budget) for place, cell in spec.cells.items()}
    part = effort.rungs[0][1]
    plans = plan_trials(spec, profile, effort.seeds, alive, part, store, options)
    each = sum(count for count, _ in effort.rungs)
    return each * effort.seeds * len(spec.cells), len(_missing(plans))


def plan_trials(
    spec: TableSpec,
    profile: Profile,
    seeds: int,
    alive: Mapping[Place, Sequence[Draw]],
    part: int,
    store: Store,
    options: Execution,
) -> dict[int, TablePlan]:
    """By the number of a draw, the table in which every cell runs it; for one `part`-th of its
    rounds."""
    plans = {}
    for number in sorted({draw.number for some in alive.values() for draw in some}):
        chosen = {p: d for p, some in alive.items() for d in some if d.number == number}
        cells = {place: _with(spec.cells[place], draw) for place, draw in chosen.items()}
        plan = _plan(replace(spec, cells=cells), profile, seeds, store, options)
        if part > 1:
            shorter = {
                place: replace(
                    cell, chosen={**cell.chosen, "rounds": _rounds(plan.cells[place], part)}
                )
                for place, cell in cells.items()
            }
            plan = _plan(replace(spec, cells=shorter), profile, seeds, store, options)
        plans[number] = plan
    return plans


def _plan(
    spec: TableSpec, profile: Profile, seeds: int, store: Store, options: Execution
) -> TablePlan:
    plan = plan_table(spec, profile, seeds, store, options.data_dir)
    check_runnable(plan)
    return plan


def _with(cell: Cell, draw: Draw) -> Cell:
    return replace(
        cell,
        chosen={**cell.chosen, **draw.run, "seed": FIRST_SEED},
        hyper={**cell.hyper, **draw.hyper},
    )


def _rounds(cell: CellPlan, part: int) -> int:
    """A part of the rounds, rounded up to one that is scored: so a longer run continues it."""
    config: RunConfig = cell.configs[0]
    scored = math.ceil(config.rounds / part / config.eval_every)
    return min(config.rounds, scored * config.eval_every)


def _missing(plans: Mapping[int, TablePlan]) -> list[Request]:
    """What has yet to run, each run once, those on the same data one after another."""
    found = {run.config.request: run.request for plan in plans.values() for run in plan.missing()}
    return sorted(found.values(), key=lambda request: data_key(request.config))


def _trials(plans: Mapping[int, TablePlan], alive: Mapping[Place, Sequence[Draw]]) -> list[Trial]:
    return [
        Trial(place, draw, plans[draw.number].cells[place])
        for place, some in alive.items()
        for draw in some
    ]


def _best(place: Place, some: Sequence[Draw], trials: Sequence[Trial]) -> list[Draw]:
    """The draws of a cell, the better first and those without a score last; equals in their order.
    Before anything was tried, as they are."""
    scores = {t.draw.number: t.score for t in trials if t.place == place}

    def order(draw: Draw) -> tuple[float, int]:
        score = scores.get(draw.number)
        return (math.inf if score is None else -score, draw.number)

    return sorted(some, key=order)


def _choice(cell: Cell, trials: Sequence[Trial], defaults: Mapping[Place, float | None]) -> Choice:
    place = cell.row, cell.column
    own = [trial for trial in trials if trial.place == place]
    ranges = tuple((name, str(knob.search)) for name, knob in searched(cell).items())
    first = _best(place, [trial.draw for trial in own], own)[0]
    score = next(trial.score for trial in own if trial.draw == first)
    if score is None:
        reasons = [trial.plan.reason for trial in own if trial.plan.reason]
        told = reasons[0] if reasons else "no configuration has a validation accuracy"
        return Choice(place, None, reason=told, ranges=ranges)
    return Choice(place, first, score, defaults.get(place), ranges=ranges)


def _check_validation(spec: TableSpec, profile: Profile, store: Store, options: Execution) -> None:
    """Refuse to tune what holds nothing back: test samples are not for choosing."""
    plan = _plan(spec, profile, 1, store, options)
    for (row, column), cell in plan.cells.items():
        if not cell.configs[0].validation:
            raise UserError(
                f"the cell {row!r}, {column!r} cannot be tuned: it holds back no training samples "
                "to choose by (--validation 0.2)"
            )
