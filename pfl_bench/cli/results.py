"""`pfl-bench results`: look at what the store holds, pack it into an archive, merge one. Nothing
here computes or changes a run, nor imports the numerical libraries before they are needed; what
removes runs is in `removal`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from pfl_bench.api import SHORT_KEY, named_run
from pfl_bench.base import (
    UserError,
    plain,
    results_dir,
    shown,
    standard_output,
    unknown,
    user_path,
    write_atomically,
)
from pfl_bench.config import BOOKKEEPING, SOURCE_LABELS
from pfl_bench.reporting import round_row, run_row, scored, sparkline
from pfl_bench.store import Store, StoredRun, flat, is_archive, merge, pack, to_json

_Command = TypeVar("_Command", bound=Callable[..., Any])

# What always identifies a run in a table of rounds; what is the same in all is one `results export`
# away.
_IDENTITY = ("algo", "dataset", "source", "setting", "beta", "clients", "seed")

results_option = click.option(
    "--results",
    "folder",
    type=click.Path(path_type=Path),
    help="The result store (default: $PFL_BENCH_RESULTS, else ./results).",
)


def filters(command: _Command) -> _Command:
    for name, what in (("setting", "setting"), ("dataset", "dataset"), ("algo", "algorithm")):
        command = click.option(f"--{name}", help=f"Only runs of this {what}.")(command)
    return command


@click.group()
def results() -> None:
    """List, show, export, pack, merge and remove stored results."""


@results.command("list")
@filters
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@results_option
def list_(
    algo: str | None, dataset: str | None, setting: str | None, as_json: bool, folder: Path | None
) -> None:
    """One line per stored run."""
    root = results_dir(folder)
    runs = selected(Store(root), algo=algo, dataset=dataset, setting=setting)
    if as_json:
        click.echo(to_json([_overview(run) for run in runs], indent=2))
        return
    if not runs:
        click.echo(_nothing(root, any((algo, dataset, setting))))
        return
    _print_table(runs)
    for run in runs:
        if run.damage:
            click.echo(f"damaged: {run.path.name}: {run.damage}", err=True)


@results.command()
@click.argument("key")
@results_option
def show(key: str, folder: Path | None) -> None:
    """Configuration, figures and provenance of one run.

    KEY is the beginning of the run's key as `results list` prints it, or its folder."""
    run = named_run(key, Store(results_dir(folder)))
    summary = dict(run.summary or {})
    origin = summary.pop("provenance", {})
    click.echo(f"{run.path.name}: {run.status}")
    if run.damage:
        click.echo(f"  {run.damage}")
    if curve := scored(run.records()):
        click.echo(f"\naccuracy  {sparkline(curve)}")
    if run.model_bytes:
        click.echo(f"\nmodel     kept, {run.model_bytes / 1e6:.1f} MB")
    for title, section in (("configuration", run.config), ("summary", summary),
                           ("provenance", origin)):  # fmt: skip
        _print_section(title, section)


@results.command()
@click.option("--out", type=click.Path(path_type=Path), help="The CSV file (default: print it).")
@click.option("--rounds", is_flag=True, help="One row per round instead of one per run.")
@filters
@results_option
def export(
    out: Path | None,
    rounds: bool,
    algo: str | None,
    dataset: str | None,
    setting: str | None,
    folder: Path | None,
) -> None:
    """Stored results as CSV, one row per run or per round."""
    root = results_dir(folder)
    runs = selected(Store(root), algo=algo, dataset=dataset, setting=setting)
    if not runs:
        click.echo(_nothing(root, any((algo, dataset, setting))), err=True)
        return

    import pandas as pd

    from pfl_bench.reporting.tables import markup

    frame = pd.DataFrame(_round_rows(runs) if rounds else map(run_row, runs))
    csv = markup.csv(frame)
    if out is None:
        click.echo(csv, nl=False)
        return
    out = user_path(out)
    try:
        write_atomically(out, csv)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from error
    click.echo(f"{len(frame)} rows written to {out}", err=True)


@results.command("pack")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The archive (default: FOLDER.zip).")
@click.option("--models", is_flag=True, help="With the trained models that are kept.")
def pack_(folder: Path, out: Path | None, models: bool) -> None:
    """Pack the finished runs of a results FOLDER into one file, to be shared.

    The archive serves wherever --results is asked for."""
    store = Store(user_path(folder).absolute())
    if out is None and not store.root.name:
        raise UserError(f"{store.root} has no name to call an archive by; give one with --out")
    target = store.root.with_suffix(".zip") if out is None else user_path(out)
    if target.suffix != ".zip":
        raise UserError(f"an archive cannot be called {shown(target.name)}; its name ends in .zip")
    count, left_out = pack(store.all(), target, with_models=models)
    for name in left_out:
        click.echo(f"left out: {name}", err=True)
    click.echo(f"{count} runs packed into {target}, {target.stat().st_size / 1e6:.1f} MB", err=True)


@results.command("merge")
@click.argument("archive", type=click.Path(path_type=Path))
@results_option
def merge_(archive: Path, folder: Path | None) -> None:
    """Copy the finished runs of an ARCHIVE, or of another folder, into the store.

    What the store has already stays as it is; a different result of the same name is told."""
    target = Store(results_dir(folder))
    source = Store(user_path(archive))
    if target.is_archive:
        raise UserError(f"{target.root} is an archive and cannot be written; name a folder")
    if not source.root.exists():
        raise UserError(f"there is no archive {str(source.root)!r}")
    merged = merge(source.all(), target.root)
    for name in merged.conflicts:
        click.echo(f"conflict: {name} is another result here, which stays", err=True)
    added, known = len(merged.added), len(merged.known)
    click.echo(f"{added} runs added to {target.root}, {known} were there already", err=True)
    if merged.models:
        click.echo(f"{len(merged.models)} of those now have a trained model too", err=True)
    if merged.attacks:
        click.echo(f"{len(merged.attacks)} runs here now have more attacks on them", err=True)
    if merged.conflicts:
        raise click.exceptions.Exit(1)


