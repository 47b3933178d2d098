"""`pfl-bench report`: all that is stored as one page for a browser."""

from __future__ import annotations

from pathlib import Path

import click

_NAMED = 5
"""So many damaged runs are named on the terminal; the page names all."""


@click.command()
@click.option("--results", "results_folder", metavar="DIR", help="The store (default ./results).")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True,
    help="The page to write.",
)  # fmt: skip
@click.option(
    "--tables", multiple=True, metavar="A,B", help="Only these tables, by name or YAML file."
)
@click.option(
    "--profile", "profiles", multiple=True, metavar="NAME",
    help="Tables of this profile only; repeatable (default: quick, lite and paper).",
)  # fmt: skip
@click.option("--data-dir", metavar="DIR", help="Where a table looks for datasets of your own.")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="An algorithm in a file.")
def report(
    results_folder: str | None,
    out: Path,
    tables: tuple[str, ...],
    profiles: tuple[str, ...],
    data_dir: str | None,
    plugins: tuple[str, ...],
) -> None:
    """Write one self-contained HTML page from the stored results.

    Tables beside the paper's, curves, accuracy per client, costs, and every run with the command
    that makes it again. The page needs no network. Nothing is trained.
    """
    from pfl_bench.base import paths
    from pfl_bench.cli.shared import commas
    from pfl_bench.config import load_profile, profile_names
    from pfl_bench.plugins import load_plugin
    from pfl_bench.reporting.report import write_report
    from pfl_bench.reporting.tables import load_table, table_names
    from pfl_bench.store import Store

    for plugin in plugins:
        load_plugin(Path(plugin))
    out = paths.user_path(out)
    names = commas.names("--tables", *tables)
    store = Store(paths.results_dir(results_folder))
    told = write_report(
        out,
        store,
        [load_table(name).with_plugins(plugins) for name in names]
        or [load_table(name) for name in table_names()],
        [load_profile(name) for name in profiles or profile_names()],
        paths.data_dir(data_dir),
    )
    for run in told.unreadable[:_NAMED]:
        click.echo(f"damaged: {run['folder']}: {run['problem']}", err=True)
    if len(told.unreadable) > _NAMED:
        click.echo(f"damaged: {len(told.unreadable) - _NAMED} more, listed in {out}", err=True)
    if not told.runs:
        kind = "readable results" if told.unreadable else "results"
        click.echo(f"No {kind} in {store.root} yet: {out} says what to run first.")
        return
    size = out.stat().st_size / 1e6
    click.echo(f"{len(told.runs)} runs in {out} ({size:.1f} MB); open it with a browser.")
