"""The options that say where runs are computed, and `run` on another backend than this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from pfl_bench.base import UserError, unknown

if TYPE_CHECKING:
    from pfl_bench.config import Profile, RunConfig
    from pfl_bench.execution import Crew, Hire
    from pfl_bench.store import Store, StoredRun

BACKENDS = ("local", "ray")


def backend_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option(
            "--backend", default="local", metavar="NAME", show_default=True,
            help="local, or ray: on a Ray cluster.",
        ),
        click.option(
            "--address", metavar="HOST:PORT",
            help="A running Ray cluster, or auto (default: RAY_ADDRESS, else one is started).",
        ),
        click.option(
            "--gpus", type=click.FloatRange(0, 1),
            help="Share of a card per run, with ray (default: 1 where there are any).",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def hired(backend: str, address: str | None, gpus: float | None, jobs: int | None) -> Hire | None:
    """The team that is asked for; None for this machine's own processes."""
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if backend == "local":
        for option, value in (("--address", address), ("--gpus", gpus)):
            if value is not None:
                raise UserError(f"{option} goes with --backend ray")
        return None
    from pfl_bench.execution.cluster import RayCluster, require_ray

    require_ray()
    return RayCluster(address or os.environ.get("RAY_ADDRESS") or None, jobs, gpus).hire


def run_seeds(
    configs: Sequence[RunConfig],
    partition: str | None,
    profile: Profile,
    store: Store,
    crew: Crew,
    hire: Hire,
    quiet: bool,
) -> tuple[list[tuple[RunConfig, StoredRun]], list[str]]:
    """The results of the seeds of a run, as a table of one cell, and the errors of those that
    failed."""
    from contextlib import nullcontext

    from pfl_bench.cli.views import label, watch_table
    from pfl_bench.data import problem
    from pfl_bench.execution import TableWatcher, run_missing
    from pfl_bench.reporting.tables import Cell, CellPlan, Pace, TablePlan, TableSpec

    row, column = configs[0].algo, problem(configs[0])
    cell = Cell(row, column, {"partition": partition} if partition else {}, {}, None)
    spec = TableSpec("run", column, "accuracy", (row,), (column,), {(row, column): cell})
    known = tuple(None if crew.fresh else store.find(config) for config in configs)
    cells = {(row, column): CellPlan(cell, tuple(configs), known)}
    plan = TablePlan(spec, profile, len(configs), cells)
    runs = {run.config.key: run for run in plan.missing()}
    with nullcontext(TableWatcher()) if quiet else watch_table(plan, Pace.of(store)) as watcher:
        plan, errors = run_missing(plan, store, crew, watcher, hire)
    ended = zip(configs, plan.cells[row, column].runs, strict=True)
    failures = [f"{label(runs[key])}: {error}" for key, error in errors.items()]
    return [(config, run) for config, run in ended if run is not None], failures
