"""A store read once answers from what it read, and looks for what was not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy import toy_config

from pfl_bench.reporting.read_store import ReadStore
from pfl_bench.store import index
from pfl_bench.store.records import RoundRecord
from pfl_bench.store.store import Store


def _keep(store: Store, seed: int) -> None:
    with store.open(toy_config(seed=seed, rounds=2)) as writer:
        for round in (1, 2):
            writer.append(RoundRecord(round, [0], [round], [4], [0.1]))
        writer.finish("finished")


def test_every_run_is_read_once_however_often_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (0, 1):
        _keep(Store(tmp_path), seed)
    read: list[Path] = []
    really_read = index.read_run
    monkeypatch.setattr(
        index, "read_run", lambda folder: read.append(folder) or really_read(folder)
    )
    store = ReadStore(tmp_path)
    assert not read, "nothing is read before anything is asked"
    for _ in range(3):
        assert len(list(store.all())) == 2 and store.remarks() == {}
        assert all(store.find(toy_config(seed=seed, rounds=2)) for seed in (0, 1))
    assert len(read) == 2


def test_a_shorter_run_is_the_beginning_of_the_one_that_was_read(tmp_path: Path) -> None:
    _keep(Store(tmp_path), 0)
    store = ReadStore(tmp_path)
    found = store.find(toy_config(seed=0, rounds=1))
    assert found is not None and len(found.records()) == 1
    assert store.find(toy_config(seed=0, rounds=3)) is None


def test_a_run_that_came_later_is_found(tmp_path: Path) -> None:
    store = ReadStore(tmp_path)
    assert list(store.all()) == []
    _keep(Store(tmp_path), 0)
    assert store.find(toy_config(seed=0, rounds=2)) is not None
