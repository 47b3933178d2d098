"""How a table in the making looks: a grid that fills on a terminal, lines in a pipe.

The finished table, with the paper's figures beside ours, is the business of
`pfl_bench.reporting.tables`.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import click
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pfl_bench.base import standard_error, standard_output
from pfl_bench.cli.views.run import duration
from pfl_bench.config import RunConfig
from pfl_bench.execution import Began, Ended, Failed, Note, Observer, Pace, Round
from pfl_bench.reporting import metric
from pfl_bench.reporting.tables import CellPlan, Place, PlannedRun, TablePlan
from pfl_bench.store import StoredRun

REFRESHES_PER_SECOND = 4
SILENT_SECONDS = 30.0
"""In a pipe every run that ends gets a line; after so long without one, those under way do."""


@contextlib.contextmanager
def watch_table(plan: TablePlan, pace: Pace) -> Iterator[Observer]:
    """A display of one table that suits where the output goes."""
    if sys.stderr.isatty():
        view = _Live(plan, pace)
        with Live(
            console=standard_error(),
            get_renderable=view.picture,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
        ) as live:
            view.console = live.console
            yield view
    else:
        yield _Lines(plan, pace)


def label(run: PlannedRun) -> str:
    """The run as a table's reader would call it."""
    row, column = run.places[0]
    others = len(run.places) - 1
    shared = f" (and {others} more)" if others else ""
    return f"{row}, {column}{shared}, seed {run.config.seed}"


def grid(plan: TablePlan, running: Mapping[Place, str] | None = None) -> Table:
    """How far each cell is: its mean so far, or why there is none."""
    table = Table("", box=box.SIMPLE, pad_edge=False)
    for column in plan.spec.columns:
        table.add_column(Text(column), justify="right")
    for row in plan.spec.rows:
        places = [(row, column) for column in plan.spec.columns]
        cells = [_cell_text(plan, place, (running or {}).get(place)) for place in places]
        table.add_row(Text(row), *cells)
    return table


def print_grid(plan: TablePlan) -> None:
    standard_output().print(grid(plan))


def _cell_text(plan: TablePlan, place: Place, progress: str | None) -> Text:
    cell = plan.cells[place]
    text = Text()
    if cell.status in ("skipped", "diverged"):
        text.append(cell.status if cell.configs else "impossible", style="yellow")
    elif cell.seeds:
        text.append(_figure(plan, cell))
    if cell.missing and cell.status != "diverged":
        counted = f"{cell.seeds}/{len(cell.configs)}"
        text.append(f" {counted}" if cell.seeds else counted, style="dim")
    if progress:
        text.append(f" {progress}", style="green")
    return text


def _figure(plan: TablePlan, cell: CellPlan) -> str:
    """The mean so far; tables of other things than accuracy only say that there is a result."""
    if plan.spec.metric != "accuracy" or cell.mean is None:
        return "✓"
    return metric(cell.cell.measure).show(cell.mean)


class Countdown:
    """How far the whole table is, in runs and in time.

    A run weighs what it is expected to take; the time left follows from how long the weight done
    so far really took, so that it is right however many run at once and however busy the machine.
    """

    def __init__(self, configs: Sequence[RunConfig], pace: Pace):
        self._waiting = {config.request: config for config in configs}
        self._pace = pace
        self._shares: dict[str, float] = {}
        self._computed: list[RunConfig] = []
        self._began: float | None = None
        self._total = len(configs)

    def begin(self) -> None:
        """The clock starts with the first run: that its process had to start says nothing."""
        if self._began is None:
            self._began = time.monotonic()

    def advance(self, config: RunConfig, share: float) -> None:
        """A run has completed this share of its part in the table."""
        self._shares[config.request] = share

    def end(self, config: RunConfig, stored: StoredRun | None) -> None:
        """A run has ended; a failed one has nothing stored and, like a skipped one, no weight."""
        del self._waiting[config.request]
        self._shares.pop(config.request, None)
        if stored is not None and stored.status != "skipped":
            self._pace.learn(stored)
            self._computed.append(config)

    def seconds_left(self) -> float | None:
        """None before there is anything to tell it from."""
        # Copies, because the display asks from a thread of its own.
        waiting, shares, computed = dict(self._waiting), dict(self._shares), list(self._computed)
        expected = {key: self._pace.left(config) for key, config in waiting.items()}
        passed = [self._pace.left(config) for config in computed]
        known = [seconds for seconds in (*expected.values(), *passed) if seconds]
        typical = statistics.fmean(known) if known else 1.0
        weights = {key: seconds or typical for key, seconds in expected.items()}
        begun = sum(share * weights.get(key, 0.0) for key, share in shares.items())
        done = begun + sum(seconds or typical for seconds in passed)
        if self._began is None or not done:
            return None
        return (time.monotonic() - self._began) * (sum(weights.values()) - begun) / done

    def __str__(self) -> str:
        text = f"{self._total - len(self._waiting)} of {self._total}"
        seconds = self.seconds_left()
        return text if seconds is None else f"{text}, about {duration(seconds)} left"


