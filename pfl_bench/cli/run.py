"""`pfl-bench run`: one configuration, one or several seeds, one or several methods."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_bench.base import UserError, shown, unknown, user_path
from pfl_bench.cli.shared import CLUSTER, commas, execution, running_options
from pfl_bench.config import SETTINGS, Profile, checked, load_profile, setting_named

if TYPE_CHECKING:
    from pfl_bench.config import RunConfig

INTERRUPTED = 130
FAILED = 1
MOST_SEEDS = 1000
LONGEST_SEED = 18

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
@click.option(
    "--algo",
    "algos",
    multiple=True,
    metavar="A,B",
    help=f"{SETTINGS['algo'].meaning}; several are compared. By default that of --plugin.",
)
@partial(setting_options, names=[name for name in SETTINGS if name != "algo"])
@click.option("--profile", metavar="NAME", help="quick, lite, paper, or a file (default quick).")
@click.option(
    "--seeds",
    metavar="INT|A,B",
    help="Run this many seeds, beginning with --seed, or those of a list as 0,1,2.",
)
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VALUE", help="A hyper-parameter; repeatable."
)
@click.option(
    "--config", "config_file", metavar="FILE", help="Settings from a YAML file; flags win."
)
@running_options("plugins", "data_dir")
@click.option("--results", "results_folder", metavar="DIR", help="The store (default ./results).")
@running_options("workers", "device", "checkpoint_every", "tensorboard", "fresh")
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
    """Train an algorithm, or return its stored result at once; several are compared.

    Defaults are the paper's; the profile may say otherwise (`pfl-bench list profiles`)."""
    from pfl_bench.base import paths
    from pfl_bench.cli.views import outcome, report, time_profile, title, watch_runs
    from pfl_bench.execution import Request, run_all
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
        tensorboard=tensorboard,
        fresh=fresh,
        backend=backend,
        address=address,
        gpus=gpus,
    )
    asked = gather(config_file, flags, sets, data_dir, profile, seeds)
    configs = asked.configs(_methods(algos, asked, plugins), options.data_dir)
    store = Store(paths.results_dir(results_folder))
    store.tidy()
    requests = [Request(config, asked.chosen.get("partition")) for config in configs]
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


@dataclass(frozen=True)
class Asked:
    """What a user says of a run, in a file and on the command line."""

    profile: Profile
    chosen: dict[str, Any]
    """Settings."""
    hyper: dict[str, Any]
    seeds: tuple[int, ...] | None
    """Which, counted from the setting `seed`; None where that is left to the command."""

    def configs(self, algos: Sequence[str], data_dir: Path) -> list[RunConfig]:
        """A configuration for each method and seed. Of several methods, each takes the
        hyper-parameters that it has."""
        from pfl_bench.execution import configure
        from pfl_bench.plugins import check_taken, taken

        if len(algos) > 1:
            check_taken(algos, self.hyper)
        found = []
        for algo in algos:
            hyper = taken(algo, self.hyper) if len(algos) > 1 else self.hyper
            first = configure(self.profile, {**self.chosen, "algo": algo}, hyper, data_dir)
            found += [replace(first, seed=first.seed + k) for k in self.seeds or (0,)]
        return found


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
    said = extra.get("seeds") if seeds is None else seeds
    which = None if said is None else seeds_named(said)
    if which is not None and not _is_number(said):
        if "seed" in chosen:
            raise UserError(f"seed {chosen['seed']} and a list of seeds exclude each other")
        chosen["seed"] = 0
    return Asked(load_profile(profile), chosen, {**hyper, **assignments(sets)}, which)


def assignments(texts: tuple[str, ...], example: str = "--set mu=0.01") -> dict[str, str]:
    """The values of --set NAME=VALUE, or of the option that the example shows, by name."""
    return dict(_assignment(text, example) for text in texts)


def _assignment(text: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        option = example.split()[0]
        raise UserError(f"{option} cannot be {shown(text)}; allowed: NAME=VALUE, as {example}")
    return name.strip(), value.strip()


def seeds_named(value: Any) -> tuple[int, ...]:
    """So many seeds from 0 on, or those of a list: 3, "0,1,2", [0, 1, 2]."""
    items = value if isinstance(value, list) else str(value).split(",")
    texts = [str(item).strip() for item in items]
    if all(text.isdecimal() and len(text) <= LONGEST_SEED for text in texts):
        numbers = [int(text) for text in texts]
        if len(texts) == 1 and _is_number(value) and 1 <= numbers[0] <= MOST_SEEDS:
            return tuple(range(numbers[0]))
        if not _is_number(value) and len(set(numbers)) == len(numbers) <= MOST_SEEDS:
            return tuple(numbers)
    raise UserError(
        f"seeds cannot be {shown(value)}; allowed: a whole number from 1 to {MOST_SEEDS}, or a "
        "list of different ones as 0,1,2"
    )


def _is_number(value: Any) -> bool:
    """Whether it says how many seeds rather than which."""
    return not isinstance(value, list) and "," not in str(value)
