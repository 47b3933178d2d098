"""The road of all runs: stored results are taken, missing ones and what follows on them run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from prepared import NAME
from smalltables import loaded_plugins

from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.many import run_all
from pfl_bench.execution.observer import Began, Ended, Event, Failed, Observer
from pfl_bench.execution.options import Execution
from pfl_bench.execution.request import Request
from pfl_bench.execution.runner import execute
from pfl_bench.store.records import same_result
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun


def _configs(folder: Path, algo: str = "fedavg", seeds: int = 2) -> list[RunConfig]:
    chosen = {"algo": algo, "dataset": NAME, "clients": 2, "rounds": 2, "batch_size": 8}
    return configure(Profile("none", "", {}, {}, {}), chosen, {}, folder).seeded(seeds)


class _Diary(Observer):
    """Writes down every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def told(self, kind: type[Event]) -> list[str]:
        return [event.config.request for event in self.events if isinstance(event, kind)]


@dataclass(frozen=True)
class _Signed:
    """Something that follows on a run: a signature beside its result."""

    name: str

    def result(self, run: StoredRun) -> StoredRun | None:
        found = run.attachment(self.name)
        return None if found is None else replace(run, summary={**(run.summary or {}), **found})

    def compute(
        self, config: RunConfig, store: Store, options: Execution, observer: Observer
    ) -> StoredRun:
        run = store.find(config)
        assert run is not None and run.state() is not None, "the trained state is kept for it"
        run.attach(self.name, {"signed": config.seed})
        signed = self.result(run)
        assert signed is not None
        return signed


@pytest.fixture
def raising(tmp_path: Path) -> Iterator[tuple[Path, ...]]:
    steps = {"raising": "raise ArithmeticError('no such luck')"}
    with loaded_plugins(tmp_path, steps) as paths:
        yield paths


@pytest.mark.parametrize("jobs", [None, 2])
def test_what_is_stored_is_taken_and_what_is_missing_is_run_to_the_same_bits(
    folder: Path, store: Store, tmp_path: Path, jobs: int | None
) -> None:
    first, second = _configs(folder)
    earlier = execute(first, store, Execution(folder, workers=1))
    alone = execute(second, Store(tmp_path / "alone"), Execution(folder, workers=1))
    diary = _Diary()
    requests = [Request(first), Request(second), Request(second)]
    outcome = run_all(requests, store, Execution(folder, jobs=jobs, workers=1), diary)
    assert list(outcome.runs) == [first.request, second.request] and not outcome.failures
    assert outcome.stored == {first.request} and outcome.runs[first.request] == earlier
    assert all(map(same_result, outcome.runs[second.request].records(), alone.records()))
    assert diary.told(Began) == diary.told(Ended) == [second.request]


@pytest.mark.parametrize("jobs", [None, 1])
def test_what_follows_on_a_run_is_computed_once_and_also_on_a_run_that_is_stored(
    folder: Path, store: Store, jobs: int | None
) -> None:
    first, second = _configs(folder)
    execute(first, store, Execution(folder, workers=1, keep_state=True))
    requests = [Request(config, follow_up=_Signed("signature")) for config in (first, second)]
    options = Execution(folder, jobs=jobs, workers=1)
    outcome = run_all(requests, store, options)
    signed = {key: (run.summary or {})["signed"] for key, run in outcome.runs.items()}
    assert signed == {first.request: first.seed, second.request: second.seed}
    assert outcome.stored == frozenset()
    assert run_all(requests, store, options).stored == {first.request, second.request}


def test_an_error_in_a_worker_is_one_runs_failure_and_in_this_process_it_is_raised(
    folder: Path, store: Store, raising: tuple[Path, ...]
) -> None:
    (good,), (bad,) = _configs(folder, seeds=1), _configs(folder, "raising", seeds=1)
    requests, diary = [Request(bad), Request(good)], _Diary()
    options = Execution(folder, plugins=raising, workers=1)
    outcome = run_all(requests, store, replace(options, jobs=1), diary)
    assert list(outcome.runs) == diary.told(Ended) == [good.request]
    assert list(outcome.failures) == diary.told(Failed) == [bad.request]
    with pytest.raises(ArithmeticError, match="no such luck"):
        run_all(requests, store, options)


def test_a_fresh_run_takes_the_place_of_a_stored_one(folder: Path, store: Store) -> None:
    (config,) = _configs(folder, seeds=1)
    before = execute(config, store, Execution(folder, workers=1))
    outcome = run_all([Request(config)], store, Execution(folder, workers=1, fresh=True))
    after = outcome.runs[config.request]
    assert outcome.stored == frozenset() and before.summary and after.summary
    assert before.summary["records_sha256"] != after.summary["records_sha256"]  # other seconds
    assert all(map(same_result, before.records(), after.records()))
