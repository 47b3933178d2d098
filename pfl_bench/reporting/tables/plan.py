"""What a table needs: the runs of each cell, which of them are stored and which cannot take place.

What is missing goes the road of all runs, `execution.run_all`; what it then says is in `content`.
"""

from __future__ import annotations

import contextlib
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from pfl_bench import data
from pfl_bench.base import UserError, unknown
from pfl_bench.config import Profile, RunConfig
from pfl_bench.engine import Simulator
from pfl_bench.execution import (
    Execution,
    Fingerprint,
    Observer,
    Request,
    configure,
    data_key,
    load_data,
    run_all,
)
from pfl_bench.plugins import load_algorithm, method_facts
from pfl_bench.privacy import Attack, Threat, check_attackable, with_attack
from pfl_bench.reporting.metrics import metric
from pfl_bench.reporting.tables.reading import table_names
from pfl_bench.reporting.tables.spec import Cell, TableSpec
from pfl_bench.store import Store, StoredRun

Place = tuple[str, str]
"""A cell's row and column."""


Peer = Callable[[RunConfig, str], StoredRun | None]
"""The stored run of another method on the same data, terms and seed."""


def _no_peer(config: RunConfig, algo: str) -> StoredRun | None:
    return None


@dataclass(frozen=True)
class CellPlan:
    """One cell and its seeds. A cell that cannot be configured has no `configs`; a cell that cannot
    run, for whatever reason, says why in `impossible`."""

    cell: Cell
    configs: tuple[RunConfig, ...]
    runs: tuple[StoredRun | None, ...]
    impossible: str | None = None
    peer: Peer = field(default=_no_peer, compare=False, repr=False)

    @property
    def status(self) -> str:
        """not run, partly run, done, skipped or diverged"""
        statuses = [run.status for run in self.runs if run is not None]
        if "diverged" in statuses:
            return "diverged"
        if self.impossible is not None or "skipped" in statuses:
            return "skipped"
        if not statuses:
            return "not run"
        return "done" if len(statuses) == len(self.configs) else "partly run"

    @property
    def missing(self) -> list[RunConfig]:
        """The seeds that have yet to run."""
        if self.impossible is not None:
            return []
        pairs = zip(self.configs, self.runs, strict=True)
        return [config for config, run in pairs if run is None]

    @property
    def seeds(self) -> int:
        """How many seeds are finished."""
        return sum(_has(run, "finished") for run in self.runs)

    @cached_property
    def by_seed(self) -> dict[int, float]:
        """What the cell measures, by seed, of the runs that are finished."""
        measure = metric(self.cell.measure)
        found = {
            config.seed: measure.read(run, self.peer(config, measure.beside))
            for config, run in zip(self.configs, self.runs, strict=True)
            if run is not None and run.status == "finished"
        }
        return {seed: value for seed, value in found.items() if value is not None}

    @property
    def mean(self) -> float | None:
        """The mean over seeds, of a cell that has a figure to compete with: a run that diverged or
        cannot take place has none, whatever its other seeds gave."""
        if self.status in ("diverged", "skipped"):
            return None
        values = self.by_seed.values()
        return statistics.fmean(values) if values else None

    @property
    def reason(self) -> str | None:
        """Why the cell is skipped or diverged."""
        for status in ("diverged", "skipped"):
            for run in self.runs:
                if _has(run, status):
                    return _summary(run).get("reason")
        return self.impossible


@dataclass(frozen=True)
class PlannedRun:
    """A run that has yet to take place, or to be attacked, and the cells that want it."""

    request: Request
    places: tuple[Place, ...]

    @property
    def config(self) -> RunConfig:
        return self.request.config


