"""`pfl-bench figure NAME`: pictures of any method's runs, and those that a method brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pfl_bench.api import COMPARING
from pfl_bench.base import COLUMN, FORMATS, PAGE, UserError, paths, unknown, user_path
from pfl_bench.cli.run import run_options
from pfl_bench.cli.shared import AskedTable, commas, running_options
from pfl_bench.config import DATA_OPTIONS, OPTIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pfl_bench.cli.shared import Wanted
    from pfl_bench.config import RunConfig
    from pfl_bench.reporting.figures import MethodFigure, Option

Command = Callable[..., Any]

WIDTHS = {"column": COLUMN, "page": PAGE}
COSTS = ("iterations", "bytes", "seconds")
SOME = "fedavg,fedper,fedcp"

# What decides who gets which sample; the model, because a profile may have a word on it.
_OF_DATA = (*DATA_OPTIONS, "partition", "model")
# What a run has beside its method; which series to record follows from the figure.
_OF_RUN = tuple(name for name in OPTIONS if name not in ("algo", "record"))


class Figures(click.Group):
    """The figures of any method and, after them, those that methods bring; names the nearest where
    there is none of the name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from pfl_bench.reporting.figures import method_figures

        return [*self.commands, *(name for name in method_figures() if name not in self.commands)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from pfl_bench.reporting.figures import method_figure

        if (found := super().get_command(ctx, cmd_name)) is not None:
            return found
        if cmd_name not in (known := self.list_commands(ctx)):
            raise unknown("figure", cmd_name, known)
        return _of_method(cmd_name, method_figure(cmd_name))


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


def _of_a_run(names: tuple[str, ...]) -> Callable[[Command], Command]:
    return lambda command: run_options(command, names)


_algo = click.option("--algo", metavar="NAME", help="The algorithm (default fedcp).")
_algos = click.option("--algos", metavar="A,B", help=f"The algorithms, or all (default {SOME}).")
_seeds = click.option("--seeds", metavar="INT", help="Runs per method, beginning with --seed.")
_sources = _together(
    running_options("profile", "data_dir"),
    click.option("--config", "config_file", metavar="FILE", help="Options from a YAML file."),
)
of_data = _together(_of_a_run(_OF_DATA), _sources)
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
    click.option(
        "--no-title", "untitled", is_flag=True, help="Leave what the title says to your caption."
    ),
)  # fmt: skip
_running = _together(
    click.option(
        "--set", "sets", multiple=True, metavar="NAME=VALUE",
        help="A hyper-parameter, for the methods that have it; repeatable.",
    ),
    running_options("plugins"),
    click.option("--results", "results_folder", metavar="DIR",
                 help="The store (default ./results)."),
    running_options("workers", "device"),
    click.option("--quiet", is_flag=True, help="No progress."),
)  # fmt: skip

_HOW = ("profile", "data_dir", "config_file", "sets", "plugins", "results_folder", "workers",
        "device", "quiet", "seeds")  # fmt: skip


def _asked(options: dict[str, Any], are_averaged: bool = False) -> tuple[Wanted, Files]:
    """What to draw from and where to put it, all checked before anything runs."""
    from pfl_bench.cli.shared import read

    files = Files.asked(options)
    how = {name: options.pop(name) for name in _HOW if name in options}
    return read(options, are_averaged=are_averaged, **how), files


@figure.command("list")
@click.pass_context
def list_(ctx: click.Context) -> None:
    """Say what each figure shows."""
    names = [name for name in figure.list_commands(ctx) if name != "list"]
    width = max(map(len, names))
    for name in names:
        command = figure.get_command(ctx, name)
        assert command is not None
        click.echo(f"{name:<{width}}  {command.get_short_help_str(limit=200)}")


def _of_method(name: str, shown: MethodFigure) -> click.Command:
    """The command of a figure that a method brings."""

    def drawn(algo: str | None, **options: Any) -> None:
        from pfl_bench.cli.shared import kept_model, methods, trained_model, without_series

        own = {option.name: options.pop(option.name) for option in shown.options}
        wanted, files = _asked(options)
        chosen = _method(algo, wanted.chosen, shown.algo)
        config = wanted.config_here(chosen) if shown.of_model else wanted.config(chosen)
        shown.check(config, wanted.data_dir, **own)
        told = "".join(f"-{option}{own[option]}" for option in shown.told)
        draw = shown.draw
        kept = shown.draw_kept and without_series(wanted, chosen, shown.series)
        if shown.of_model:
            source: Any = trained_model(wanted, chosen)
            config = source.config
        elif shown.draw_kept and kept:
            source, draw = kept_model(kept[0], wanted), shown.draw_kept
            config = source.config
        else:
            (source,) = methods(wanted, [chosen], shown.series)
            config = source.trials[0].config
        files.write(
            f"{name}-{config.slug}{told}",
            lambda: draw(source, wanted.profile.name, files.width or COLUMN, **own),
        )

    algo = click.option("--algo", metavar="NAME", help=f"The algorithm (default {shown.algo}).")
    own = (_as_click(option) for option in shown.options)
    decorate = _together(algo, *own, _of_a_run(_OF_RUN), _sources, _running, _output)
    return click.command(name, help=shown.about)(decorate(drawn))


