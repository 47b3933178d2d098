"""`pfl-bench tune`: the same search for every method of a table, chosen by validation accuracy."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from pfl_bench.base import UserError, shown, user_path
from pfl_bench.cli.shared import CLUSTER, AskedTable, execution, running_options
from pfl_bench.config import checked

if TYPE_CHECKING:
    from pfl_bench.execution import Observer
    from pfl_bench.tuning import Choice

FAILED = 1
SHARE = "0.2"


@click.command()
@click.option("--table", "name", required=True, metavar="NAME|FILE.yaml", help="The table.")
@click.option("--budget", required=True, metavar="INT", help="Configurations for every cell.")
@click.option("--rows", multiple=True, metavar="A,B", help="Only these rows (or algorithms).")
@click.option("--columns", multiple=True, metavar="A,B", help="Only these columns.")
@click.option(
    "--add-rows", "added", multiple=True, metavar="A,B",
    help="These algorithms too, below the table's rows.",
)  # fmt: skip
@click.option(
    "--halving", is_flag=True,
    help="Give up the worse half after a part of the rounds, and again, the better half going on.",
)  # fmt: skip
@click.option(
    "--tuning-seeds", default="1", metavar="INT", show_default=True,
    help="Seeds to average over; no table is scored with them.",
)  # fmt: skip
@click.option(
    "--validation", default=SHARE, metavar="NUMBER", show_default=True,
    help="Share of each client's training samples held back to choose by.",
)  # fmt: skip
@running_options("profile")
@click.option("--out", metavar="FILE", help="Where the values are written (tuned-TABLE.yaml).")
@click.option("--dry-run", is_flag=True, help="Print how many runs it takes; never train.")
@running_options("jobs", "workers")
@click.option("--results", "results_folder", metavar="DIR", help="The store (default ./results).")
@running_options("data_dir", "plugins")
@running_options(*CLUSTER)
@click.pass_context
def tune(
    context: click.Context,
    name: str,
    budget: str,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    added: tuple[str, ...],
    halving: bool,
    tuning_seeds: str,
    validation: str,
    profile: str | None,
    out: str | None,
    dry_run: bool,
    jobs: int | None,
    workers: int | None,
    results_folder: str | None,
    data_dir: str | None,
    plugins: tuple[str, ...],
    backend: str,
    address: str | None,
    gpus: float | None,
) -> None:
    """Tune every method of a table alike, for `pfl-bench table NAME --tuned FILE`.

    The defaults and BUDGET - 1 random draws from each method's search ranges (`pfl-bench show
    ALGO`), the learning rate among them, chosen by accuracy on samples held back from training.
    The runs are stored as all are; interrupted, the same command continues.
    """
    from pfl_bench.base import paths
    from pfl_bench.store import Store
    from pfl_bench.tuning import Effort, planned_runs, write_tuned
    from pfl_bench.tuning import tune as search

    effort = Effort(_count("budget", budget), _count("tuning_seeds", tuning_seeds), halving)
    options = execution(
        jobs=jobs,
        workers=workers,
        data_dir=data_dir,
        plugins=plugins,
        backend=backend,
        address=address,
        gpus=gpus,
    )
    asked = AskedTable(
        name, profile, rows, columns, added, plugins, validation=validation, data_dir=data_dir
    )
    spec = asked.spec()
    if spec.metric != "accuracy":
        raise UserError(f"{spec.name!r} cannot be tuned: it shows no accuracy")
    chosen = asked.chosen_profile(spec)
    store = Store(paths.results_dir(results_folder))
    target = user_path(out or f"tuned-{spec.name}.yaml")
    most, missing = planned_runs(spec, chosen, effort, store, options)
    click.echo(
        f"{len(spec.cells)} cells × {effort.budget} configurations × {effort.seeds} seed(s): at "
        f"most {most} runs, {missing} missing now",
        err=True,
    )
    if dry_run:
        return
    store.tidy()
    choices, failures = search(spec, chosen, effort, store, options, _progress())
    if failures:
        click.echo(f"{len(failures)} run(s) failed, and nothing is chosen:", err=True)
        for error in dict.fromkeys(failures.values()):
            click.echo(f"  {error}", err=True)
        context.exit(FAILED)
    share = checked({"validation": validation}, "this table")["validation"]
    said = {"--table": (name,), "--rows": rows, "--columns": columns, "--budget": (budget,)}
    said |= {"--add-rows": added}
    said |= {"--tuning-seeds": (tuning_seeds,), "--validation": (validation,)}
    said |= {"--profile": (chosen.argument,), "--plugin": plugins}
    words = [
        word for option, values in said.items() for value in values for word in (option, value)
    ]
    command = shlex.join(["pfl-bench", "tune", *words, *(["--halving"] if halving else [])])
    write_tuned(target, spec, chosen.name, effort, share, choices, command)
    for choice in choices:
        click.echo(_line(choice))
    click.echo(f"wrote {target}; use it with: pfl-bench table {shlex.quote(name)} --tuned {target}")


def _count(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(
            f"{name} cannot be {shown(text)}; allowed: a whole number from 1 to 1000"
        ) from None


def _line(choice: Choice) -> str:
    """What was found for a cell, in a line."""
    place = ", ".join(choice.place)
    if choice.draw is None or choice.score is None:
        return f"{place}: untuned ({choice.reason})"
    before = "" if choice.default_score is None else f" (defaults {choice.default_score:.2f} %)"
    return f"{place}: {choice.draw}, validation {choice.score:.2f} %{before}"


def _progress() -> Observer:
    """Tells of every run that ended, in a line."""
    from pfl_bench.execution import Ended, Observer
    from pfl_bench.reporting import metric

    class Told(Observer):
        ended = 0

        def on_ended(self, event: Ended) -> None:
            self.ended += 1
            score = metric("validation_accuracy").read(event.run)
            told = event.run.status if score is None else f"validation {score:.2f} %"
            click.echo(
                f"run {self.ended}: {event.config.algo} on "
                f"{event.config.dataset}, {event.config.rounds} rounds: {told}",
                err=True,
            )

    return Told()
