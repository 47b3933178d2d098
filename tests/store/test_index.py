"""The index of a store: quick, and never believed over the files."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_store import CONFIG, ROUNDS, Config, run_until

from pfl_bench.store import index, records, stored_run
from pfl_bench.store.store import Store


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def full(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of three runs that have lain there for a while, looked at once."""
    for seed in range(3):
        run_until(store, ROUNDS, Config(seed=seed))
    monkeypatch.setattr(index, "SETTLED", -1)
    assert [run.status for run in store.all()] == ["finished"] * 3
    return store


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that are read from now on."""
    seen: list[Path] = []

    def read(folder: Path) -> Any:
        seen.append(folder)
        return stored_run.read_run(folder)

    monkeypatch.setattr(index, "read_run", read)
    return seen


def test_runs_that_have_not_changed_are_not_read_again(full: Store, reads: list[Path]) -> None:
    before = {run.key: run for run in map(stored_run.read_run, full.root.iterdir())}
    assert {run.key: run for run in full.all()} == before and reads == []
    assert all(run.records() == before[run.key].records() for run in full.all())


def test_every_change_of_a_file_is_seen(full: Store, reads: list[Path]) -> None:
    for folder in sorted(full.root.iterdir()):
        for name in ("config.json", "rounds.jsonl", "summary.json"):
            before = (folder / name).read_bytes()
            about = (folder / name).stat()
            (folder / name).write_bytes(before[:-9] + b"X" + before[-8:])
            os.utime(folder / name, ns=(about.st_atime_ns, about.st_mtime_ns))
            damaged = [run.path for run in full.all() if run.status == "damaged"]
            assert damaged == [folder], name
            (folder / name).write_bytes(before)
            assert all(run.status == "finished" for run in full.all())


def test_runs_come_and_go_and_are_repeated(full: Store) -> None:
    shutil.rmtree(full.folder(CONFIG))
    run_until(full, ROUNDS, Config(seed=9))
    (full.folder(Config(seed=1)) / "fresh").mkdir()
    keys = {Config(seed=seed).key for seed in (1, 2, 9)}
    assert {run.key for run in full.all()} == keys == {run.key for run in full.all()}


@pytest.mark.parametrize("content", [b"", b"nonsense", b"00000000\n{}", b"\xff" * 1000])
def test_a_damaged_index_is_made_again(
    full: Store, cache: Path, reads: list[Path], content: bytes
) -> None:
    (path,) = (cache / "stores").iterdir()
    sound = path.read_bytes()
    for spoilt in (content, sound[:-5], sound.replace(b"finished", b"diverged")):
        path.write_bytes(spoilt)
        assert [run.status for run in full.all()] == ["finished"] * 3
        assert len(reads) == 3 and path.read_bytes() == sound
        reads.clear()


def test_what_was_written_just_now_is_not_taken_for_settled(store: Store, cache: Path) -> None:
    run_until(store, ROUNDS)
    assert [run.status for run in store.all()] == ["finished"]
    assert not (cache / "stores").exists()


def test_a_cache_that_cannot_be_written_hinders_nobody(full: Store, cache: Path) -> None:
    shutil.rmtree(cache)
    cache.write_text("a file")
    assert len(list(full.all())) == 3


def test_opening_one_run_does_not_list_the_store(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(_: Any) -> Any:
        raise AssertionError("the store was listed")

    monkeypatch.setattr("pfl_bench.store.store.os.scandir", listed)
    assert full.find(CONFIG) is not None and full.folder(CONFIG).is_dir()


def test_a_folder_that_came_meanwhile_is_found_by_its_key(full: Store) -> None:
    asked = Config(seed=5)
    assert full.find(asked) is None
    run_until(Store(full.root), ROUNDS, Config(seed=5, slug="another-slug"))
    assert full.find(asked) is not None


def test_thousands_of_runs_are_listed_in_a_moment(full: Store) -> None:
    folder = full.folder(CONFIG)
    for number in range(1000):
        shutil.copytree(folder, full.root / f"copy{number}-{CONFIG.key}")
    first = len(list(full.all()))
    began = time.process_time()
    assert len(list(full.all())) == first == 1003
    assert time.process_time() - began < 1


def test_the_records_of_a_run_that_was_found_whole_are_not_judged_again(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    [run, *_] = [run for run in full.all() if run.status == "finished"]
    before = run.records()
    asked: list[Any] = []
    monkeypatch.setattr(records, "mismatch", lambda *about: asked.append(about))
    assert run.records() == before and len(before) == ROUNDS and not asked
    shorter = replace(run, shown=ROUNDS - 1)
    assert shorter.records() == before[:-1] and asked, (
        "other lines than those that were found whole"
    )


def test_where_nothing_is_attached_no_records_are_read_for_it(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(stored_run, "bytes_of", asked.append)
    assert all(run.attachment("attack-of-all") is None for run in full.all()) and not asked
