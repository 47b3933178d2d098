"""What a figure is drawn from: the runs that it wants, stored ones taken, missing ones run now."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from pfl_bench.api import gather
from pfl_bench.base import UserError, paths
from pfl_bench.cli.run import assignments
from pfl_bench.cli.shared import commas
from pfl_bench.cli.shared.running import execution
from pfl_bench.cli.views import watch_runs
from pfl_bench.config import Profile, RunConfig
from pfl_bench.data import Dataset, Partition
from pfl_bench.engine import RECORDABLE, Simulator
from pfl_bench.execution import (
    Execution,
    Fingerprint,
    Request,
    configure,
    kept_simulator,
    load_data,
    run_all,
    trained_simulator,
)
from pfl_bench.plugins import (
    algorithm_named,
    algorithm_names,
    check_taken,
    load_algorithm,
    taken,
)
from pfl_bench.reporting.figures import Method, Trial
from pfl_bench.reporting.tables import known_to
from pfl_bench.store import Store, StoredRun

ALL = "all"


@dataclass(frozen=True)
class Wanted:
    """What the user asks for, before a method and a seed make a configuration of it."""

    profile: Profile
    chosen: dict[str, Any]
    hyper: dict[str, Any]
    seeds: tuple[int, ...]
    """Which, counted from the first."""
    options: Execution
    store: Store
    quiet: bool

    @property
    def data_dir(self) -> Path:
        return self.options.data_dir

    def config(self, algo: str, series: Sequence[str] = (), seed: int = 0) -> RunConfig:
        """The run of a method under the seed that stands `seed` places after the first, as it is
        looked for among stored results: their data may be elsewhere or drawn elsewhere."""
        return self._configured(algo, series, seed, self._known)

    def config_here(self, algo: str, series: Sequence[str] = (), seed: int = 0) -> RunConfig:
        """The same as it would be carried out, on the data that are here."""
        return self._configured(algo, series, seed, None)

    def _configured(
        self, algo: str, series: Sequence[str], seed: int, fingerprint: Fingerprint | None
    ) -> RunConfig:
        chosen = {**self.chosen, "algo": algo, "record": ",".join(series)}
        hyper = taken(algo, self.hyper)
        first = configure(self.profile, chosen, hyper, self.data_dir, fingerprint)
        return replace(first, seed=first.seed + seed)

    @cached_property
    def _known(self) -> Fingerprint:
        return known_to(self.store)


def read(
    flags: dict[str, Any],
    *,
    profile: str | None,
    config_file: str | None = None,
    sets: tuple[str, ...] = (),
    seeds: str | None = None,
    are_averaged: bool = False,
    plugins: tuple[str, ...] = (),
    data_dir: str | None = None,
    results_folder: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> Wanted:
    """The options of a command, checked. Figures that average over seeds take as many as the
    profile says, others one."""
    if quiet:
        logging.getLogger("pfl_bench").setLevel(logging.WARNING)
    options = execution(plugins=plugins, data_dir=data_dir, workers=workers, device=device)
    asked = gather(config_file, flags, assignments(sets), data_dir, profile, seeds)
    which = asked.seeds or tuple(range(asked.profile.seeds if are_averaged else 1))
    options = replace(options, partition=asked.chosen.get("partition"))
    store = Store(paths.results_dir(results_folder))
    return Wanted(asked.profile, asked.chosen, asked.hyper, which, options, store, quiet)


def dealt(wanted: Wanted) -> tuple[RunConfig, Dataset, Partition]:
    """A run of any method, its data, and who holds which sample: the methods share them."""
    config = wanted.config_here("fedavg")
    return config, *load_data(config, wanted.data_dir, wanted.options.partition)


def algorithms(text: str) -> list[str]:
    """Names separated by commas, each once; `all` means every algorithm there is."""
    if text.strip() == ALL:
        return algorithm_names()
    found = commas.names("--algos", text)
    for name in found:
        load_algorithm(name)
    return list(dict.fromkeys(map(algorithm_named, found)))


def methods(
    wanted: Wanted, algos: Sequence[str], series: Sequence[str] = (), are_timed: bool = False
) -> list[Method]:
    """Each method with a run for every seed, stored or run now.

    All are configured before the first is run, so that a mistake is told at once. The first seed of
    every method comes before the second of any, as in tables. Where times are drawn, a run that
    recorded more than asked for does not do: recording takes time."""
    check_taken(algos, wanted.hyper)
    for algo in algos:
        _check_series(algo, series)

    def found(config: RunConfig) -> StoredRun | None:
        return wanted.store.find(config) if are_timed else stored(config, wanted.store)

    places = [(algo, seed) for seed in wanted.seeds for algo in algos]
    runs = {(a, k): found(wanted.config(a, series, k)) for a, k in places}
    here = {(a, k): wanted.config_here(a, series, k) for a, k in places if runs[a, k] is None}
    runs |= {place: found(config) for place, config in here.items()}
    missing = sum(run is None for run in runs.values())
    if missing and not wanted.quiet:
        click.echo(f"{missing} of {len(runs)} runs are not stored and run now", err=True)
    said = wanted.store.remarks()
    now = _run([config for place, config in here.items() if runs[place] is None], wanted)
    trials = {p: Trial.of(run or now[here[p].request], said) for p, run in runs.items()}
    return [
        Method(load_algorithm(a).title, tuple(trials[a, k] for k in wanted.seeds)) for a in algos
    ]


def stored(config: RunConfig, store: Store) -> StoredRun | None:
    """The stored run of `config`, or the same that recorded more."""
    return next(_all_stored(config, store), None)


def _all_stored(config: RunConfig, store: Store) -> Iterator[StoredRun]:
    """What is stored of `config`, with all that recorded more: what is recorded changes nothing
    else in a run."""
    recordable = {*RECORDABLE, *load_algorithm(config.algo).recordable}
    others = sorted(recordable - set(config.record))
    for count in range(len(others) + 1):
        for more in itertools.combinations(others, count):
            record = tuple(sorted((*config.record, *more)))
            if (run := store.find(replace(config, record=record))) is not None:
                yield run


def with_model(config: RunConfig, store: Store) -> StoredRun | None:
    """The stored run of `config`, or the same that recorded more, whose trained model is kept."""
    return next((run for run in _all_stored(config, store) if run.state() is not None), None)


def without_series(wanted: Wanted, algo: str, series: Sequence[str]) -> list[StoredRun] | None:
    """For each seed the run whose trained model is kept, where the series were not recorded: it
    need not be trained again for them. None where all series are stored, or a model is not."""
    check_taken([algo], wanted.hyper)
    _check_series(algo, series)
    seeds = wanted.seeds
    if all(stored(wanted.config(algo, series, k), wanted.store) for k in seeds):
        return None
    runs = [with_model(wanted.config_here(algo, (), k), wanted.store) for k in seeds]
    kept = [run for run in runs if run is not None]
    if len(kept) < len(seeds):
        return None
    if not wanted.quiet:
        click.echo(
            "the run is not trained again, since its model is kept; drawn without the series "
            f"{', '.join(series)} of every iteration, which `--record {','.join(series)}` records",
            err=True,
        )
    return kept


def _run(configs: Sequence[RunConfig], wanted: Wanted) -> dict[str, StoredRun]:
    requests = [Request(config, wanted.options.partition) for config in configs]
    with watch_runs(configs, wanted.quiet) as display:
        return run_all(requests, wanted.store, wanted.options, display).runs


def trained_model(wanted: Wanted, algo: str) -> Simulator:
    """The simulator of a run after its last round; the run is repeated if its state is gone."""
    check_taken([algo], wanted.hyper)
    config = wanted.config_here(algo)
    for run in _all_stored(config, wanted.store):
        if (simulator := kept_simulator(run, wanted.options)) is not None:
            return simulator
    with watch_runs([config], wanted.quiet) as display:
        return trained_simulator(config, wanted.store, wanted.options, display)


def kept_model(run: StoredRun, wanted: Wanted) -> Simulator:
    """The simulator of a stored run whose trained model is kept."""
    simulator = kept_simulator(run, wanted.options)
    assert simulator is not None
    return simulator


def _check_series(algo: str, series: Sequence[str]) -> None:
    recordable = {*RECORDABLE, *load_algorithm(algo).recordable}
    if absent := [name for name in series if name not in recordable]:
        able = [n for n in algorithm_names() if set(series) <= set(load_algorithm(n).recordable)]
        raise UserError(
            f"the figure needs the series {', '.join(absent)}, which {algo!r} does not record; "
            f"allowed: {', '.join(able)}"
        )
