"""A table that other processes fill, as `table --watch` shows it: read from the store again and
again, on a terminal in one place, in a pipe by a line whenever something has changed."""

from __future__ import annotations

import sys
from time import sleep

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from pfl_bench.base import standard_error
from pfl_bench.cli.views.table import grid, label
from pfl_bench.reporting.tables import PlannedRun, TablePlan, refreshed
from pfl_bench.store import Store, read_run

LOOK_SECONDS = 2.0


def watch_filling(plan: TablePlan, store: Store, every: float = LOOK_SECONDS) -> TablePlan:
    """Look until nothing is missing; the plan as it stands then."""
    seen = Filling(plan, store)
    if not sys.stderr.isatty():
        told = ""
        while seen.look():
            if (now := str(seen)) != told:
                click.echo(told := now, err=True)
            sleep(every)
        return seen.plan
    with Live(
        console=standard_error(), get_renderable=seen.picture, auto_refresh=False, transient=True
    ) as live:
        while seen.look():
            live.refresh()
            sleep(every)
    return seen.plan


class Filling:
    """What is stored of a table, and who computes what of the rest."""

    def __init__(self, plan: TablePlan, store: Store) -> None:
        self.plan = plan
        self._store = store
        self._total = len(plan.missing())
        self._left = self._total
        self._rounds: list[tuple[PlannedRun, int]] = []

    def look(self) -> bool:
        """Whether something is missing still."""
        self.plan = refreshed(self.plan, self._store)
        missing = self.plan.missing()
        self._left = len(missing)
        self._rounds = [
            (run, len(read_run(self._store.folder(run.config)).records()))
            for run in missing
            if self._store.holder(run.config) is not None
        ]
        return bool(missing)

    def under_way(self) -> list[str]:
        """A line for each run that a process is computing now."""
        if not self._rounds:
            return ["nobody computes one now; the same command without --watch does"]
        return [f"{label(run)}: round {n}/{run.config.rounds}" for run, n in self._rounds]

    def picture(self) -> RenderableType:
        shares = {
            place: f"{count / run.config.rounds:.0%}"
            for run, count in self._rounds
            for place in run.places
        }
        return Group(Text(self._counted()), *map(Text, self.under_way()), grid(self.plan, shares))

    def _counted(self) -> str:
        return f"{self._total - self._left} of {self._total} missing runs have come"

    def __str__(self) -> str:
        return f"{self._counted()}; {'; '.join(self.under_way())}"
