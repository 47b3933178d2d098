"""`pfl-bench run`: one configuration, one or several seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_bench.base import UserError, shown, unknown, user_path
from pfl_bench.cli.shared import backend_options, hired, run_seeds
from pfl_bench.config import SETTINGS, Profile, checked, load_profile, setting_named

if TYPE_CHECKING:
    from pfl_bench.config import RunConfig
    from pfl_bench.store import StoredRun

INTERRUPTED = 130
FAILED = 1

# What a configuration file may hold beside the settings themselves.
_FILE_ONLY = ("set", "profile", "seeds")


def setting_options(
    command: Callable[..., Any], names: Collection[str] = SETTINGS.keys()
) -> Callable[..., Any]:
    """One option per setting, made from its declaration."""
    for name, knob in reversed([(name, SETTINGS[name]) for name in SETTINGS if name in names]):
        default = "" if knob.default in (None, "") else f"default {knob.default}"
        facts = "; ".join(filter(None, (knob.bounds, default)))
        text = f"{knob.meaning} ({facts})" if facts else knob.meaning
        flags = ["--" + one.replace("_", "-") for one in (name, *knob.also)]
        command = click.option(*flags, name, metavar=_metavar(knob.kind), help=text)(command)
    return command


def _metavar(kind: type) -> str:
    return {int: "INT", float: "NUMBER"}.get(kind, "NAME")


@click.command()
@setting_options
@click.option("--profile", metavar="NAME", help="quick, lite, paper, or a file (default quick).")
@click.option("--seeds", metavar="INT", help="Run this many seeds, beginning with --seed.")
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VALUE", help="A hyper-parameter; repeatable."
)
@click.option(
    "--config", "config_file", metavar="FILE", help="Settings from a YAML file; flags win."
)
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="An algorithm in a file.")
@click.option("--data-dir", metavar="DIR", help="Prepared datasets; implies --source real.")
@click.option("--results", "results_folder", metavar="DIR", help="The store (default ./results).")
@click.option("--workers", type=click.IntRange(1, 256), help="Parallel clients (default: cores).")
@click.option("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps.")
@click.option("--checkpoint-every", type=click.IntRange(min=1), help="Save after so many rounds.")
@click.option("--tensorboard", metavar="DIR", help="Also write scalars here for TensorBoard.")
@click.option("--fresh", is_flag=True, help="Repeat a run that is already stored.")
@click.option("--profile-time", is_flag=True, help="Print where the time went.")
@click.option("--quiet", is_flag=True, help="Print the end only.")
@click.option("--json", "as_json", is_flag=True, help="Print the end as JSON, nothing else.")
@backend_options
def run(
    profile: str | None,
    seeds: str | None,
    sets: tuple[str, ...],
    config_file: str | None,
    plugins: tuple[str, ...],
    data_dir: str | None,
    results_folder: str | None,
    workers: int | None,
    device: str,
    checkpoint_every: int | None,
    tensorboard: str | None,
    fresh: bool,
    profile_time: bool,
    quiet: bool,
    as_json: bool,
    backend: str,
    address: str | None,
    gpus: float | None,
    **flags: str | None,
) -> None:
    """Train one algorithm, or return its stored result at once.

    Defaults are the paper's; the profile may say otherwise (`pfl-bench list profiles`)."""
    from pfl_bench.base import paths
    from pfl_bench.cli.views import outcome, report, time_profile, watch_run
    from pfl_bench.execution import (
        Crew,
        Options,
        check_installed,
        choose_device,
        configure,
        execute_logged,
    )
    from pfl_bench.plugins import load_plugin
    from pfl_bench.store import Store

    if quiet or as_json:
        logging.getLogger("pfl_bench").setLevel(logging.WARNING)
    for plugin in plugins:
        load_plugin(Path(plugin))
    hire = hired(backend, address, gpus, None)
    if hire is None:
        choose_device(device)
    elif profile_time:
        raise UserError(f"--profile-time needs --backend local, not {backend!r}")
    if tensorboard is not None:
        check_installed()
    asked = gather(config_file, flags, sets, data_dir, profile, seeds)
    chosen, hyper, chosen_profile = asked.chosen, asked.hyper, asked.profile
    folder = paths.data_dir(data_dir)
    options = Options(
        data_dir=folder,
        partition=chosen.get("partition"),
        workers=workers,
        device=device,
        fresh=fresh,
        checkpoint_every=checkpoint_every,
        tensorboard=None if tensorboard is None else paths.user_path(tensorboard),
    )
    first = configure(chosen_profile, chosen, hyper, folder)
    configs = [
        configure(chosen_profile, {**chosen, "seed": first.seed + k}, hyper, folder)
        for k in range(asked.seeds or 1)
    ]
    store = Store(paths.results_dir(results_folder))
    store.tidy()
    ended: list[tuple[RunConfig, StoredRun]] = []
    stored = set() if fresh else {c.key for c in configs if store.find(c) is not None}
    failures: list[str] = []
    try:
        if hire is not None:
            crew = Crew(
                folder,
                workers=workers,
                plugins=tuple(map(Path, plugins)),
                tensorboard=options.tensorboard,
                device=device,
                fresh=fresh,
                checkpoint_every=checkpoint_every,
            )
            ended, failures = run_seeds(
                configs, options.partition, chosen_profile, store, crew, hire, quiet or as_json
            )
        for config in configs if hire is None else ():
            with watch_run(config, quiet=quiet or as_json) as watcher:
                ended.append((config, execute_logged(config, store, options, watcher)))
            if profile_time:
                click.echo(time_profile(watcher.seconds), err=as_json)
    except KeyboardInterrupt:
        if not fresh:
            raise
        click.echo("Stopped. The same command starts over, because of --fresh.", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    if as_json:
        click.echo(outcome(ended))
    else:
        report(ended, chosen_profile.name, stored)
    if failures:
        click.echo("\n".join(failures), err=True)
        raise click.exceptions.Exit(FAILED)


@dataclass(frozen=True)
class Asked:
    """What a user says of a run, in a file and on the command line."""

    profile: Profile
    chosen: dict[str, Any]
    """Settings."""
    hyper: dict[str, Any]
    seeds: int | None
    """How many; None where that is left to the command."""


def gather(
    config_file: str | None,
    flags: dict[str, str | None],
    sets: tuple[str, ...],
    data_dir: str | None,
    profile: str | None,
    seeds: str | None = None,
) -> Asked:
    """What the file and the flags say; flags win, and an empty key says nothing. A folder of real
    data given by hand is meant to be used."""
    from pfl_bench.base import read_yaml

    content = {} if config_file is None else read_yaml(user_path(config_file))
    extra = {key: content.pop(key) for key in _FILE_ONLY if key in content}
    for key in content:
        if setting_named(key) not in SETTINGS:
            raise UserError(f"{config_file!r}: {unknown('key', key, [*SETTINGS, *_FILE_ONLY])}")
    hyper = extra.get("set") or {}
    if not isinstance(hyper, dict):
        raise UserError(f"{config_file!r}: set must hold names and values, not {shown(hyper)}")
    chosen = checked(content, repr(config_file))
    chosen |= checked({k: v for k, v in flags.items() if v is not None}, "this run")
    if data_dir is not None and not {"source", "partition"} & chosen.keys():
        chosen["source"] = "real"
    if profile is None:
        profile = str(extra.get("profile") or "quick")
    number = extra.get("seeds") if seeds is None else seeds
    return Asked(
        load_profile(profile),
        chosen,
        {**hyper, **assignments(sets)},
        None if number is None else _number_of_seeds(number),
    )


def assignments(texts: tuple[str, ...], example: str = "--set mu=0.01") -> dict[str, str]:
    """The values of --set NAME=VALUE, or of the option that the example shows, by name."""
    return dict(_assignment(text, example) for text in texts)


def _assignment(text: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        option = example.split()[0]
        raise UserError(f"{option} cannot be {shown(text)}; allowed: NAME=VALUE, as {example}")
    return name.strip(), value.strip()


def _number_of_seeds(value: Any) -> int:
    try:
        count = int(str(value))
    except ValueError:
        count = 0
    if not 1 <= count <= 1000:
        raise UserError(f"seeds cannot be {shown(value)}; allowed: a whole number from 1 to 1000")
    return count