_FILTERED = {"algo": "algorithm", "dataset": "dataset", "setting": "setting"}


def selected(store: Store, **wanted: str | None) -> list[StoredRun]:
    """The runs whose configuration agrees with every filter given, in reading order."""

    def agrees(run: StoredRun) -> bool:
        return all(
            plain(str(run.config.get(name, ""))) == plain(value)
            for name, value in wanted.items()
            if value is not None
        )

    runs = list(store.all())
    for name, value in wanted.items():
        stored = {str(run.config.get(name, "")) for run in runs}
        if value is not None and runs and plain(value) not in map(plain, stored):
            raise unknown(f"{_FILTERED[name]} among the results", value, stored - {""})

    def place(run: StoredRun) -> tuple[str, str, float, str, float]:
        config = run.config
        return (
            str(config.get("dataset", "")),
            str(config.get("setting", "")),
            float(config.get("beta") or 0),
            str(config.get("algo", "")),
            float(config.get("seed") or 0),
        )

    return sorted(filter(agrees, runs), key=place)


def _nothing(root: Path, filtered: bool) -> str:
    if filtered:
        return f"No run in {root} matches; `pfl-bench results list` shows all."
    if root.is_file() and not is_archive(root):
        raise UserError(f"{root} is a file, not a folder of results")
    return f"No results in {root} yet; `pfl-bench run --algo fedavg` makes the first."


def _overview(run: StoredRun) -> dict[str, Any]:
    """What `list` tells of a run."""
    end = run.end
    return {
        "key": run.key,
        "path": str(run.path),
        **{name: run.config.get(name) for name in _IDENTITY},
        "rounds": end.rounds if run.summary else len(run.records()),
        "best_accuracy": end.best.accuracy if end.best else None,
        "status": run.status,
        "reason": end.reason,
        "finished": end.finished,
        "model_bytes": run.model_bytes,
        "problem": run.damage,
    }


def _print_table(runs: Iterable[StoredRun]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    runs = list(runs)
    differing = _differing(runs)
    for title in ("algorithm", "dataset", "setting", *(["differs in"] if differing else [])):
        table.add_column(title)
    for title in ("seed", "rounds", "best %"):
        table.add_column(title, justify="right")
    for title in ("status", "when (UTC)", "key"):
        table.add_column(title, no_wrap=True)
    for run in runs:
        line = _overview(run)
        table.add_row(
            _text(line["algo"]),
            _text(line["dataset"]) + SOURCE_LABELS.get(str(line["source"]), ""),
            _setting(run.config),
            *([differing.get(run.key, "")] if differing else []),
            _text(line["seed"]),
            _text(line["rounds"]),
            "–" if line["best_accuracy"] is None else f"{100 * line['best_accuracy']:.2f}",
            run.status,
            _text(line["finished"])[:16].replace("T", " "),
            run.key[:SHORT_KEY],
        )
    standard_output().print(table)


# Columns of their own, or nothing that a reader could tell apart.
_SHOWN = {*_IDENTITY, *BOOKKEEPING, "sampled_from", "data_fingerprint"}


def _differing(runs: Iterable[StoredRun]) -> dict[str, str]:
    """By key: what most runs of the same algorithm, dataset and setting do not share."""
    groups: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for run in runs:
        same = tuple(str(run.config.get(name)) for name in ("algo", "dataset", "setting"))
        cells = {name: value for name, value in flat(run.config).items() if name not in _SHOWN}
        groups.setdefault(same, {})[run.key] = cells
    found = {}
    for group in groups.values():
        counts = Counter((n, str(value)) for cells in group.values() for n, value in cells.items())
        for key, cells in group.items():
            rare = {n: v for n, v in cells.items() if 2 * counts[n, str(v)] <= len(group)}
            if rare:
                found[key] = ", ".join(f"{n.removeprefix('hyper.')}={v}" for n, v in rare.items())
    return found


def _setting(config: dict[str, Any]) -> str:
    """The setting in a paper's words: `practical β=0.1, 20 clients`."""
    parts = _text(config.get("setting"))
    if config.get("beta") is not None:
        parts += f" β={config['beta']}"
    if config.get("clients") is not None:
        sampled = f"|{config['sampled_from']}" if config.get("sampled_from") else ""
        parts += f", {config['clients']}{sampled} clients"
    return parts


def _text(value: object) -> str:
    return "–" if value is None else str(value)


def _print_section(title: str, section: dict[str, Any]) -> None:
    if not section:
        return
    cells = flat(section)
    width = max(map(len, cells), default=0)
    click.echo(f"\n{title}")
    for name, value in cells.items():
        click.echo(f"  {name:<{width}}  {_text(value)}")


def _round_rows(runs: Sequence[StoredRun]) -> Iterator[dict[str, Any]]:
    """All rounds, each with what identifies its run: the usual, and all else that differs."""
    configs = [flat(run.config) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    differing = (n for n in names if len({to_json(config.get(n)) for config in configs}) > 1)
    telling = [n for n in dict.fromkeys((*_IDENTITY, *differing)) if n not in BOOKKEEPING]
    for run, config in zip(runs, configs, strict=True):
        identity = {"key": run.key, **{name: config.get(name) for name in telling}}
        yield from (identity | round_row(record) for record in run.records())
