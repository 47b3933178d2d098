"""A longer run continues a stored shorter one, a shorter request is served from a longer run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prepared import NAME

from pfl_bench.base.errors import UserError
from pfl_bench.config.options import load_profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.observer import Note, Observer, Round
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.execution.trained_model import trained_simulator
from pfl_bench.plugins.registry import algorithm_names, load_algorithm
from pfl_bench.store.records import RoundRecord, same_result
from pfl_bench.store.store import Store

SHORT, LONG = 6, 12


class Log(Observer):
    """What was computed and said; interrupts after a round if told."""

    def __init__(self, cut_after: int | None = None) -> None:
        self.rounds: list[int] = []
        self.notes: list[str] = []
        self._cut_after = cut_after

    def on_round(self, event: Round) -> None:
        self.rounds.append(event.record.round)
        if event.record.round == self._cut_after:
            raise KeyboardInterrupt

    def on_note(self, event: Note) -> None:
        self.notes.append(event.text)


def configured(folder: Path, algo: str = "fedper", **chosen: Any) -> RunConfig:
    usual = {"dataset": NAME, "clients": 3, "rounds": SHORT, "batch_size": 4}
    chosen = {**usual, "algo": algo, **chosen}
    return configure(load_profile("paper"), chosen, {}, folder)


def assert_same(ours: list[RoundRecord], theirs: list[RoundRecord]) -> None:
    assert [record.round for record in ours] == [record.round for record in theirs]
    assert all(map(same_result, ours, theirs))


@pytest.fixture(scope="module")
def uninterrupted(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[RoundRecord]]:
    """Each method's records of the long run in one go."""
    store = Store(tmp_path_factory.mktemp("uninterrupted"))
    return {
        algo: execute(configured(folder, algo, rounds=LONG), store, Execution(folder)).records()
        for algo in algorithm_names()
    }


@pytest.mark.parametrize("algo", algorithm_names())
@pytest.mark.parametrize("keep_state", [True, False])
def test_six_rounds_and_then_twelve_give_the_bits_of_twelve(
    algo: str,
    keep_state: bool,
    folder: Path,
    store: Store,
    uninterrupted: dict[str, list[RoundRecord]],
) -> None:
    options, log = Execution(folder, keep_state=keep_state), Log()
    execute(configured(folder, algo), store, options)
    longer = execute(configured(folder, algo, rounds=LONG), store, options, log)
    assert_same(longer.records(), uninterrupted[algo])
    plans = load_algorithm(algo).plans_rounds
    assert log.rounds == list(range(SHORT + 1 if keep_state and not plans else 1, LONG + 1))
    assert len(list(store.all())) == (2 if plans else 1)
    said = [f"the state after round {SHORT} was not kept; it is computed once more"]
    assert log.notes == ([] if keep_state or plans else said)


def test_the_longer_run_says_how_long_it_is(folder: Path, store: Store) -> None:
    for rounds in (SHORT, LONG):
        execute(configured(folder, rounds=rounds), store, Execution(folder))
    (run,) = store.all()
    assert run.config["rounds"] == LONG
    assert run.summary is not None and run.summary["rounds"] == LONG
    assert not (run.path / "fresh").exists()


def test_a_shorter_request_is_served_from_the_longer_run(
    folder: Path, store: Store, tmp_path: Path
) -> None:
    short, long = configured(folder), configured(folder, rounds=LONG)
    execute(long, store, Execution(folder))
    log = Log()
    served = execute(short, store, Execution(folder), log)
    alone = execute(short, Store(tmp_path / "alone"), Execution(folder))
    assert log.rounds == []
    assert_same(served.records(), alone.records())
    assert served.summary is not None and alone.summary is not None
    for name in ("best", "last", "rounds", "status", "bytes_up_per_client"):
        assert served.summary[name] == alone.summary[name]
    assert served.config == alone.config
    assert served.state() is None
    whole = store.find(long)
    assert whole is not None and len(whole.records()) == LONG


def test_less_patience_is_served_and_more_goes_on(folder: Path, store: Store) -> None:
    def ending(**ends: Any) -> list[int]:
        log = Log()
        run = execute(configured(folder, **ends), store, Execution(folder, keep_state=True), log)
        return [len(run.records()), len(log.rounds)]

    impatient = ending(rounds=LONG, patience=1)
    assert impatient[0] < LONG
    assert ending(rounds=LONG) == [LONG, LONG - impatient[0]]
    assert ending(rounds=LONG, patience=1) == [impatient[0], 0]


def test_a_continuation_that_is_cut_off_leaves_the_shorter_result_and_goes_on(
    folder: Path, store: Store, uninterrupted: dict[str, list[RoundRecord]]
) -> None:
    short, long = configured(folder), configured(folder, rounds=LONG)
    options = Execution(folder, keep_state=True)
    execute(short, store, options)
    with pytest.raises(KeyboardInterrupt):
        execute(long, store, options, Log(cut_after=9))
    kept = store.find(short)
    assert kept is not None and len(kept.records()) == SHORT
    assert store.find(long) is None
    log = Log()
    assert_same(execute(long, store, options, log).records(), uninterrupted["fedper"])
    assert log.rounds == [10, 11, 12]


def test_an_unfinished_run_may_end_later_than_it_was_begun_for(
    folder: Path, store: Store, uninterrupted: dict[str, list[RoundRecord]]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        execute(configured(folder), store, Execution(folder), Log(cut_after=4))
    log = Log()
    run = execute(configured(folder, rounds=LONG), store, Execution(folder), log)
    assert_same(run.records(), uninterrupted["fedper"])
    assert log.rounds[0] == 5
    assert run.config["rounds"] == LONG


def test_the_trained_model_of_a_shorter_request_is_that_of_its_last_round(
    folder: Path, store: Store, tmp_path: Path
) -> None:
    short, options = configured(folder), Execution(folder, keep_state=True)
    execute(configured(folder, rounds=LONG), store, options)
    served = trained_simulator(short, store, options).snapshot
    alone = trained_simulator(short, Store(tmp_path / "alone"), options).snapshot
    assert served.round == alone.round == SHORT
    ours, theirs = served.tensors(), alone.tensors()
    assert all(bool((ours[name] == theirs[name]).all()) for name in theirs)
    longer = store.find(configured(folder, rounds=LONG))
    assert longer is not None and longer.state() is not None


def test_a_run_that_took_long_keeps_its_state(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfl_bench.execution.runner.KEEP_SECONDS", 0.0)
    assert execute(configured(folder), store, Execution(folder)).state() is not None


def test_a_default_that_has_changed_is_not_taken_for_the_old_one(
    folder: Path, store: Store
) -> None:
    config = configured(folder, "fedprox")
    execute(config, store, Execution(folder))
    changed = replace(config, hyper={"mu": 0.5}, rounds=LONG)
    assert changed.key == config.key
    with pytest.raises(UserError, match="the default has changed since"):
        execute(changed, store, Execution(folder))