@dataclass(frozen=True)
class TablePlan:
    """A table under one profile, with what is stored of it."""

    spec: TableSpec
    profile: Profile
    seeds: int
    cells: Mapping[Place, CellPlan] = field(repr=False)
    remarks: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What must be said of data that are not as published, by fingerprint, beside what the table's
    own runs say."""

    @property
    def misconfigured(self) -> dict[Place, str]:
        """The cells for which there is no valid configuration, with the reason."""
        return {
            place: cell.impossible or "" for place, cell in self.cells.items() if not cell.configs
        }

    def missing(self) -> list[PlannedRun]:
        """What has yet to run, each run once however many cells want it.

        The first seed of every cell comes before the second of any, so that an interrupted table
        is thin rather than half empty. Within a seed, runs on the same data follow each other."""
        threats = self._threats()
        wanted: dict[str, PlannedRun] = {}
        data_order: dict[str, int] = {}
        ranks: dict[str, tuple[int, int]] = {}
        for place, cell in self.cells.items():
            for config in cell.missing:
                data = data_order.setdefault(data_key(config), len(data_order))
                known = wanted.get(config.request)
                follow_up = Attack(threats[config.request]) if config.request in threats else None
                places = (*known.places, place) if known else (place,)
                partition = cell.cell.chosen.get("partition")
                request = Request(config, partition, follow_up, self._tags(places))
                wanted[config.request] = PlannedRun(request, places)
                ranks.setdefault(config.request, (cell.configs.index(config), data))
        return [wanted[name] for name in sorted(wanted, key=ranks.__getitem__)]

    def _tags(self, places: Sequence[Place]) -> tuple[tuple[str, str], ...]:
        cells = "; ".join(f"{row}, {column}" for row, column in places)
        return (("table", self.spec.name), ("cell", cells))

    def _threats(self) -> dict[str, tuple[Threat, ...]]:
        """The attacks that cells want of each run that lacks one."""
        found: dict[str, dict[Threat, None]] = {}
        for cell in self.cells.values():
            if cell.cell.threat is not None:
                for config in cell.missing:
                    found.setdefault(config.request, {})[cell.cell.threat] = None
        return {request: tuple(threats) for request, threats in found.items()}

    def with_run(self, config: RunConfig, run: StoredRun) -> TablePlan:
        """The plan once the run of `config` has ended."""
        cells = {place: _with_run(cell, config, run) for place, cell in self.cells.items()}
        return replace(self, cells=cells)

    def retold(self, spec: TableSpec) -> TablePlan:
        """The same runs in a table with the same cells that measures something else of them."""
        cells = {place: replace(cell, cell=spec.cells[place]) for place, cell in self.cells.items()}
        return replace(self, spec=spec, cells=cells)


def plan_table(
    spec: TableSpec,
    profile: Profile,
    seeds: int,
    store: Store,
    data_dir: Path,
    fingerprint: Fingerprint | None = None,
) -> TablePlan:
    """The runs of every cell and what is stored of them. Quick: no data is dealt, nothing trains;
    so a cell is known to be impossible only if a stored run says so (see `foresee`)."""
    for name in profile.tables:
        if name not in (known := [*table_names(), spec.name]):
            raise UserError(f"profile {profile.name}: {unknown('table', name, known)}")
    stored: dict[str, StoredRun | None] = {}

    def find(config: RunConfig) -> StoredRun | None:
        if config.request not in stored:
            stored[config.request] = _stored(config, store, spec)
        return stored[config.request]

    cells: dict[Place, CellPlan] = {}
    for place, cell in spec.cells.items():
        chosen = {**profile.tables.get(spec.name, {}), **cell.chosen}
        if "model" in cell.chosen:
            chosen["model"] = profile.trained_model(cell.chosen["model"])
        make = partial(configure, profile, chosen, cell.hyper, data_dir)
        try:
            configs = tuple(make(fingerprint).seeded(seeds))
        except UserError as error:
            cells[place] = CellPlan(cell, (), (), str(error))
            continue
        if fingerprint is not None and not any(map(find, configs)):
            # Results may also come from the data that are here, if there are any.
            with contextlib.suppress(UserError):
                here = tuple(make().seeded(seeds))
                configs = here if any(map(find, here)) else configs
        _check_seeds(spec, configs)
        runs = tuple(_shown(find(config), cell) for config in configs)
        peer = partial(_tuned_peer, cells, place) if spec.tuning else partial(_peer, store)
        cells[place] = _known(CellPlan(cell, configs, runs, peer=peer))
    return TablePlan(spec, profile, seeds, cells)


def _check_seeds(spec: TableSpec, configs: Iterable[RunConfig]) -> None:
    for config in configs:
        if config.seed in spec.tuning_seeds:
            raise UserError(
                f"{spec.name!r} was tuned with the seed {config.seed}, which it would be scored "
                "with; run fewer seeds, or tune with others"
            )


def _peer(store: Store, config: RunConfig, algo: str) -> StoredRun | None:
    if not algo:
        return None
    run = store.find(replace(config, **method_facts(algo, config.model), record=()))
    return run if _has(run, "finished") else None


def _tuned_peer(
    cells: Mapping[Place, CellPlan], place: Place, config: RunConfig, algo: str
) -> StoredRun | None:
    """The same of a tuned table: the other method as it was tuned for it, in the same column."""
    for (_, column), other in cells.items():
        if column == place[1] and algo and other.cell.chosen["algo"] == algo:
            pairs = zip(other.configs, other.runs, strict=True)
            runs = [run for its, run in pairs if its.seed == config.seed]
            return next((run for run in runs if _has(run, "finished")), None)
    return None


def fingerprints(runs: Iterable[StoredRun]) -> dict[tuple[str, str], list[str]]:
    """By dataset and source, the fingerprints of the data that results come from, the most frequent
    first."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for run in runs:
        dataset, source, found = map(run.config.get, ("dataset", "source", "data_fingerprint"))
        counts.setdefault((str(dataset), str(source)), Counter())[str(found)] += 1
    return {kind: [data for data, _ in count.most_common()] for kind, count in counts.items()}


