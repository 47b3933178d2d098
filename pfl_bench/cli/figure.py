"""`pfl-bench figure NAME`: the figures of the paper for any setting, and two more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pfl_bench.base import COLUMN, FORMATS, PAGE, UserError, unknown, user_path
from pfl_bench.cli.run import setting_options
from pfl_bench.cli.shared import commas
from pfl_bench.config import SETTINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pfl_bench.cli.shared import Wanted
    from pfl_bench.config import RunConfig

Command = Callable[..., Any]

WIDTHS = {"column": COLUMN, "page": PAGE}
COSTS = ("iterations", "bytes", "seconds")
SOME = "fedavg,fedper,fedcp"

# What decides who gets which sample; the model, because a profile may have a word on it.
_OF_DATA = (
    "dataset", "source", "fraction", "setting", "beta", "clients", "of", "classes_per_client",
    "partition", "partition_seed", "model",
)  # fmt: skip
# What a run has beside its method; which series to record follows from the figure.
_OF_RUN = tuple(name for name in SETTINGS if name not in ("algo", "record"))


class Figures(click.Group):
    """Names the nearest figure where there is none of the name."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found is None:
            raise unknown("figure", cmd_name, self.commands)
        return found


@click.group(cls=Figures)
def figure() -> None:
    """Draw a figure from stored results; what is missing is run first.

    \b
    pfl-bench figure distribution --dataset cifar100 --beta 0.1 --clients 50
    pfl-bench figure curves --algos fedavg,fedper,fedcp --x bytes
    pfl-bench figure COMMAND --help
    """


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _settings(names: tuple[str, ...]) -> Callable[[Command], Command]:
    return lambda command: setting_options(command, names)


_algo = click.option("--algo", metavar="NAME", help="The algorithm (default fedcp).")
_algos = click.option("--algos", metavar="A,B", help=f"The algorithms, or all (default {SOME}).")
_client = click.option(
    "--client", type=int, default=0, show_default=True, help="Whose, counted from 0."
)
_seeds = click.option("--seeds", metavar="INT", help="Runs per method, beginning with --seed.")
_sources = _together(
    click.option(
        "--profile", metavar="NAME", help="quick, lite, paper, or a file (default quick)."
    ),
    click.option("--data-dir", metavar="DIR", help="Prepared datasets; implies --source real."),
    click.option("--config", "config_file", metavar="FILE", help="Settings from a YAML file."),
)
of_data = _together(_settings(_OF_DATA), _sources)
_output = _together(
    click.option(
        "--out", default="figures", show_default=True, metavar="FILE|DIR",
        help="A file such as curves.pdf, or a folder.",
    ),
    click.option(
        "--format", "formats", metavar="A,B", help="Of png, svg and pdf (default png,svg)."
    ),
    click.option(
        "--width", type=click.Choice(list(WIDTHS)),
        help="Of a two-column paper (default: as the figure needs).",
    ),
)  # fmt: skip
_running = _together(
    click.option(
        "--set", "sets", multiple=True, metavar="NAME=VALUE",
        help="A hyper-parameter, for the methods that have it; repeatable.",
    ),
    click.option("--plugin", "plugins", multiple=True, metavar="FILE",
                 help="An algorithm in a file."),
    click.option("--results", "results_folder", metavar="DIR",
                 help="The store (default ./results)."),
    click.option("--workers", type=click.IntRange(1, 256),
                 help="Parallel clients (default: cores)."),
    click.option("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps."),
    click.option("--quiet", is_flag=True, help="No progress."),
)  # fmt: skip

_HOW = ("profile", "data_dir", "config_file", "sets", "plugins", "results_folder", "workers",
        "device", "quiet", "seeds")  # fmt: skip


def _asked(options: dict[str, Any], are_averaged: bool = False) -> tuple[Wanted, Files]:
    """What to draw from and where to put it, all checked before anything runs."""
    from pfl_bench.cli.shared import read

    files = Files(options.pop("out"), options.pop("formats"), options.pop("width"))
    how = {name: options.pop(name) for name in _HOW if name in options}
    return read(options, are_averaged=are_averaged, **how), files


@figure.command("list")
def list_() -> None:
    """Say what each figure shows."""
    shown = {name: command for name, command in figure.commands.items() if name != "list"}
    width = max(map(len, shown))
    for name, command in shown.items():
        click.echo(f"{name:<{width}}  {command.get_short_help_str(limit=200)}")


@figure.command()
@of_data
@_output
def distribution(**options: Any) -> None:
    """Samples per class and client, a circle each."""
    from pfl_bench.cli.shared import dealt
    from pfl_bench.reporting.figures import distribution as drawing

    wanted, files = _asked(options)
    config, dataset, partition = dealt(wanted)
    counts = partition.histogram(dataset.y, dataset.classes)
    files.write(
        f"distribution-{_place(config)}-{config.clients}",
        lambda: drawing.draw(counts, config, wanted.profile.name, files.width, dataset.remark),
    )


@figure.command()
@_algo
@_settings(_OF_RUN)
@_seeds
@_sources
@_running
@_output
def convergence(algo: str | None, **options: Any) -> None:
    """Training loss and test accuracy before and after local learning, per iteration."""
    from pfl_bench.cli.shared import methods
    from pfl_bench.reporting.figures import convergence as drawing

    wanted, files = _asked(options)
    (method,) = methods(wanted, [_method(algo, wanted.chosen)], drawing.SERIES)
    files.write(
        f"convergence-{method.trials[0].config.slug}",
        lambda: drawing.draw(method, wanted.profile.name, files.width or COLUMN),
    )


