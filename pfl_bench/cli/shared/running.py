"""The options that say how runs are carried out, declared and checked once for all commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_bench.base import UserError, paths, unknown

if TYPE_CHECKING:
    from pfl_bench.execution import Execution

Command = Callable[..., Any]

_OPTIONS = {
    "plugins": click.option(
        "--plugin", "plugins", multiple=True, metavar="FILE", help="An algorithm in a file."
    ),
    "profile": click.option(
        "--profile", metavar="NAME",
        help="quick, lite, paper, or a file (default: quick; on real data lite).",
    ),
    "data_dir": click.option(
        "--data-dir", metavar="DIR", help="Prepared datasets; implies --source real."
    ),
    "jobs": click.option(
        "--jobs", type=click.IntRange(1, 256),
        help="Runs at a time, each with its share of the cores (default: one a core for small "
        "models and text, else 1; with ray, all that fit).",
    ),
    "workers": click.option(
        "--workers", type=click.IntRange(1, 256),
        help="Parallel clients per run (default: its share of the cores).",
    ),
    "device": click.option(
        "--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps."
    ),
    "checkpoint_every": click.option(
        "--checkpoint-every", type=click.IntRange(min=1), help="Save after so many rounds."
    ),
    "track": click.option(
        "--track", multiple=True, metavar="NAME[:PLACE]",
        help="Also keep the rounds elsewhere: tensorboard:DIR, mlflow[:URI], wandb[:PROJECT], or a "
        "plugin's; repeatable.",
    ),
    "tensorboard": click.option(
        "--tensorboard", metavar="DIR", help="Short for --track tensorboard:DIR."
    ),
    "fresh": click.option(
        "--fresh", is_flag=True, help="Repeat a run that is already stored."
    ),
    "keep_model": click.option(
        "--keep-model", is_flag=True,
        help="Keep the trained model of every client in the run's folder.",
    ),
    "backend": click.option(
        "--backend", default="local", metavar="NAME", show_default=True,
        help="local, or ray: on a Ray cluster.",
    ),
    "address": click.option(
        "--address", metavar="HOST:PORT",
        help="A running Ray cluster, or auto (default: RAY_ADDRESS, else one is started).",
    ),
    "gpus": click.option(
        "--gpus", type=click.FloatRange(0, 1),
        help="Share of a card per run, with ray (default: 1 where there are any).",
    ),
}  # fmt: skip
CLUSTER = ("backend", "address", "gpus")


def running_options(*names: str) -> Callable[[Command], Command]:
    """These options, in this order."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return decorate


def execution(
    *,
    plugins: tuple[str, ...] = (),
    data_dir: str | None = None,
    track: tuple[str, ...] = (),
    tensorboard: str | None = None,
    device: str = "auto",
    backend: str = "local",
    address: str | None = None,
    gpus: float | None = None,
    **options: Any,
) -> Execution:
    """How to run, from the flags of a command; refused at once where that cannot be. The plugins
    are loaded, because what else is said of a run may name them."""
    from pfl_bench.execution import AS_MANY_AS_PAY, PLACES, Execution, choose_device
    from pfl_bench.plugins import load_plugin

    if backend not in PLACES:
        raise unknown("backend", backend, PLACES)
    if backend == "local":
        for flag, value in (("--address", address), ("--gpus", gpus)):
            if value is not None:
                raise UserError(f"{flag} goes with --backend ray")
        choose_device(device)
        if "jobs" in options:  # several runs, which can go on in other processes
            options["jobs"] = options["jobs"] or AS_MANY_AS_PAY
    else:
        from pfl_bench.execution.cluster import require_ray

        address = address or os.environ.get("RAY_ADDRESS") or None
        require_ray(own=address is None)
    if tensorboard is not None:
        track = (*track, f"tensorboard:{tensorboard}")
    if track:
        from pfl_bench.execution.trackers import check_trackers

        check_trackers(track)
    for plugin in plugins:
        load_plugin(Path(plugin))
    return Execution(
        paths.data_dir(data_dir),
        where=backend,
        device=device,
        plugins=tuple(map(Path, plugins)),
        track=track,
        address=address,
        gpus=gpus,
        **options,
    )