def known_to(store: Store) -> Fingerprint:
    """Tells the fingerprint of prepared data that results come from, else the one that most stored
    results come from: reading them takes no data, and the data here may be another version. So too
    of stand-ins: another processor may have drawn theirs, and a few pixels differ."""

    @cache
    def stored() -> dict[tuple[str, str], list[str]]:
        return fingerprints(run for run in store.all() if run.is_final)

    def tell(name: str, source: str, data_dir: Path) -> str:
        known = stored().get((name, source), [])
        if known and source == "standin":
            return known[0]
        try:
            here = data.fingerprint(name, source, data_dir)
        except UserError:
            if not known:
                raise
            return known[0]
        return here if here in known or not known else known[0]

    return tell


def _stored(config: RunConfig, store: Store, spec: TableSpec) -> StoredRun | None:
    """The result of a run; where times are shown, one that was not timed does not count."""
    run = store.find(config)
    if run is None or run.status == "skipped":
        return run
    return run if spec.metric != "overhead" or run.end.timed else None


def _shown(run: StoredRun | None, cell: Cell) -> StoredRun | None:
    """The run as a cell shows it: with what its attack found, if it shows one; one that was not
    attacked does not count."""
    return run if run is None or cell.threat is None else with_attack(run, cell.threat)


def check_runnable(plan: TablePlan) -> None:
    """Refuse, before anything trains, a table that cannot be made whole."""
    for (row, column), reason in plan.misconfigured.items():
        raise UserError(
            f"the cell {row!r}, {column!r} cannot be run: {reason} (--rows and --columns can leave "
            "it out)"
        )
    if plan.spec.is_attacked:
        for (row, column), cell in plan.cells.items():
            check_attackable(cell.configs[0], f"the cell {row!r}, {column!r}")


def run_missing(
    plan: TablePlan, store: Store, options: Execution, observer: Observer | None = None
) -> tuple[TablePlan, dict[str, str]]:
    """The plan once all that it misses has run, and why runs failed, by the `request` of each."""
    check_runnable(plan)
    if plan.spec.metric == "overhead":
        options = replace(options, timed=True)
    missing = plan.missing()
    outcome = run_all([run.request for run in missing], store, options, observer)
    for run in missing:
        if run.config.request in outcome.runs:
            plan = plan.with_run(run.config, outcome.runs[run.config.request])
    return plan, outcome.failures


def refreshed(plan: TablePlan, store: Store) -> TablePlan:
    """The plan with what others have stored since it was made."""
    for run in plan.missing():
        if (found := _stored(run.config, store, plan.spec)) is not None:
            plan = plan.with_run(run.config, found)
    return plan


def foresee(plan: TablePlan, data_dir: Path) -> TablePlan:
    """The plan with every cell marked that would turn out impossible: the data is dealt, not
    trained on."""
    asked = {cell.missing[0].request for cell in plan.cells.values() if cell.missing}
    runs = [run for run in plan.missing() if run.config.request in asked]
    reasons = {run.config.request: _obstacle(run, data_dir) for run in runs}
    cells = {
        place: replace(cell, impossible=reasons[cell.missing[0].request]) if cell.missing else cell
        for place, cell in plan.cells.items()
    }
    return replace(plan, cells=cells)


def _obstacle(run: PlannedRun, data_dir: Path) -> str | None:
    try:
        dataset, partition = load_data(run.config, data_dir, run.request.partition)
        return Simulator(load_algorithm(run.config.algo), run.config, dataset, partition).impossible
    except UserError as error:
        return str(error)


def _with_run(cell: CellPlan, config: RunConfig, run: StoredRun) -> CellPlan:
    requests = [each.request for each in cell.configs]
    if config.request not in requests:
        return cell
    k = requests.index(config.request)
    shown = _shown(run, cell.cell)
    return _known(replace(cell, runs=(*cell.runs[:k], shown, *cell.runs[k + 1 :])))


def _known(cell: CellPlan) -> CellPlan:
    """The cell with what its stored runs tell: all seeds share a partition, so that what one
    cannot do, none can."""
    skipped = next((run for run in cell.runs if _has(run, "skipped")), None)
    return replace(cell, impossible=_summary(skipped).get("reason")) if skipped else cell


def _has(run: StoredRun | None, status: str) -> bool:
    return run is not None and run.status == status


def _summary(run: StoredRun | None) -> dict[str, Any]:
    return (run.summary if run is not None else None) or {}