@figure.command()
@_algo
@_client
@_settings(_OF_RUN)
@_sources
@_running
@_output
def policy(algo: str | None, client: int, **options: Any) -> None:
    """FedCP's policy: a client's PIR over iterations, the distribution of s on every client."""
    from pfl_bench.cli.shared import methods
    from pfl_bench.reporting.figures import policy as drawing

    wanted, files = _asked(options)
    name = _method(algo, wanted.chosen)
    drawing.check_client(client, wanted.config(name).clients)
    (method,) = methods(wanted, [name], drawing.SERIES)
    files.write(
        f"policy-{method.trials[0].config.slug}",
        lambda: drawing.draw(method, client, wanted.profile.name, files.width or COLUMN),
    )


@figure.command()
@_algo
@_client
@click.option(
    "--samples", type=click.IntRange(1, 12), default=6, show_default=True, help="How many images."
)
@click.option("--layer", metavar="NAME", help="Of the extractor (default: its last maps).")
@_settings(_OF_RUN)
@_sources
@_running
@_output
def gradcam(algo: str | None, client: int, samples: int, layer: str | None, **options: Any) -> None:
    """Grad-CAM of test samples with only the global or only the personalized head of FedCP."""
    from pfl_bench.cli.shared import trained_model
    from pfl_bench.reporting.figures import gradcam as drawing

    wanted, files = _asked(options)
    name = _method(algo, wanted.chosen)
    drawing.check(wanted.config(name), client)
    drawing.check_layer(wanted.config_here(name), layer, wanted.data_dir)
    simulator = trained_model(wanted, name)
    views = drawing.look(simulator, client, samples, layer)
    files.write(
        f"gradcam-{simulator.config.slug}-client{client}",
        lambda: drawing.draw(views, simulator, client, wanted.profile.name, files.width or COLUMN),
    )


@figure.command()
@_algos
@click.option(
    "--x", type=click.Choice(COSTS), default=COSTS[0], show_default=True, help="Accuracy over what."
)
@click.option("--paper", is_flag=True, help="Also the paper's accuracies, where it has them.")
@_settings(_OF_RUN)
@_seeds
@_sources
@_running
@_output
def curves(algos: str | None, x: str, paper: bool, **options: Any) -> None:
    """Accuracy over iterations, communicated bytes or seconds, several methods, all seeds."""
    from pfl_bench.cli.shared import algorithms, methods
    from pfl_bench.reporting import published_accuracy
    from pfl_bench.reporting.figures import curves as drawing

    wanted, files = _asked(options, are_averaged=True)
    names = algorithms(_several(algos, wanted.chosen))
    if paper and wanted.config(names[0]).source == "standin":
        raise UserError("--paper says nothing about a stand-in; it needs --source real")
    shown = methods(wanted, names, are_timed=x == "seconds")
    levels = {m.title: published_accuracy(m.trials[0].config) for m in shown} if paper else {}
    known = {title: level for title, level in levels.items() if level is not None}
    files.write(
        f"curves-{_place(wanted.config(names[0]))}-{x}",
        lambda: drawing.draw(shown, x, wanted.profile.name, files.width or COLUMN, known),
    )


@figure.command()
@_algos
@_settings(_OF_RUN)
@_seeds
@_sources
@_running
@_output
def clients(algos: str | None, **options: Any) -> None:
    """The accuracy of every client and its spread, several methods."""
    from pfl_bench.cli.shared import algorithms, methods
    from pfl_bench.reporting.figures import clients as drawing

    wanted, files = _asked(options, are_averaged=True)
    names = algorithms(_several(algos, wanted.chosen))
    shown = methods(wanted, names)
    files.write(
        f"clients-{_place(wanted.config(names[0]))}",
        lambda: drawing.draw(shown, wanted.profile.name, files.width or COLUMN),
    )


def _method(algo: str | None, chosen: dict[str, Any]) -> str:
    return str(algo or chosen.get("algo", "fedcp"))


def _several(algos: str | None, chosen: dict[str, Any]) -> str:
    return str(chosen.get("algo", SOME) if algos is None else algos)


def _place(config: RunConfig) -> str:
    """What several methods share of the names of their runs."""
    return config.slug.removeprefix(f"{config.algo}-").removesuffix(f"-s{config.seed}")


class Files:
    """Where a figure goes, one file or a folder and several formats, and how wide it is; None
    leaves that to the figure."""

    def __init__(self, out: str, formats: str | None, width: str | None):
        from pfl_bench.base import picture_format

        self.width = None if width is None else WIDTHS[width]
        self._path = user_path(out)
        # A name with a suffix is a file's, unless there is such a folder or the user says so.
        is_folder = not self._path.suffix or self._path.is_dir() or out.endswith(("/", "\\"))
        self._formats = _formats(formats or "png,svg")
        self._file = None if is_folder else self._path
        if self._file is not None:
            kind = picture_format(self._file)
            if formats is not None and self._formats != [kind]:
                raise UserError(f"--format {formats} contradicts --out {out}")

    def write(self, name: str, draw: Callable[[], Figure]) -> None:
        from pfl_bench.base import plot_style

        paths = [self._file] if self._file else [self._path / f"{name}.{f}" for f in self._formats]
        with plot_style.drawing(name, plot_style.PAPER):
            plot_style.save(draw(), *paths, dpi=plot_style.PRINT_DPI)
        for path in paths:
            click.echo(f"wrote {path}")


def _formats(text: str) -> list[str]:
    found = commas.names("--format", text.lower())
    for name in found:
        if name not in FORMATS:
            raise unknown("picture format", name, FORMATS)
    return found
