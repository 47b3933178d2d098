"""`pfl-bench compare A B`: two stored results side by side, or two methods. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_bench.api import named_run
from pfl_bench.base import UserError, meant, results_dir, standard_output, unknown, user_path
from pfl_bench.store import Store

if TYPE_CHECKING:
    from pfl_bench.reporting import Comparison


@click.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--results",
    "folder",
    type=click.Path(path_type=Path),
    help="The result store (default: $PFL_BENCH_RESULTS, else ./results).",
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw both curves to this .png, .svg or .pdf."
)
def compare(a: str, b: str, folder: Path | None, plot: Path | None) -> None:
    """Put two stored results side by side: options, values and curves.

    A and B are the beginnings of keys as `results list` prints them, or folders of runs. Two names
    of algorithms compare all that both have run, on the seeds they share."""
    from pfl_bench.base import picture_format
    from pfl_bench.reporting import comparison, stored_methods

    if plot is not None:
        picture_format(plot)  # a mistake is told before anything is printed
    store = Store(results_dir(folder))
    methods = stored_methods(store.all())
    strangers = [name for name in (a, b) if meant(name, methods) not in methods]
    if len(strangers) == 1:
        raise unknown("method among the results", strangers[0], methods)
    if not strangers:
        if plot is not None:
            raise UserError("--plot draws two runs; methods are drawn by `pfl-bench figure curves`")
        _print_methods(a, b, store)
        return
    found = comparison.compare(named_run(a, store), named_run(b, store), store.remarks())
    names = _names(found)
    for name, side, problem in zip("AB", (found.a, found.b), found.problems, strict=True):
        click.echo(f"{name}  {side.run.path.name} ({side.run.status})")
        click.echo(f"   {problem}")
    _print_options(found)
    if found.verdict:
        click.echo(f"\n{found.verdict}")
    _print_measured(found)
    _print_clients(found)
    _print_curves(found)
    if plot is not None:
        plot = user_path(plot)
        comparison.save_curves(found, names, plot)
        click.echo(f"\nBoth curves are drawn in {plot}.")


def _print_methods(a: str, b: str, store: Store) -> None:
    from pfl_bench.reporting import duels
    from pfl_bench.reporting.tables import signed

    found = duels(store.all(), a, b)
    if not found:
        raise UserError(f"{a} and {b} have no problem and seed in common in {store.root}")
    rows = []
    for duel in found:
        problem = f"{duel.problem}; {duel.variant}" if duel.variant else duel.problem
        (mean_a, mean_b), (ahead_a, ahead_b) = duel.means, duel.better
        gap = signed(mean_b - mean_a, 2)
        rows.append(
            (problem, f"{mean_a:.2f}", f"{mean_b:.2f}", gap, f"{ahead_a} : {ahead_b}",
             ",".join(map(str, duel.seeds)))
        )  # fmt: skip
    click.echo("best accuracy (%), mean over the seeds that both have run")
    _table(("problem", a, b, f"{b} − {a}", "seeds won", "seeds"), rows)


def _names(found: Comparison) -> tuple[str, str]:
    """What tells the runs apart in few words: options that both have, at most three."""
    told = [
        (name, pair)
        for name, pair in found.options.items()
        if None not in pair and name != "data_fingerprint"
    ][:3]
    if not told:
        return "A", "B"
    sides = ([f"{name} {_shown(pair[k])}" for name, pair in told] for k in (0, 1))
    first, second = ("; ".join(words) for words in sides)
    return f"A: {first}", f"B: {second}"


def _print_options(found: Comparison) -> None:
    if not found.options:
        click.echo("\nThe two have the same options.")
        return
    click.echo()
    _table(
        ("option", "A", "B"),
        [(name, _shown(a), _shown(b)) for name, (a, b) in found.options.items()],
    )


def _print_measured(found: Comparison) -> None:
    from pfl_bench.reporting.tables import signed

    rows = []
    for one in found.measured:
        shown = ("–" if value is None else f"{value:.{one.digits}f}" for value in (one.a, one.b))
        gap = "–" if one.difference is None else signed(one.difference, one.digits)
        rows.append((one.name, *shown, gap))
    click.echo()
    _table(("figure", "A", "B", "B − A"), rows)


def _print_clients(found: Comparison) -> None:
    if found.better is None:
        return
    a, b, neither = found.better
    click.echo(
        f"\nOf {a + b + neither} clients A is better on {a} and B on {b} (best round of each)."
    )


def _print_curves(found: Comparison) -> None:
    from pfl_bench.reporting import bars

    curves = {"A": found.a.curve, "B": found.b.curve}
    values = [value for curve in curves.values() for _, value in curve]
    low, high = min(values), max(values)
    rounds = max(curve[-1][0] for curve in curves.values())
    click.echo(f"\naccuracy over rounds 1 to {rounds}, on one scale: {low:.2f} % to {high:.2f} %")
    for name, curve in curves.items():
        click.echo(f"{name}  {bars(curve, rounds, low, high)}")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column(head[0])
    for title in head[1:]:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*row)
    standard_output().print(table)


def _shown(value: Any) -> str:
    return "–" if value is None else str(value)
