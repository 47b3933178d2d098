"""A run on a node, without a cluster: what arrives is enough, what leaves is the result."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from toy import toy_config, toy_dataset, toy_partition, toy_run

from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.cluster.node import (
    STALE_SECONDS,
    Answer,
    Files,
    Order,
    Saved,
    carry_out,
    difference,
    installation,
)
from pfl_bench.execution.observer import Began, Event, Round
from pfl_bench.plugins import registry
from pfl_bench.store.records import RoundRecord, read_lines, same_result

PLUGIN = b"""
from pfl_bench.engine.algorithm import Algorithm

class Own(Algorithm):
    title, summary, citation, scored_model = "Own", "Own.", "none", "the global model"
"""


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A node's folder for temporary files, and a registry without plugins."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(registry, "_files", {})
    return tmp_path


def _carry_out(
    config: RunConfig,
    files: Files | None = None,
    letters: list[Event | Saved] | None = None,
    **order: object,
) -> Answer:
    dataset = toy_dataset()
    dataset.x.flags.writeable = False  # as memory shared by all runs of a node is
    plain = {"config": config.to_dict(), "installation": installation(), **order}
    post = (letters if letters is not None else []).append
    return carry_out(Order(**plain), dataset, toy_partition(config, dataset), files or {}, post)  # type: ignore[arg-type]


def _records(answer: Answer) -> list[RoundRecord]:
    assert answer.files is not None, answer
    return read_lines(answer.files["rounds.jsonl"])[0]


def test_the_result_is_the_same_bits_and_nothing_stays_on_the_node(own_place: Path) -> None:
    config = toy_config("fedper")
    answer = _carry_out(config)
    assert all(map(same_result, _records(answer), toy_run(config)))
    assert list(own_place.iterdir()) == []


def test_a_run_continues_from_the_files_that_were_sent(own_place: Path) -> None:
    config, letters = toy_config("fedper", rounds=4), list[Event | Saved]()
    whole = _carry_out(config, letters=letters, checkpoint_every=2)
    (saved,) = (letter for letter in letters if isinstance(letter, Saved))
    again = list[Event | Saved]()
    ended = _carry_out(config, saved.files, again)
    first = again[0]
    assert saved.round == 2 and isinstance(first, Began) and len(first.earlier) == 2
    assert not [each for each in again if isinstance(each, Round) and each.record.round < 3]
    assert all(map(same_result, _records(ended), _records(whole)))


def test_a_node_with_other_versions_or_other_code_refuses() -> None:
    config = toy_config()
    for name in ("torch", "Python", "the code of pfl-bench"):
        answer = _carry_out(config, installation={**installation(), name: "0.1"})
        assert answer.files is None
        assert answer.mismatch == f"{name} is 0.1 here and {installation()[name]} there"
    assert difference(installation(), dict(installation())) is None


def test_a_plugin_arrives_as_its_content_and_must_be_the_one_that_was_ordered() -> None:
    import hashlib

    digest = hashlib.sha256(PLUGIN).hexdigest()[:16]
    config = replace(toy_config(), algo="own", plugin=digest)
    expected = toy_run(toy_config())  # it changes nothing about FedAvg
    answer = _carry_out(config, plugins={"own": PLUGIN})
    assert all(map(same_result, _records(answer), expected))
    edited = _carry_out(replace(config, plugin="0" * 16), plugins={"own": PLUGIN})
    assert edited.error is not None and "is not the one of this run" in edited.error


def test_an_error_is_told_and_does_not_end_the_node() -> None:
    answer = _carry_out(replace(toy_config(), algo="nothing"))
    assert answer.error is not None and answer.error.startswith("unknown algorithm 'nothing'")


def test_folders_of_killed_runs_are_removed_and_those_of_live_ones_are_not(own_place: Path) -> None:
    from filelock import FileLock

    killed, alive, young = (own_place / f"pfl-bench-run-{name}" for name in ("a", "b", "c"))
    for folder in (killed, alive, young):
        folder.mkdir()
        (folder / "rounds.jsonl").write_text("")
    with FileLock(alive / "alive.lock"):
        for folder in (killed, alive):
            past = folder.stat().st_mtime - 2 * STALE_SECONDS
            os.utime(folder, (past, past))
        _carry_out(toy_config(rounds=1))
        assert sorted(own_place.iterdir()) == [alive, young]
