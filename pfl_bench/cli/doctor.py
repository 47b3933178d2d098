"""`pfl-bench doctor`: whether this machine can be trusted with a long table, and what it takes."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pfl_bench.base import VERSION, paths, standard_error

if TYPE_CHECKING:
    from pfl_bench.execution import Check, Pacing

UNTRUSTED = 1
LEAST_DISK = 2e9
"""Bytes free for results; the tables of all profiles take less."""
TABLE = "main"
GIGA = 1e9


@click.command()
@click.option("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps.")
@click.option("--data-dir", metavar="DIR", help="Prepared datasets.")
@click.option("--results", "results_folder", metavar="DIR", help="The store (default ./results).")
def doctor(device: str, data_dir: str | None, results_folder: str | None) -> None:
    """Check this machine: versions, speed, memory, disk, data, and that runs repeat to the bit.

    Takes about twenty seconds. The exit code is 1 if something is not as it should be."""
    from pfl_bench.execution import checkup, choose_device, default_workers

    card, cores = choose_device(device), default_workers()
    results = paths.results_dir(results_folder)
    _say_versions()
    with standard_error().status("measuring"):
        alone, together = checkup.matrix_rates(cores)
        wide = checkup.wide_layer()
        pace = checkup.pacing(cores)
    _say(
        "cores",
        f"{cores} that this process may use: {alone / GIGA:.0f} GFLOP/s alone, "
        f"{together / GIGA:.0f} together ({together / alone / cores:.0%} of {cores} alone)",
    )
    if hasattr(os, "getloadavg") and (load := os.getloadavg()[0]) > cores:
        _say("note", f"the load is {load:.1f}: other processes slow down what is measured here")
    _say("the CNN", f"{1e3 * pace.step_seconds:.1f} ms a step of ten images, over all workers")
    _say(
        "wide layer",
        f"taken as {wide.order} in {1e3 * wide.seconds:.2f} ms; the other order takes "
        f"{1e3 * wide.otherwise:.2f}",
    )
    if wide.is_slow:
        _say("note", "that order is by a rule that does not fit this processor; please report it")
    has_room = _say_room(results)
    _say_data(paths.data_dir(data_dir))
    with (
        standard_error().status("running, killing and repeating small runs"),
        tempfile.TemporaryDirectory() as scratch,
    ):
        found = checkup.checks(Path(scratch))
        if card != "cpu":
            found += checkup.card_checks(card)
    if card == "cpu":
        _say("device", "cpu; no accelerator that torch can use, or none asked for")
    else:
        there = checkup.pacing(1, card)
        ratio = pace.step_seconds / there.step_seconds
        _say("device", f"{card}: {1e3 * there.step_seconds:.1f} ms a step, {ratio:.1f} × the cores")
        pace = max(pace, there, key=lambda one: one.operations_per_second)
    for check in found:
        _say_check(check)
    _say_tables(pace, paths.data_dir(data_dir))
    _verdict(found, has_room)


def _say(what: str, text: str) -> None:
    click.echo(f"{what:<10}  {text}")


def _say_versions() -> None:
    from pfl_bench.store import current_provenance, machine

    known, here = current_provenance(), machine()
    libraries = ", ".join(f"{name} {known[name]}" for name in ("python", "torch", "numpy"))
    _say("versions", f"pfl-bench {VERSION}, {libraries}")
    for name, value in known["environment"].items():
        _say("note", f"{name}={value} is set, with which the libraries may round otherwise")
    memory = "unknown" if here["memory"] is None else f"{here['memory'] / GIGA:.1f} GB"
    _say("machine", f"{here['cpu']}, {here['platform']}, {memory} of memory")


def _say_room(results: Path) -> bool:
    """Whether there is room for results."""
    folder = next(place for place in (results, *results.resolve().parents) if place.is_dir())
    free = shutil.disk_usage(folder).free
    _say("disk", f"{free / GIGA:.1f} GB free where results go ({results})")
    return free >= LEAST_DISK


def _say_data(folder: Path) -> None:
    from pfl_bench.data import own_names, specs

    there = [name for name, spec in specs().items() if (folder / spec.filename).exists()]
    listing = ", ".join([*there, *own_names(folder)]) or "none, and the stand-ins need none"
    _say("data", f"prepared in {folder}: {listing}")


def _say_check(check: Check) -> None:
    detail = f" ({check.detail})" if check.detail else ""
    _say("yes" if check.holds else "NO", f"{check.name}{detail}")


def _say_tables(pace: Pacing, data_dir: Path) -> None:
    from pfl_bench.cli.views import duration
    from pfl_bench.config import load_profile, profile_names
    from pfl_bench.execution import checkup
    from pfl_bench.reporting.tables import load_table, plan_table
    from pfl_bench.store import Store

    click.echo(f"`pfl-bench table {TABLE}`, run after run, if every method cost what FedAvg does:")
    nothing = Store(Path("no results are looked at"))
    for name in profile_names():
        profile = load_profile(name)
        plan = plan_table(
            load_table(TABLE), profile, profile.seeds, nothing, data_dir, lambda *_: "any"
        )
        configs = [run.config for run in plan.missing()]
        seconds = checkup.expected(configs, pace, data_dir)
        most = "at most " if any(config.patience is not None for config in configs) else ""
        _say(name, f"{most}about {duration(seconds)} for {len(configs)} runs")


def _verdict(found: list[Check], has_room: bool) -> None:
    failed = [check.name for check in found if not check.holds]
    if failed:
        click.echo(f"Verdict: not to be trusted; it does not hold that {'; '.join(failed)}.")
        raise click.exceptions.Exit(UNTRUSTED)
    if not has_room:
        click.echo("Verdict: runs can be trusted, but make room on the disk before a long table.")
        raise click.exceptions.Exit(UNTRUSTED)
    click.echo("Verdict: this machine can be trusted with a long table.")