class _Following(Observer):
    """Keeps what both displays need: the plan as it stands, and the countdown."""

    def __init__(self, plan: TablePlan, pace: Pace):
        self.plan = plan
        self.planned = {run.config.request: run for run in plan.missing()}
        self.countdown = Countdown([run.config for run in self.planned.values()], pace)
        self.rounds: dict[str, int] = {}
        """Of the runs that go on, the last round."""
        self._first_round: dict[str, int] = {}

    def label(self, config: RunConfig) -> str:
        return label(self.planned[config.request])

    def on_began(self, event: Began) -> None:
        self.countdown.begin()
        self._first_round[event.config.request] = len(event.earlier)
        self.rounds = {**self.rounds, event.config.request: len(event.earlier)}

    def on_round(self, event: Round) -> None:
        config, round = event.config, event.record.round
        self.rounds = {**self.rounds, config.request: round}
        first = self._first_round[config.request]
        self.countdown.advance(config, (round - first) / max(1, config.rounds - first))

    def on_ended(self, event: Ended) -> None:
        self.plan = self.plan.with_run(event.config, event.run)
        self._gone(event.config, event.run)

    def on_failed(self, event: Failed) -> None:
        self._gone(event.config, None)

    def under_way(self) -> list[str]:
        """A line for each run that goes on."""
        going = [(self.planned[key], round) for key, round in self.rounds.items()]
        return [f"{label(run)}: round {round}/{run.config.rounds}" for run, round in going]

    def _gone(self, config: RunConfig, stored: StoredRun | None) -> None:
        self.rounds = {key: round for key, round in self.rounds.items() if key != config.request}
        self.countdown.end(config, stored)


class _Lines(_Following):
    """A line per run that ended, and a sign of life in between."""

    _last = -math.inf

    def on_note(self, event: Note) -> None:
        click.echo(f"Note: {self.label(event.config)}: {event.text}", err=True)

    def on_round(self, event: Round) -> None:
        super().on_round(event)
        if time.monotonic() - self._last >= SILENT_SECONDS:
            self._say("; ".join(self.under_way()))

    def on_ended(self, event: Ended) -> None:
        super().on_ended(event)
        self._say(f"{self.label(event.config)}: {_ending(event.run)}")

    def on_failed(self, event: Failed) -> None:
        super().on_failed(event)
        self._say(f"{self.label(event.config)}: failed: {event.error}")

    def _say(self, what: str) -> None:
        self._last = time.monotonic()
        click.echo(f"{what} [{self.countdown}]", err=True)


class _Live(_Following):
    """What is running, under it the grid, which is cut first where the terminal is low.

    Drawn by a thread of rich's, hence from values that are replaced, never changed."""

    console: Console

    def on_note(self, event: Note) -> None:
        self._print(f"Note: {self.label(event.config)}: {event.text}")

    def on_failed(self, event: Failed) -> None:
        super().on_failed(event)
        self._print(f"{self.label(event.config)} failed: {event.error}")

    def picture(self) -> RenderableType:
        going = [(self.planned[key], round) for key, round in self.rounds.items()]
        shares = {
            place: f"{round / run.config.rounds:.0%}"
            for run, round in going
            for place in run.places
        }
        under_way = map(Text, self.under_way())
        return Group(Text(str(self.countdown)), *under_way, grid(self.plan, shares))

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)


def _ending(stored: StoredRun) -> str:
    if stored.status != "finished":
        return f"{stored.status}, {stored.end.reason}"
    best, taken = stored.end.best, duration(stored.end.total_seconds)
    trained = f"{best.accuracy:.2%} in {taken}" if best else f"finished in {taken}"
    psnr = metric("psnr").of(stored)
    return trained if psnr is None else f"{trained}, attacked: {psnr:.2f} dB"