def _as_click(option: Option) -> Callable[[Command], Command]:
    kind: Any = option.kind
    if option.low is not None or option.high is not None:
        bounded: Any = click.IntRange if option.kind is int else click.FloatRange
        kind = bounded(option.low, option.high)
    return click.option(
        f"--{option.name}", type=kind, default=option.default, help=option.help,
        show_default=option.default is not None,
    )  # fmt: skip


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
@_of_a_run(_OF_RUN)
@_seeds
@_sources
@_running
@_output
def convergence(algo: str | None, **options: Any) -> None:
    """Training loss and test accuracy before and after local learning, per iteration."""
    from pfl_bench.cli.shared import methods, without_series
    from pfl_bench.reporting.figures import convergence as drawing

    wanted, files = _asked(options)
    chosen = _method(algo, wanted.chosen)
    series = () if without_series(wanted, chosen, drawing.SERIES) else drawing.SERIES
    (method,) = methods(wanted, [chosen], series)
    files.write(
        f"convergence-{method.trials[0].config.slug}",
        lambda: drawing.draw(method, wanted.profile.name, files.width or COLUMN),
    )


@figure.command()
@_algos
@click.option(
    "--x", type=click.Choice(COSTS), default=COSTS[0], show_default=True, help="Accuracy over what."
)
@click.option("--paper", is_flag=True, help="Also the paper's accuracies, where it has them.")
@_of_a_run(_OF_RUN)
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
@_of_a_run(_OF_RUN)
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


def _of_table(command: Command) -> Command:
    """The options of a figure that is drawn from a table's stored results."""
    return _together(
        click.option("--table", "name", default="main", show_default=True, metavar="NAME|FILE.yaml",
                     help="Whose methods."),
        running_options("profile"),
        click.option("--seeds", type=click.IntRange(1, 1000),
                     help="Per cell (default: the profile's)."),
        click.option("--rows", multiple=True, metavar="A,B",
                     help="Only these rows (or algorithms)."),
        click.option("--columns", multiple=True, metavar="A,B", help="Only these columns."),
        click.option("--add-rows", "added", multiple=True, metavar="A,B",
                     help="These algorithms too."),
        click.option("--score", metavar="NAME", help="What counts, as in `table`."),
        _of_a_run(COMPARING),
        click.option("--tuned", "tuned_file", metavar="FILE",
                     help="Values that `pfl-bench tune` found."),
        click.option("--plugin", "plugins", multiple=True, metavar="FILE",
                     help="An algorithm in a file."),
        click.option("--results", "results_folder", metavar="DIR",
                     help="The store (default ./results)."),
        click.option("--data-dir", metavar="DIR", help="Prepared datasets; implies real data."),
        _output,
    )(command)  # fmt: skip


def _drawn_from_table(name: str, draw: Callable[..., Figure], options: dict[str, Any]) -> None:
    from pfl_bench.reporting import ReadStore

    files = Files.asked(options)
    store = ReadStore(paths.results_dir(options["results_folder"]))
    plan = AskedTable.of(options).stored(store, options["seeds"], options["score"])
    stem = f"{name}-{plan.spec.stem}-{plan.profile.name}"
    files.write(stem, lambda: draw(plan, files.width or PAGE))


@figure.command()
@_of_table
def ranks(**options: Any) -> None:
    """Average ranks of a table's methods, with the critical difference; from what is stored."""
    from pfl_bench.reporting.figures import ranks as drawing

    _drawn_from_table("ranks", drawing.draw, options)


@figure.command()
@_of_table
def profiles(**options: Any) -> None:
    """How often each of a table's methods is how near to the best; from what is stored."""
    from pfl_bench.reporting.figures import profiles as drawing

    _drawn_from_table("profiles", drawing.draw, options)


def _method(algo: str | None, chosen: dict[str, Any], default: str = "fedcp") -> str:
    return str(algo or chosen.get("algo", default))


def _several(algos: str | None, chosen: dict[str, Any]) -> str:
    return str(chosen.get("algo", SOME) if algos is None else algos)


def _place(config: RunConfig) -> str:
    """What several methods share of the names of their runs."""
    return config.slug.removeprefix(f"{config.algo}-").removesuffix(f"-s{config.seed}")


class Files:
    """Where a figure goes, one file or a folder and several formats, and how wide it is; None
    leaves that to the figure."""

    def __init__(self, out: str, formats: str | None, width: str | None, untitled: bool = False):
        from pfl_bench.base import picture_format

        self.width = None if width is None else WIDTHS[width]
        self._titled = not untitled
        self._path = user_path(out)
        # A name with a suffix is a file's, unless there is such a folder or the user says so.
        is_folder = not self._path.suffix or self._path.is_dir() or out.endswith(("/", "\\"))
        self._formats = _formats(formats or "png,svg")
        self._file = None if is_folder else self._path
        if self._file is not None:
            kind = picture_format(self._file)
            if formats is not None and self._formats != [kind]:
                raise UserError(f"--format {formats} contradicts --out {out}")

    @classmethod
    def asked(cls, options: dict[str, Any]) -> Files:
        """As the flags say, which are taken out of the options."""
        return cls(*(options.pop(name) for name in ("out", "formats", "width", "untitled")))

    def write(self, name: str, draw: Callable[[], Figure]) -> None:
        from pfl_bench.base import plot_style

        files = [self._file] if self._file else [self._path / f"{name}.{f}" for f in self._formats]
        with plot_style.drawing(name, plot_style.PAPER):
            plot_style.save(draw(), *files, dpi=plot_style.PRINT_DPI, titled=self._titled)
        for path in files:
            click.echo(f"wrote {path}")


def _formats(text: str) -> list[str]:
    found = commas.names("--format", text.lower())
    for name in found:
        if name not in FORMATS:
            raise unknown("picture format", name, FORMATS)
    return found
