"""`pfl-bench data`: which datasets there are, preparing them, checking and noting what is."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pfl_bench.base import UserError, meant, shown, standard_error, standard_output, user_path

if TYPE_CHECKING:
    from pfl_bench.data import Columns

data_dir_option = click.option(
    "--data-dir",
    metavar="DIR",
    help="Folder of prepared datasets; PFL_BENCH_DATA where not given.",
)


@click.group()
def data() -> None:
    """Datasets: list, prepare, check, note, partition."""


@data.command("list")
@data_dir_option
def list_command(data_dir: str | None) -> None:
    """Every dataset, its shape, its stand-in, and whether the real one is prepared."""
    from rich.table import Table

    from pfl_bench.base import data_dir as resolve
    from pfl_bench.data import broken, own_names, specs

    folder = resolve(data_dir)
    table = Table("name", "title", "shape", "classes", "stand-in", "prepared")
    for spec in specs().values():
        standin = "yes" if spec.standin else "no"
        prepared = _prepared(spec.name, folder) if (folder / spec.filename).exists() else "no"
        table.add_row(
            spec.name, spec.title, _shape(spec.shape), str(spec.classes), standin, prepared
        )
    for name in own_names(folder):
        table.add_row(name, "your own", *_own_row(name, folder))
    console = standard_output(pipe_width=None)
    console.print(table)
    console.print(f"prepared sets are looked for in {folder}", soft_wrap=True)
    for plugin, reason in broken().items():
        click.echo(f"the dataset plugin {plugin} is left out: {reason}", err=True)


def _own_row(name: str, folder: Path) -> tuple[str, str, str, str]:
    from pfl_bench.data import describe

    try:
        spec = describe(name, folder)
    except UserError as error:
        return "?", "?", "no", f"broken: {error}"
    return _shape(spec.shape), str(spec.classes), "no", _prepared(name, folder)


def _prepared(name: str, folder: Path) -> str:
    from pfl_bench.data import card, describe

    try:
        with _reading(name):
            known, spec = card(name, "real", folder), describe(name, folder)
            size = (folder / spec.filename).stat().st_size
            said = _noted(name, folder)
    except UserError as error:
        return f"broken: {error}"
    return f"{spec.counted(known.samples)} samples, {size / 1e6:,.1f} MB{said}"


def _noted(name: str, folder: Path) -> str:
    """The user's note as it stands at the end of a line, if there is one."""
    from pfl_bench.data import note

    return f"; {said}" if (said := note(name, folder)) else ""


def _reading(name: str) -> AbstractContextManager[object]:
    """A sign of life on a terminal: a large file that was not read before takes seconds."""
    return standard_error().status(f"reading {name}")


def _shape(shape: tuple[int, int, int] | None) -> str:
    return "×".join(map(str, shape)) if shape else "text"


@data.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    metavar="PATH",
    help="A folder that torchvision downloaded to, a folder of class folders, or a CSV file.",
)
@click.option(
    "--size",
    metavar="SIDE|HxW",
    help="Resize the images of a set of your own, as in 64 or 48x64; else all must be alike.",
)
@click.option("--label-column", metavar="NAME", help="The class in a CSV file with a header.")
@click.option(
    "--text-column", metavar="A,B", help="The text in a CSV file; several columns are joined."
)
@click.option(
    "--client-column",
    metavar="NAME",
    help="To whom a row of a CSV file belongs; makes --setting natural possible.",
)
@click.option(
    "--min-samples",
    type=click.IntRange(2),
    default=8,
    show_default=True,
    help="Leave out clients of --client-column with fewer rows.",
)
@click.option("--force", is_flag=True, help="Make it again when it is already prepared.")
@data_dir_option
def prepare(
    name: str,
    source: str | None,
    size: str | None,
    label_column: str | None,
    text_column: str | None,
    client_column: str | None,
    min_samples: int,
    force: bool,
    data_dir: str | None,
) -> None:
    """Download or convert a dataset, or make one of your own from images or CSV.

    NAME is one of `pfl-bench data list`, or a new name for a set of your own.
    """
    from pfl_bench.base import data_dir as resolve
    from pfl_bench.cli.shared import commas
    from pfl_bench.data import Columns, specs, write_note

    folder = resolve(data_dir)
    origin = _existing(source)
    name = meant(name, specs())
    spec = specs().get(name)
    texts = () if text_column is None else tuple(commas.names("--text-column", text_column))
    columns = Columns(label_column, texts, client_column)
    if spec is not None and columns.are_named:
        raise UserError(f"columns are named for sets of your own; {spec.title} has its own")
    if spec is None:
        _prepare_own(name, folder, origin, size, columns, min_samples, force)
        write_note(name, folder, "")  # what was said of an earlier file
    elif size is not None:
        raise UserError(f"--size is for sets of your own; {spec.title} has its own size")
    elif spec.prepare is None:
        raise UserError(f"{spec.title} cannot be prepared: it is only known as a stand-in")
    elif force or not (folder / spec.filename).exists():
        _writing(folder)
        spec.prepare(folder / spec.filename, origin)
        write_note(name, folder, "")
    else:
        click.echo(f"{name} is already prepared; --force makes it again", err=True)
    click.echo(_verdict(name, folder))


