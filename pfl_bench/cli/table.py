"""`pfl-bench table`: plan a table of the paper or of one's own, run what is missing, render it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pfl_bench.api import COMPARING, profile_for
from pfl_bench.base import UserError, user_path
from pfl_bench.cli.run import run_options
from pfl_bench.cli.shared import CLUSTER, AskedTable, commas, execution, running_options
from pfl_bench.reporting.tables import table_names

if TYPE_CHECKING:
    from pfl_bench.execution import Execution
    from pfl_bench.reporting.tables import Look, Place, TablePlan
    from pfl_bench.store import Store

FAILED = 1


@click.command()
@click.argument("name", metavar="NAME|FILE.yaml|list")
@running_options("profile")
@click.option("--seeds", metavar="INT", help="Runs per cell (default: the profile's, often 5).")
@click.option("--rows", multiple=True, metavar="A,B", help="Only these rows (or algorithms).")
@click.option("--columns", multiple=True, metavar="A,B", help="Only these columns.")
@click.option(
    "--add-rows", "added", multiple=True, metavar="A,B",
    help="These algorithms too, below the table's rows.",
)  # fmt: skip
@click.option(
    "--score", metavar="A,B",
    help="What counts: the round best (as in the paper), validation (the same, and refused without "
    "--validation), last or late (mean of the last 20); loss, after the last; over clients, in the "
    "best round, their mean (clients), spread, worst tenth (worst), the share below-local or "
    "below-majority (their most frequent class); of clients that never join, new or new-clients "
    "(their mean); or a plugin's metric. A table for each (default: best, or what the table says).",
)  # fmt: skip
@partial(run_options, names=COMPARING)
@click.option("--tuned", "tuned_file", metavar="FILE", help="Values that `pfl-bench tune` found.")
@click.option(
    "--interval", metavar="OVER",
    help="Also a 95 % bootstrap interval in each cell: over seeds, or over clients.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print what is stored, missing and impossible.")
@click.option("--render-only", is_flag=True, help="Render what is stored; never train.")
@click.option(
    "--watch", is_flag=True,
    help="Show the table fill while other processes run it; never train.",
)  # fmt: skip
@running_options("jobs", "workers")
@click.option("--results", "results_folder", metavar="DIR", help="The store (default ./results).")
@running_options("data_dir")
@click.option("--out", metavar="DIR", help="Also write Markdown, LaTeX, CSV and pictures here.")
@click.option(
    "--curves", is_flag=True,
    help="With --out, also the accuracy of every cell over the iterations, a picture for each "
    "column (or row, if its cells compete).",
)  # fmt: skip
@click.option(
    "--no-title",
    "untitled",
    is_flag=True,
    help="With --out, pictures without a title, for a paper that has a caption.",
)
@click.option("--with-std", is_flag=True, help="With --out, ± std in the cells of the heat map.")
@running_options("keep_model", "track", "tensorboard", "plugins")
@click.option(
    "--attack", "attack", multiple=True, metavar="NAME=VALUE",
    help="A knob of the attack that the table shows, such as target=update.",
)  # fmt: skip
@running_options(*CLUSTER)
@click.pass_context
def table(
    context: click.Context,
    name: str,
    seeds: str | None,
    score: str | None,
    dry_run: bool,
    render_only: bool,
    watch: bool,
    jobs: int | None,
    workers: int | None,
    results_folder: str | None,
    out: str | None,
    curves: bool,
    untitled: bool,
    with_std: bool,
    keep_model: bool,
    track: tuple[str, ...],
    tensorboard: str | None,
    backend: str,
    address: str | None,
    gpus: float | None,
    **asked_of_it: Any,
) -> None:
    """Make a table of the paper, or one of your own from a YAML file.

    Stored results are taken, missing ones run; interrupted, the same command continues.
    `pfl-bench table list` says how much of each table is stored.
    """
    from pfl_bench.api import check_validated
    from pfl_bench.base import paths
    from pfl_bench.cli.views import watch_filling
    from pfl_bench.reporting import ReadStore
    from pfl_bench.reporting.figures import tablecurves
    from pfl_bench.reporting.tables import Look, known_to

    asked = AskedTable(name, **asked_of_it)
    if dry_run + render_only + watch > 1:
        raise UserError("--dry-run, --render-only and --watch exclude each other")
    if (untitled or with_std) and out is None:
        raise UserError(
            "--no-title and --with-std are for the pictures of --out, and there is none"
        )
    if curves and out is None:
        raise UserError("--curves are written to the folder of --out, and there is none")
    options = execution(
        jobs=jobs,
        workers=workers,
        keep_state=keep_model,
        data_dir=asked.data_dir,
        track=track,
        tensorboard=tensorboard,
        plugins=asked.plugins,
        backend=backend,
        address=address,
        gpus=gpus,
    )
    number = None if seeds is None else _number_of_seeds(seeds)
    store = ReadStore(paths.results_dir(results_folder))
    if name == "list":
        _refuse({"--rows": asked.rows, "--columns": asked.columns, "--add-rows": asked.added})
        _refuse({"--tuned": asked.tuned_file, "--attack": asked.attack})
        _refuse({"--interval": asked.interval, "--score": score})
        _refuse({"--dry-run": dry_run, "--watch": watch, "--out": out, "--curves": curves})
        _list(asked, number, store)
        return
    spec = asked.spec()
    scores = [spec.score] if score is None else commas.names("--score", score)
    spec, *others = (spec.scored(name) for name in scores)
    plan = asked.plan(spec, store, number, known_to(store) if render_only or watch else None)
    check_validated(plan, (spec, *others))
    if curves:
        tablecurves.check(plan)
    if dry_run:
        _show_plan(plan, store, options)
        return
    failures: list[str] = []
    if watch:
        plan = watch_filling(plan, store)
    elif not render_only:
        store.tidy()
        plan, failures = _run(plan, store, options)
    plan = replace(plan, remarks=store.remarks())
    look = Look(titled=not untitled, with_std=with_std)
    _render(plan, out, look, curves)
    for other in others:
        _render(plan.retold(other), out, look)
    if failures:
        click.echo(f"{len(failures)} run(s) failed:", err=True)
        for failure in failures:
            click.echo(f"  {failure}", err=True)
        context.exit(FAILED)


def _number_of_seeds(text: str) -> int:
    """Cells run the seeds from 0 on, so that tables agree on which these are."""
    from pfl_bench.api import seeds_named

    which = seeds_named(text)
    if which != tuple(range(len(which))):
        raise UserError(f"--seeds {text}: a table runs the seeds from 0 on; say how many, as 3")
    return len(which)


def _refuse(options: dict[str, object]) -> None:
    for option, value in options.items():
        if value:
            raise UserError(f"{option} does not go with `table list`")


def _list(asked: AskedTable, number: int | None, store: Store) -> None:
    """How much of each table is stored; the runs that several cells share count once."""
    from pfl_bench.reporting.tables import known_to

    has_folder = asked.data_dir is not None
    profile = profile_for(asked.profile, [{"source": "real"} if has_folder else {}])
    seeds = number or profile.seeds
    click.echo(f"[{profile.name} profile, {seeds} seed(s), results in {store.root}]")
    names = table_names()
    width, known = max(map(len, names), default=0), known_to(store)
    for name in names:
        # Without the plugins, which have no place in a table whose rows are no methods.
        one = replace(asked, name=name, profile=profile.argument, plugins=())
        plan = one.plan(one.spec(), store, seeds, known)
        click.echo(f"{name:<{width}}  {_stored_share(plan)}  {plan.spec.caption}")


def _stored_share(plan: TablePlan) -> str:
    stored = _stored_count(plan)
    if plan.misconfigured:
        reason = next(iter(plan.misconfigured.values()))
        return f"{stored:>4} runs stored, the rest cannot run ({reason});"
    wanted = stored + len(plan.missing())
    return f"{stored:>4} of {wanted:>4} runs stored ({stored / max(1, wanted):4.0%})"


def _stored_count(plan: TablePlan) -> int:
    """Results that the table has; cells can share one."""
    return len({run.key for cell in plan.cells.values() for run in cell.runs if run is not None})


def _show_plan(plan: TablePlan, store: Store, options: Execution) -> None:
    from pfl_bench.cli.views import duration, print_grid
    from pfl_bench.execution import Pace, estimate, jobs_for, longest_first, makespan
    from pfl_bench.reporting.tables import foresee, known_to, plan_table, still_rising

    data_dir, on_cluster = options.data_dir, options.where == "ray"
    plan = foresee(plan, data_dir)
    spec = plan.spec
    click.echo(f"{spec.name} [{plan.profile.name} profile, {plan.seeds} seed(s)]: {spec.caption}")
    print_grid(plan)
    cells = plan.cells.values()
    settled = sum(not cell.missing and cell.impossible is None for cell in cells)
    unsettled = sum(bool(cell.missing) for cell in cells)
    runs = [run.request for run in plan.missing()]
    whole = f"{settled} of {len(cells)} cells whole"
    click.echo(f"stored:     {whole}, {_stored_count(plan)} results in all")
    click.echo(f"missing:    {unsettled} cells, {len(runs)} runs")
    if told := still_rising(plan):
        click.echo(f"rising:     {told}")
    impossible = {place: cell.impossible for place, cell in plan.cells.items() if cell.impossible}
    click.echo(f"impossible: {len(impossible)} cells")
    for reason in dict.fromkeys(impossible.values()):
        places = [place for place, why in impossible.items() if why == reason]
        click.echo(f"  {_spelt(plan, places)}: {reason}")
    elsewhere = plan_table(spec, plan.profile, plan.seeds, store, data_dir, known_to(store))
    if (more := _stored_count(elsewhere) - _stored_count(plan)) > 0:
        click.echo(
            f"elsewhere:  {more} more results are from other data than those here (another version "
            "or none at hand); --render-only shows them"
        )
    jobs = options.jobs or 1 if on_cluster else jobs_for([run.config for run in runs], options)
    pace = Pace.of(store.all())
    time = estimate(runs, pace)
    if len(runs) > time.unknown:
        click.echo(
            f"time left:  about {duration(time.seconds)} for {len(runs) - time.unknown} runs, one "
            "at a time at the pace of the stored ones"
        )
    if len(runs) > time.unknown and jobs > 1 and spec.metric != "overhead":  # timed alone
        order = longest_first(runs, pace, data_dir) if on_cluster else runs
        seconds = [s for run in order if (s := pace.left(run.config)) is not None]
        how = "the longest first" if on_cluster else "if each keeps that pace"
        click.echo(
            f"            about {duration(makespan(seconds, jobs))} with {jobs} at a time, {how}"
        )
    if time.unknown:
        click.echo(f"time left:  unknown until measured for {time.unknown} runs")
    if runs and spec.is_attacked:
        click.echo("            training alone; the attacks come on top")


def _spelt(plan: TablePlan, places: Sequence[Place]) -> str:
    """Cells by row and column, in few words where they are whole rows of some columns."""
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*places, strict=True))
    if len(places) == 1:
        return f"{rows[0]}, {columns[0]}"
    if len(places) < len(rows) * len(columns):
        return "; ".join(f"{row}, {column}" for row, column in places)
    every = len(rows) == len(dict.fromkeys(row for row, _ in plan.cells))
    return f"{'all rows' if every else ', '.join(rows)} in {', '.join(columns)}"


def _run(plan: TablePlan, store: Store, options: Execution) -> tuple[TablePlan, list[str]]:
    """The plan once all that is missing has run, and a sentence for each run that failed."""
    from pfl_bench.cli.views import label, watch_table
    from pfl_bench.execution import Pace
    from pfl_bench.reporting.tables import check_runnable, run_missing
    from pfl_bench.store import Store

    check_runnable(plan)
    runs = {run.config.request: run for run in plan.missing()}
    if not runs:
        return plan, []
    with watch_table(plan, Pace.of(store.all())) as display:
        plan, errors = run_missing(plan, Store(store.root), options, display)
    return plan, [f"{label(runs[name])}: {error}" for name, error in errors.items()]


def _render(plan: TablePlan, out: str | None, look: Look, curves: bool = False) -> None:
    from pfl_bench.reporting.figures import tablecurves
    from pfl_bench.reporting.tables import lay_out, to_terminal, write_all

    content = lay_out(plan)
    to_terminal(content)
    if out is None:
        return
    written = write_all(content, folder := user_path(out), look)
    if curves:
        written += tablecurves.save(plan, folder, look.titled)
    for path in written:
        click.echo(f"wrote {path}", err=True)
