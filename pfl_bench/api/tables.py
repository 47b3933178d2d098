"""A table from Python: what `pfl-bench table` plans, runs and renders, as an object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.api.asking import COMPARING, profile_for, seeds_named
from pfl_bench.api.progress import Lines, title
from pfl_bench.api.runs import own_threads
from pfl_bench.base import UserError, data_dir, results_dir, unknown, user_path
from pfl_bench.config import Profile
from pfl_bench.execution import Execution, Observer
from pfl_bench.plugins import is_registered
from pfl_bench.reporting import ReadStore
from pfl_bench.reporting.tables import (
    Content,
    TablePlan,
    TableSpec,
    known_to,
    lay_out,
    load_table,
    plan_table,
    run_missing,
    to_frame,
    to_latex,
    to_markdown,
    write_all,
)
from pfl_bench.store import Store
from pfl_bench.tuning import read_tuned

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """A table laid out."""

    content: Content

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each cell, values unrounded, beside the paper's: what the CSV holds."""
        return to_frame(self.content)

    @property
    def values(self) -> pd.DataFrame:
        """The means, with the table's rows and columns; nothing where a cell has no figure."""
        spec = self.content.plan.spec
        wide = self.frame.pivot(index="row", columns="column", values="mean")
        return wide.reindex(index=list(spec.rows), columns=list(spec.columns))

    @property
    def markdown(self) -> str:
        return to_markdown(self.content)

    @property
    def latex(self) -> str:
        return to_latex(self.content)

    def save(self, folder: str | Path) -> list[Path]:
        """Markdown, LaTeX, CSV and pictures in this folder."""
        return write_all(self.content, user_path(folder))

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.markdown

    def __repr__(self) -> str:
        return f"<Table {self.content.plan.spec.name}>\n{self.values}"


def table(
    name: str,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    profile: str | None = None,
    seeds: int | None = None,
    score: str | None = None,
    tuned: str | Path | None = None,
    render_only: bool = False,
    results: str | Path | None = None,
    data: str | Path | None = None,
    jobs: int | None = None,
    workers: int | None = None,
    keep_model: bool = False,
    track: Sequence[str] = (),
    progress: bool = True,
    **comparing: Any,
) -> Table:
    """A table of the paper, or one of your own from a YAML file: stored results are taken, missing
    ones run unless it is to `render_only`.

    Without a `profile` stand-ins get quick and real data lite. `rows` takes any registered
    algorithm; `comparing` are `validation`, `new_clients` and `adapt_epochs`, as for `pfl-bench
    table`; `tuned` names a file of `pfl-bench tune`. With `keep_model` the models that are trained
    now are kept. With `jobs` so many runs go on at a time, each in a process of its own; that is no
    option for a class of this session, which lies in no file."""
    for setting in comparing:
        if setting not in COMPARING:
            raise unknown("setting of a table", setting, COMPARING)
    folder, store = data_dir(data), ReadStore(results_dir(results))
    spec = load_table(name)
    spec = spec.on_real_data() if data is not None else spec
    spec = spec.restricted(tuple(rows), tuple(columns)).running(comparing)
    spec = spec if tuned is None else read_tuned(user_path(tuned)).applied(spec)
    spec = spec if score is None else spec.scored(score)
    chosen = table_profile(profile, spec)
    number = chosen.seeds if seeds is None else len(seeds_named(seeds))
    fingerprint = known_to(store) if render_only else None
    plan = plan_table(spec, chosen, number, store, folder, fingerprint)
    check_validated(plan, [spec])
    if not render_only:
        options = Execution(
            folder, jobs=jobs, workers=workers, keep_state=keep_model, track=tuple(track)
        )
        _check_processes(plan, options)
        plan = _whole(plan, store, options, Lines() if progress else Observer())
    return Table(lay_out(replace(plan, remarks=store.remarks())))


def table_profile(named: str | None, spec: TableSpec) -> Profile:
    """The profile that is named, else the one for the data of the table."""
    return profile_for(named, (cell.chosen for cell in spec.cells.values()))


def check_validated(plan: TablePlan, specs: Sequence[TableSpec]) -> None:
    """Refuse, before anything trains, to score by samples that no run holds back."""
    configs = [config for cell in plan.cells.values() for config in cell.configs]
    is_asked = any(spec.score == "validation" for spec in specs)
    if is_asked and configs and not any(config.validation for config in configs):
        raise UserError(
            "the score validation needs runs that hold back training samples; add --validation "
            "0.2, or another share"
        )


def _check_processes(plan: TablePlan, options: Execution) -> None:
    """Refuse to send a class of this session where it cannot go."""
    if options.jobs is None and plan.spec.metric != "overhead":
        return
    for run in plan.missing():
        if is_registered(run.config.algo):
            raise UserError(
                f"{run.config.algo!r} is a class of this session, and with jobs, or in a table of "
                "times, runs go on in other processes; leave out jobs, or put it into a file for "
                "`pfl-bench table --plugin FILE`"
            )


def _whole(plan: TablePlan, store: Store, options: Execution, observer: Observer) -> TablePlan:
    """The plan once all that is missing has run."""
    names = {run.config.request: title(run.config) for run in plan.missing()}
    with own_threads():
        plan, failures = run_missing(plan, Store(store.root), options, observer)
    if failures:
        told = "; ".join(f"{names[request]}: {error}" for request, error in failures.items())
        raise UserError(f"{len(failures)} run(s) of the table failed: {told}")
    return plan