@data.command("note")
@click.argument("name")
@click.argument("text")
@data_dir_option
def note_command(name: str, text: str, data_dir: str | None) -> None:
    """Say TEXT of a prepared dataset wherever its figures appear, such as 'JPEG copy'.

    It is kept with every result from then on; an empty TEXT takes it back.
    """
    from pfl_bench.base import data_dir as resolve
    from pfl_bench.data import card, describe, write_note

    folder = resolve(data_dir)
    name = describe(name, folder).name
    card(name, "real", folder)  # refuses what is not there
    write_note(name, folder, text)
    click.echo(_verdict(name, folder))


def _existing(source: str | None) -> Path | None:
    if source is None:
        return None
    path = user_path(source)
    if not path.exists():
        raise UserError(f"--from names {path}, which does not exist")
    return path


def _writing(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from error


def _prepare_own(
    name: str,
    folder: Path,
    origin: Path | None,
    size: str | None,
    columns: Columns,
    min_samples: int,
    force: bool,
) -> None:
    """A folder is an image set, a CSV file a text set."""
    from pfl_bench.base import unknown
    from pfl_bench.data import check_name, convert, own_names, specs

    check_name(name)
    if origin is None:
        raise UserError(
            f"{unknown('dataset', name, specs())}; a set of your own is made with "
            f"`pfl-bench data prepare {name} --from PATH`"
        )
    if name in own_names(folder) and not force:
        raise UserError(f"{folder} already has a dataset {name!r}: choose another name or --force")
    pixels = _size(size)
    _writing(folder)
    if origin.is_dir() and columns.are_named:
        raise UserError(f"columns are named in a CSV file, but {origin} is a folder")
    if origin.is_dir():
        convert.from_class_folders(folder / f"{name}.npz", origin, size=pixels)
        (folder / f"{name}.csv").unlink(missing_ok=True)
    elif size is not None:
        raise UserError(f"--size is for images, but {origin} is a file")
    else:
        dropped = convert.from_csv(
            folder / f"{name}.csv", origin, columns=columns, least=min_samples
        )
        if dropped:
            click.echo(
                f"{dropped} clients with fewer than {min_samples} rows are left out "
                "(--min-samples)",
                err=True,
            )
        (folder / f"{name}.npz").unlink(missing_ok=True)


def _size(size: str | None) -> tuple[int, int] | None:
    """(height, width)"""
    if size is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,3})(?:[x×]([1-9]\d{0,3}))?", size)
    if match is None:
        raise UserError(
            f"--size is a side such as 64 or HEIGHTxWIDTH such as 48x64, not {shown(size)}"
        )
    height, width = match.groups()
    return int(height), int(width or height)


def _verdict(name: str, folder: Path) -> str:
    """One line on a prepared file, read anew; a `UserError` if it is broken."""
    from pfl_bench.data import Card, describe, load

    with _reading(name):
        spec = describe(name, folder)
        name, card = spec.name, Card.of(load(name, "real", folder))
        path = folder / spec.filename
    words = f", {card.vocabulary:,} words" if card.vocabulary else ""
    if card.clients:
        words += f", {card.clients:,} clients of its own (--setting natural)"
    per_class = f"{card.smallest_class:,} to {card.largest_class:,} per class"
    said = _noted(name, folder)
    return (
        f"{name}: {spec.counted(card.samples)} samples of {_shape(card.shape)} {card.dtype} in "
        f"{card.classes} classes ({per_class}){words}, fingerprint {card.fingerprint}, {path}{said}"
    )


@data.command()
@click.argument("names", nargs=-1)
@data_dir_option
@click.pass_context
def check(context: click.Context, names: tuple[str, ...], data_dir: str | None) -> None:
    """Verify prepared files: shape, types, labels, counts, fingerprint.

    Without NAMES all that the folder holds. The exit code is 2 if any file is broken.
    """
    from pfl_bench.base import data_dir as resolve
    from pfl_bench.data import own_names, specs

    folder = resolve(data_dir)
    present = [name for name, spec in specs().items() if (folder / spec.filename).exists()]
    chosen = names or (*present, *own_names(folder))
    if not chosen:
        click.echo(
            f"nothing is prepared in {folder} (--data-dir or PFL_BENCH_DATA); "
            "`pfl-bench data prepare cifar10` gets Cifar10, `pfl-bench data list` shows the others"
        )
    failures = 0
    for name in chosen:
        try:
            click.echo(_verdict(name, folder))
        except UserError as error:
            failures += 1
            click.echo(f"{name}: broken: {error}")
    if failures:
        context.exit(2)
