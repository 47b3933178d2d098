"""A run carried from one store to another: the same bits, verified, whole or not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy import toy_config, toy_dataset, toy_partition

from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.observer import Checkpointed, Observer
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.store import writer
from pfl_bench.store.records import DamagedError, RoundRecord, same_result
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun, read_run


class _Courier(Observer):
    """Keeps what can be carried away at every checkpoint."""

    def __init__(self) -> None:
        self.loads: list[dict[str, bytes]] = []

    def on_checkpointed(self, event: Checkpointed) -> None:
        self.loads.append(event.writer.carry())


@pytest.fixture
def options() -> Execution:
    dataset = toy_dataset(samples=160)
    given = (dataset, toy_partition(toy_config(), dataset))
    return Execution(Path("no-data"), workers=1, checkpoint_every=1, given=given)


def _adopt(store: Store, config: RunConfig, files: dict[str, bytes]) -> StoredRun:
    with store.open(config) as writer:
        return writer.adopt(files)


def test_checkpoints_of_records_that_were_replaced_do_not_outlive_them(tmp_path: Path) -> None:
    config = toy_config()
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    for store, last in ((here, 9), (there, 2)):
        with store.open(config) as writer:
            for round in range(1, last + 1):
                writer.append(RoundRecord(round, [0], [last], [10], [0.5]))
                writer.save_checkpoint(round, {"server/x": torch.full((1,), float(last))}, {})
    with there.open(config) as writer:
        files = writer.carry()
    with here.open(config) as writer:
        writer.adopt(files)
    with here.open(config) as writer:
        assert writer.checkpoint is not None and writer.checkpoint.round == 2
        assert not writer.notes


def test_a_repetition_half_way_to_its_place_is_carried_whole(
    tmp_path: Path, options: Execution
) -> None:
    config, there = toy_config(), Store(tmp_path / "there")
    run = execute(config, Store(tmp_path / "here"), options)
    fresh = run.path / "fresh"
    fresh.mkdir()
    (run.path / "summary.json").rename(fresh / "summary.json")
    moved = read_run(run.path)
    assert moved.home == fresh
    assert _adopt(there, config, moved.carry()).summary == run.summary


def test_a_result_arrives_as_it_left(tmp_path: Path, options: Execution) -> None:
    config, there = toy_config(), Store(tmp_path / "there")
    run = execute(config, Store(tmp_path / "here"), options)
    arrived = _adopt(there, config, run.carry())
    assert arrived.summary == run.summary and arrived.records() == run.records()
    assert there.find(config) == arrived


def test_a_kept_state_travels_with_its_result(tmp_path: Path, options: Execution) -> None:
    config, there = toy_config(), Store(tmp_path / "there")
    run = execute(config, Store(tmp_path / "here"), replace(options, keep_state=True))
    kept, arrived = run.state(), _adopt(there, config, run.carry()).state()
    assert kept is not None and arrived is not None and kept.round == arrived.round
    assert all(torch.equal(kept.tensors[name], value) for name, value in arrived.tensors.items())


def test_a_run_continues_in_another_store_to_the_same_end(
    tmp_path: Path, options: Execution
) -> None:
    config, courier = toy_config(rounds=4), _Courier()
    whole = execute(config, Store(tmp_path / "here"), options, courier)
    there = Store(tmp_path / "there")
    for load in courier.loads[:2]:
        assert _adopt(there, config, load).status == "interrupted"
    with there.open(config) as writer:
        assert writer.checkpoint is not None and writer.checkpoint.round == 2
    ended = execute(config, there, options)
    assert (ended.summary or {})["provenance"]["resumed_after_round"] == 2
    assert all(map(same_result, ended.records(), whole.records()))


@pytest.mark.parametrize("steps", range(4))
def test_an_arrival_cut_off_between_two_writes_is_a_run_to_resume(
    tmp_path: Path, options: Execution, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    config, courier, there = toy_config(), _Courier(), Store(tmp_path / "there")
    run = execute(config, Store(tmp_path / "here"), options, courier)
    _adopt(there, config, courier.loads[0])
    with there.open(config) as writer:  # the configuration, and who computes the run, are written
        _cut_off_after(monkeypatch, steps)
        for load in (courier.loads[1], run.carry()):
            try:
                writer.adopt(load)
            except _CutError:
                break
    monkeypatch.undo()
    assert there.find(config) is None
    ended = execute(config, there, options)
    assert all(map(same_result, ended.records(), run.records()))
    assert (ended.summary or {})["provenance"]["resumed_after_round"] in (1, 2)


class _CutError(Exception):
    """The process is gone."""


def _cut_off_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    real, done = writer.write_atomically, []

    def write(path: Path, content: bytes | str) -> None:
        if len(done) == steps:
            raise _CutError
        done.append(path)
        real(path, content)

    monkeypatch.setattr(writer, "write_atomically", write)


@pytest.mark.parametrize("name", ["rounds.jsonl", "summary.json"])
def test_a_result_damaged_on_its_way_is_refused_and_leaves_no_trace(
    tmp_path: Path, options: Execution, name: str
) -> None:
    config, there = toy_config(), Store(tmp_path / "there")
    files = execute(config, Store(tmp_path / "here"), options).carry()
    half = len(files[name]) // 2
    flipped = bytes([files[name][half] ^ 1])
    files[name] = files[name][:half] + flipped + files[name][half + 1 :]
    with pytest.raises(DamagedError):
        _adopt(there, config, files)
    assert [path.name for path in there.folder(config).iterdir() if ".lock" not in path.name] == [
        "config.json"
    ]


def test_another_runs_result_and_other_files_are_refused(
    tmp_path: Path, options: Execution
) -> None:
    files = execute(toy_config(), Store(tmp_path / "here"), options).carry()
    there = Store(tmp_path / "there")
    with pytest.raises(DamagedError, match="belongs to the run"):
        _adopt(there, toy_config(seed=1), files)
    with pytest.raises(DamagedError, match="is no file of a run"):
        _adopt(there, toy_config(), {"../../outside": b""})
    assert not (tmp_path / "outside").exists()
