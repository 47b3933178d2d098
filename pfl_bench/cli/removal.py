"""`pfl-bench results rm` and `prune`: take runs, or what serves nobody, out of the store.

Both show first what goes and ask; nothing outside the store is touched, no link is followed, and a
run that is being computed stays."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pfl_bench.api import named_run
from pfl_bench.base import UserError, results_dir, size_in_words
from pfl_bench.cli.results import filters, results_option, selected
from pfl_bench.store import Store, StoredRun

FAILED = 1
UNFINISHED = "interrupted"


@dataclass(frozen=True)
class _Piece:
    """Something that goes: a run, or its trained model alone."""

    run: StoredRun
    size: int
    is_model: bool = False

    def __str__(self) -> str:
        run = self.run
        if self.is_model:
            return f"the model of {run.path.name}, {size_in_words(self.size)}"
        best = f", best accuracy {run.end.best.accuracy:.2%}" if run.end.best else ""
        return f"{run.path.name} ({run.damage or run.status}{best}), {size_in_words(self.size)}"


def _asking(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        results_option,
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Show what would go; remove nothing."),
    ):
        command = option(command)
    return command


@click.command("rm")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@filters
@_asking
def rm(
    keys: tuple[str, ...],
    algo: str | None,
    dataset: str | None,
    setting: str | None,
    dry_run: bool,
    yes: bool,
    folder: Path | None,
) -> None:
    """Remove runs from the store, for good.

    KEY is the beginning of a run's key as `results list` prints it, or its folder; --algo,
    --dataset and --setting mean every run that agrees with all of them. A run that is being
    computed is refused."""
    store = _writable(folder)
    wanted = {"algo": algo, "dataset": dataset, "setting": setting}
    is_filtered = any(value is not None for value in wanted.values())
    if is_filtered == bool(keys):
        raise UserError(
            "`results rm` needs the keys of runs, or --algo, --dataset or --setting"
            + (", not both" if keys else "")
        )
    runs = selected(store, **wanted) if is_filtered else [named_run(key, store) for key in keys]
    pieces = [_whole(run) for run in {run.path.resolve(): run for run in runs}.values()]
    _clear(store, pieces, dry_run, yes)


@click.command()
@click.option("--interrupted", is_flag=True, help="Also unfinished runs, which could continue.")
@click.option("--models", is_flag=True, help="Also the trained models that are kept.")
@_asking
def prune(interrupted: bool, models: bool, dry_run: bool, yes: bool, folder: Path | None) -> None:
    """Remove what serves nobody: damaged runs, and those begun without a record.

    Finished results stay, and so does what is being computed."""
    store = _writable(folder)
    statuses = ("damaged", "begun", *([UNFINISHED] if interrupted else []))
    pieces = []
    for run in store.all():
        if run.status in statuses and store.holder(run) is None:
            pieces.append(_whole(run))
        elif models and run.is_final and run.model_bytes:
            pieces.append(_Piece(run, run.model_bytes, is_model=True))
    if not dry_run:
        store.tidy()
    _clear(store, pieces, dry_run, yes)


def _writable(folder: Path | None) -> Store:
    store = Store(results_dir(folder))
    if store.is_archive:
        raise UserError(f"{store.root} is an archive, and nothing is removed from one")
    return store


def _whole(run: StoredRun) -> _Piece:
    return _Piece(run, _bytes_in(run.path))


def _clear(store: Store, pieces: Sequence[_Piece], dry_run: bool, yes: bool) -> None:
    """Show the pieces, ask, remove them; exit code 1 where one had to stay."""
    for piece in pieces:
        computing = store.holder(piece.run)
        stays = f"; stays, it is being computed by {computing}" if computing else ""
        click.echo(f"{piece}{stays}")
    total = f"{len(pieces)} of them" if len(pieces) > 1 else "that"
    size = size_in_words(sum(piece.size for piece in pieces))
    if not pieces:
        click.echo(f"nothing to remove in {store.root}")
        return
    if dry_run:
        click.echo(f"{total} would be removed, {size}; nothing is, because of --dry-run")
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(f"nothing is removed unasked: --yes removes {total}, {size}")
        if not click.confirm(f"Remove {total}, {size}, for good?"):
            return
    freed, kept = 0, 0
    for piece in pieces:
        try:
            (store.remove_model if piece.is_model else store.remove)(piece.run)
            freed += piece.size
        except UserError as error:
            kept += 1
            click.echo(f"stays: {error}", err=True)
    click.echo(f"{len(pieces) - kept} removed, {size_in_words(freed)}", err=True)
    if kept:
        raise click.exceptions.Exit(FAILED)


def _bytes_in(folder: Path) -> int:
    """What the files in a folder take; a link is as large as itself."""
    if folder.is_symlink():
        return folder.lstat().st_size
    files = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files if file.exists() or file.is_symlink())
