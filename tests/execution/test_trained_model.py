"""The state after a run's last round: kept, given back, made up for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from prepared import NAME

from pfl_bench.base.errors import UserError
from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.engine.simulator import Simulator
from pfl_bench.execution import runner
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.observer import Began, Note, Observer, Round
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute, prepare
from pfl_bench.execution.trained_model import trained_simulator
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

ROUNDS = 4


def configured(folder: Path, algo: str = "fedcp", **chosen: object) -> RunConfig:
    values = {"algo": algo, "dataset": NAME, "clients": 2, "rounds": ROUNDS, "batch_size": 8}
    profile = Profile("none", "", {}, {}, {})
    return configure(profile, {**values, "lr": 0.05, **chosen}, {}, folder)


def uninterrupted(config: RunConfig, folder: Path) -> Simulator:
    """The run in memory alone, all rounds or as many as the records of a stored one."""
    simulator, _ = prepare(config, Execution(folder, workers=1, device="cpu"))
    for _ in simulator.rounds():
        pass
    return simulator


def assert_same_state(ours: Simulator, theirs: Simulator) -> None:
    assert ours.snapshot.round == theirs.snapshot.round
    mine, other = ours.snapshot.tensors(), theirs.snapshot.tensors()
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def contents(run: StoredRun) -> dict[str, bytes]:
    return {name: (run.path / name).read_bytes() for name in ("rounds.jsonl", "summary.json")}


class Log(Observer):
    def __init__(self, cut_after: int | None = None) -> None:
        self.cut_after = cut_after
        self.rounds: list[int] = []
        self.notes: list[str] = []

    def on_began(self, event: Began) -> None:
        self.earlier = len(event.earlier)

    def on_round(self, event: Round) -> None:
        self.rounds.append(event.record.round)
        if event.record.round == self.cut_after:
            raise KeyboardInterrupt

    def on_note(self, event: Note) -> None:
        self.notes.append(event.text)


def test_state_of_a_new_run_is_that_of_the_run_in_memory(folder: Path, store: Store) -> None:
    config = configured(folder)
    simulator = trained_simulator(config, store, Execution(folder))
    assert simulator.snapshot.round == ROUNDS
    assert_same_state(simulator, uninterrupted(config, folder))
    assert store.find(config) is not None


def test_kept_state_is_given_back_without_training(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(folder)
    first = trained_simulator(config, store, Execution(folder))
    monkeypatch.setattr(Simulator, "rounds", lambda self: pytest.fail("it was trained again"))
    assert_same_state(trained_simulator(config, store, Execution(folder)), first)


def test_finished_run_without_state_is_made_up_for_and_its_records_stay(
    folder: Path, store: Store
) -> None:
    config, log = configured(folder), Log()
    run = execute(config, store, Execution(folder))
    assert run.state() is None
    before = contents(run)
    assert_same_state(
        trained_simulator(config, store, Execution(folder), log), uninterrupted(config, folder)
    )
    assert log.rounds == list(range(1, ROUNDS + 1)) and not log.notes
    assert contents(run) == before
    assert not (run.path / "replay").exists()


def test_making_up_for_a_state_continues_where_it_was_cut_off(folder: Path, store: Store) -> None:
    config = configured(folder)
    run = execute(config, store, Execution(folder))
    before = contents(run)
    with pytest.raises(KeyboardInterrupt):
        trained_simulator(config, store, Execution(folder), Log(cut_after=2))
    assert store.find(config) == run
    log = Log()
    assert_same_state(
        trained_simulator(config, store, Execution(folder), log), uninterrupted(config, folder)
    )
    assert log.rounds == list(range(3, ROUNDS + 1))
    assert contents(run) == before


def test_state_is_that_of_the_round_at_which_patience_ended_the_run(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.Ending, "add", lambda self, record: record.round >= 3)
    simulator = trained_simulator(configured(folder), store, Execution(folder))
    assert simulator.snapshot.round == 3
    assert_same_state(simulator, uninterrupted(configured(folder, rounds=3), folder))


def test_damaged_state_is_computed_again(folder: Path, store: Store) -> None:
    config, log = configured(folder), Log()
    first = trained_simulator(config, store, Execution(folder))
    path = store.folder(config) / "state.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert_same_state(trained_simulator(config, store, Execution(folder), log), first)
    assert log.rounds


def test_state_of_another_method_is_refused_in_a_sentence(folder: Path, store: Store) -> None:
    config = configured(folder)
    run = execute(config, store, Execution(folder))
    with store.open(config) as writer:
        writer.keep_state({"server/nothing": torch.zeros(1)})
    with pytest.raises(UserError, match=f"kept in {run.path} does not fit: the server's state is"):
        trained_simulator(config, store, Execution(folder))


def test_repetition_leaves_no_state_of_the_result_it_replaces(folder: Path, store: Store) -> None:
    config = configured(folder)
    trained_simulator(config, store, Execution(folder))
    run = execute(config, store, Execution(folder, fresh=True))
    assert run.state() is None
    assert not (run.path / "state.safetensors").exists()


def test_repetition_can_keep_its_own_state(folder: Path, store: Store) -> None:
    config = configured(folder)
    first = trained_simulator(config, store, Execution(folder))
    run = execute(config, store, Execution(folder, fresh=True, keep_state=True))
    state = run.state()
    assert state is not None and state.round == ROUNDS
    assert state.tensors.keys() == first.snapshot.tensors().keys()


def test_stored_result_that_differs_from_its_replay_is_told(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, log = configured(folder), Log()
    execute(config, store, Execution(folder))
    monkeypatch.setattr("pfl_bench.execution.trained_model._agree", lambda one, other: False)
    trained_simulator(config, store, Execution(folder), log)
    assert len(log.notes) == 1 and "differs from the stored result" in log.notes[0]


def test_diverged_run_has_no_trained_model(folder: Path, store: Store) -> None:
    config = configured(folder, "fedavg", lr=1e10)
    with pytest.raises(UserError, match="no trained model: diverged"):
        trained_simulator(config, store, Execution(folder))


def test_keeping_the_state_changes_no_result(folder: Path, tmp_path: Path) -> None:
    config = configured(folder)
    kept = execute(config, Store(tmp_path / "a"), Execution(folder, keep_state=True))
    plain = execute(config, Store(tmp_path / "b"), Execution(folder))
    assert kept.path.name == plain.path.name
    assert [r.correct for r in kept.records()] == [r.correct for r in plain.records()]
