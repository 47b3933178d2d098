"""`pfl-bench run`: one configuration, one or several seeds, one or several methods."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_bench.api import gather
from pfl_bench.base import UserError, shown
from pfl_bench.cli.shared import CLUSTER, commas, execution, running_options
from pfl_bench.config import OPTIONS

if TYPE_CHECKING:
    from pfl_bench.api import Asked

INTERRUPTED = 130
FAILED = 1


def run_options(
    command: Callable[..., Any], names: Collection[str] = OPTIONS.keys()
) -> Callable[..., Any]:
    """One option per setting, made from its declaration."""
    for name, knob in reversed([(name, OPTIONS[name]) for name in OPTIONS if name in names]):
        default = "" if knob.default in (None, "") else f"default {knob.default}"
        facts = "; ".join(filter(None, (knob.bounds, default)))
        text = f"{knob.meaning} ({facts})" if facts else knob.meaning
        flags = ["--" + one.replace("_", "-") for one in (name, *knob.also)]
        command = click.option(*flags, name, metavar=_metavar(knob.kind), help=text)(command)
    return command


def _metavar(kind: type) -> str:
    return {int: "INT", float: "NUMBER"}.get(kind, "NAME")


@click.command()
@click.option(
    "--algo",
    "algos",
    multiple=True,
    metavar="A,B",
    help=f"{OPTIONS['algo'].meaning}; several are compared. By default that of --plugin.",
)
@partial(run_options, names=[name for name in OPTIONS if name != "algo"])
@running_options("profile")
@click.option(
    "--seeds",
    metavar="INT|A,B",
    help="Run this many seeds, beginning with --seed, or those of a list as 0,1,2.",
)
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VALUE", help="A hyper-parameter; repeatable."
)
@click.option(
    "--config", "config_file", metavar="FILE", help="Options from a YAML file; flags win."
)
@running_options("plugins", "data_dir")
@click.option("--results", "results_folder", metavar="DIR", help="The store (default ./results).")
@running_options(
    "workers", "device", "checkpoint_every", "track", "tensorboard", "fresh", "keep_model"
)
@click.option("--profile-time", is_flag=True, help="Print where the time went.")
@click.option("--quiet", is_flag=True, help="Print the end only.")
@click.option("--json", "as_json", is_flag=True, help="Print the end as JSON, nothing else.")
@running_options(*CLUSTER)
def run(
    algos: tuple[str, ...],
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
    track: tuple[str, ...],
    tensorboard: str | None,
    fresh: bool,
    keep_model: bool,
    profile_time: bool,
    quiet: bool,
    as_json: bool,
    backend: str,
    address: str | None,
    gpus: float | None,
    **flags: str | None,
) -> None:
    """Train an algorithm, or return its stored result at once; several are compared.

    Defaults are the paper's; the profile may say otherwise (`pfl-bench list profiles`)."""
    from pfl_bench.base import paths
    from pfl_bench.cli.views import outcome, report, time_profile, title, watch_runs
    from pfl_bench.execution import KeptModel, Request, run_all
    from pfl_bench.store import Store

    quiet = quiet or as_json
    if quiet:
        logging.getLogger("pfl_bench").setLevel(logging.WARNING)
    if profile_time and backend != "local":
        raise UserError(f"--profile-time needs --backend local, not {backend!r}")
    options = execution(
        plugins=plugins,
        data_dir=data_dir,
        workers=workers,
        device=device,
        checkpoint_every=checkpoint_every,
        track=track,
        tensorboard=tensorboard,
        fresh=fresh,
        backend=backend,
        address=address,
        gpus=gpus,
    )
    asked = gather(config_file, flags, assignments(sets), data_dir, profile, seeds)
    configs = asked.configs(_methods(algos, asked, plugins), options.data_dir)
    store = Store(paths.results_dir(results_folder))
    store.tidy()
    kept, partition = KeptModel() if keep_model else None, asked.chosen.get("partition")
    requests = [Request(config, partition, kept) for config in configs]
    try:
        with watch_runs(configs, quiet) as display:
            ended = run_all(requests, store, options, display)
    except KeyboardInterrupt:
        if not fresh:
            raise
        click.echo("Stopped. The same command starts over, because of --fresh.", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    if profile_time:
        for config in configs:
            click.echo(time_profile(display.seconds.get(config.request)), err=as_json)
    runs = [(c, ended.runs[c.request]) for c in configs if c.request in ended.runs]
    if as_json:
        click.echo(outcome(runs))
    else:
        report(runs, asked.profile.name, ended.stored)
    for config in configs:
        if error := ended.failures.get(config.request):
            click.echo(f"{title(config)}: {error}", err=True)
    if ended.failures:
        raise click.exceptions.Exit(FAILED)


def _methods(said: tuple[str, ...], asked: Asked, plugins: tuple[str, ...]) -> list[str]:
    """The algorithms to run: those named, else those of the plugins."""
    from pfl_bench.plugins import algorithm_named, algorithm_names, load_algorithm

    elsewhere = asked.chosen.get("algo") or asked.profile.run.get("algo")
    texts = said or ((elsewhere,) if elsewhere else tuple(Path(file).stem for file in plugins))
    if not texts:
        raise UserError(
            f"`run` needs an algorithm: --algo {', '.join(algorithm_names())}, or several with "
            "commas between them; `pfl-bench list algos` says what they do"
        )
    names = commas.names("--algo", *texts)
    for name in names:
        load_algorithm(name)
    return list(dict.fromkeys(map(algorithm_named, names)))


def assignments(texts: tuple[str, ...], example: str = "--set mu=0.01") -> dict[str, str]:
    """The values of --set NAME=VALUE, or of the option that the example shows, by name."""
    return dict(_assignment(text, example) for text in texts)


def _assignment(text: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        option = example.split()[0]
        raise UserError(f"{option} cannot be {shown(text)}; allowed: NAME=VALUE, as {example}")
    return name.strip(), value.strip()
