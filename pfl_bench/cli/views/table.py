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
from pfl_bench.execution import TableWatcher
from pfl_bench.reporting import metric
from pfl_bench.reporting.tables import CellPlan, Pace, Place, PlannedRun, TablePlan
from pfl_bench.store import StoredRun

REFRESHES_PER_SECOND = 4
SILENT_SECONDS = 30.0
"""In a pipe every run that ends gets a line; after so long without one, those under way do."""


@contextlib.contextmanager
def watch_table(plan: TablePlan, pace: Pace) -> Iterator[TableWatcher]:
    """A watcher for one table that suits where the output goes."""
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

    def __init__(self, runs: Sequence[PlannedRun], pace: Pace):
        self._waiting = {run.config.key: run for run in runs}
        self._pace = pace
        self._shares: dict[str, float] = {}
        self._trained: list[PlannedRun] = []
        self._began: float | None = None
        self._total = len(runs)

    def begin(self) -> None:
        """The clock starts with the first run: that its process had to start says nothing."""
        if self._began is None:
            self._began = time.monotonic()

    def advance(self, run: PlannedRun, share: float) -> None:
        """`run` has completed this share of its part in the table."""
        self._shares[run.config.key] = share

    def end(self, run: PlannedRun, stored: StoredRun | None) -> None:
        """`run` has ended; a failed one has nothing stored and, like a skipped one, no weight."""
        del self._waiting[run.config.key]
        self._shares.pop(run.config.key, None)
        if stored is not None and stored.status != "skipped":
            self._pace.learn(stored)
            self._trained.append(run)

    def seconds_left(self) -> float | None:
        """None before there is anything to tell it from."""
        # Copies, because the display asks from a thread of its own.
        waiting, shares, trained = dict(self._waiting), dict(self._shares), list(self._trained)
        expected = {run.config.key: self._pace.left(run.config) for run in waiting.values()}
        passed = [self._pace.left(run.config) for run in trained]
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


class _Following(TableWatcher):
    """Keeps what both displays need: the plan as it stands, and the countdown."""

    def __init__(self, plan: TablePlan, pace: Pace):
        self.plan = plan
        self.countdown = Countdown(plan.missing(), pace)
        self.running: dict[str, tuple[PlannedRun, int]] = {}
        self._first_round: dict[str, int] = {}

    def on_begin(self, run: PlannedRun, round: int) -> None:
        self.countdown.begin()
        self._first_round[run.config.key] = round
        self.running = {**self.running, run.config.key: (run, round)}

    def on_round(self, run: PlannedRun, round: int) -> None:
        self.running = {**self.running, run.config.key: (run, round)}
        first = self._first_round[run.config.key]
        self.countdown.advance(run, (round - first) / max(1, run.config.rounds - first))

    def on_end(self, run: PlannedRun, stored: StoredRun) -> None:
        self.plan = self.plan.with_run(stored)
        self._gone(run, stored)

    def on_failure(self, run: PlannedRun, error: str) -> None:
        self._gone(run, None)

    def under_way(self) -> list[str]:
        """A line for each run that goes on."""
        return [
            f"{label(run)}: round {at}/{run.config.rounds}" for run, at in self.running.values()
        ]

    def _gone(self, run: PlannedRun, stored: StoredRun | None) -> None:
        key = run.config.key
        self.running = {other: at for other, at in self.running.items() if other != key}
        self.countdown.end(run, stored)


class _Lines(_Following):
    """A line per run that ended, and a sign of life in between."""

    _last = -math.inf

    def on_note(self, run: PlannedRun, note: str) -> None:
        click.echo(f"Note: {label(run)}: {note}", err=True)

    def on_round(self, run: PlannedRun, round: int) -> None:
        super().on_round(run, round)
        if time.monotonic() - self._last >= SILENT_SECONDS:
            self._say("; ".join(self.under_way()))

    def on_end(self, run: PlannedRun, stored: StoredRun) -> None:
        super().on_end(run, stored)
        self._say(f"{label(run)}: {_ending(stored)}")

    def on_failure(self, run: PlannedRun, error: str) -> None:
        super().on_failure(run, error)
        self._say(f"{label(run)}: failed: {error}")

    def _say(self, what: str) -> None:
        self._last = time.monotonic()
        click.echo(f"{what} [{self.countdown}]", err=True)


class _Live(_Following):
    """What is running, under it the grid, which is cut first where the terminal is low.

    Drawn by a thread of rich's, hence from values that are replaced, never changed."""

    console: Console

    def on_note(self, run: PlannedRun, note: str) -> None:
        self.console.print(f"Note: {label(run)}: {note}", markup=False, highlight=False)

    def on_failure(self, run: PlannedRun, error: str) -> None:
        super().on_failure(run, error)
        self.console.print(f"{label(run)} failed: {error}", markup=False, highlight=False)

    def picture(self) -> RenderableType:
        shares = {
            place: f"{round / run.config.rounds:.0%}"
            for run, round in self.running.values()
            for place in run.places
        }
        under_way = map(Text, self.under_way())
        return Group(Text(str(self.countdown)), *under_way, grid(self.plan, shares))


def _ending(stored: StoredRun) -> str:
    summary = stored.summary or {}
    if stored.status != "finished":
        return f"{stored.status}, {summary.get('reason')}"
    best = summary.get("best")
    taken = duration(summary.get("total_seconds") or 0.0)
    trained = f"{best['accuracy']:.2%} in {taken}" if best else f"finished in {taken}"
    psnr = metric("psnr").of(stored)
    return trained if psnr is None else f"{trained}, attacked: {psnr:.2f} dB"
