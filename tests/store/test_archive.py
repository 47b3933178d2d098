"""Stores in one file: packed alike, read like a folder, merged, refused where they are traps."""

from __future__ import annotations

import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from madestore import keep
from toy import toy_config

from pfl_bench.base.errors import UserError
from pfl_bench.cli import main
from pfl_bench.config.run_config import RunConfig
from pfl_bench.store import archive
from pfl_bench.store.records import seal
from pfl_bench.store.store import Store

CONFIGS = [toy_config("fedavg", seed=seed) for seed in (0, 1)]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in arguments])


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A store of two finished runs."""
    store = Store(tmp_path / "results")
    for config in CONFIGS:
        keep(store, config, [[5, 6, 7, 8], [6, 7, 8, 9], [7, 8, 9, 10]])
    return store.root


@pytest.fixture
def packed(results: Path) -> Path:
    assert call("results", "pack", results).exit_code == 0
    return results.with_suffix(".zip")


def test_an_archive_answers_like_the_folder_it_was_made_of(results: Path, packed: Path) -> None:
    ours, theirs = Store(packed), Store(results)
    assert [run.path.name for run in ours.all()] == [run.path.name for run in theirs.all()]
    for config in CONFIGS:
        found, meant = ours.find(config), theirs.find(config)
        assert found is not None and meant is not None
        assert found.summary == meant.summary
        assert found.records() == meant.records()


def test_equal_results_make_equal_bytes(results: Path, packed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(results, copy)
    for path in copy.rglob("*"):
        path.touch()
    call("results", "pack", copy, "--out", tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()


def test_states_and_unfinished_runs_stay_behind(results: Path, tmp_path: Path) -> None:
    (next(results.iterdir()) / "state.safetensors").write_bytes(b"large")
    begun = results / "begun-0123456789abcdef"
    begun.mkdir()
    done = call("results", "pack", results, "--out", tmp_path / "some.zip")
    assert "left out: begun-0123456789abcdef" in done.output
    with zipfile.ZipFile(tmp_path / "some.zip") as found:
        names = {Path(name).name for name in found.namelist()}
    assert names == {"config.json", "rounds.jsonl", "summary.json"}


def test_an_archive_is_never_written(packed: Path) -> None:
    before = packed.read_bytes()
    with (
        pytest.raises(UserError, match="is an archive, from which results are read"),
        Store(packed).open(CONFIGS[0]),
    ):
        pass
    Store(packed).tidy()
    assert packed.read_bytes() == before


def test_merging_brings_what_is_missing_and_keeps_what_is_there(
    results: Path, packed: Path, tmp_path: Path
) -> None:
    shutil.rmtree(Store(results).folder(CONFIGS[0]))
    done = call("results", "merge", packed, "--results", results)
    assert "1 runs added" in done.output and "1 were there already" in done.output
    assert all(Store(results).find(config) is not None for config in CONFIGS)
    assert call("results", "merge", packed, "--results", tmp_path / "new").exit_code == 0
    assert len(list(Store(tmp_path / "new").all())) == 2


def test_a_different_result_of_the_same_name_is_told_and_stays(
    packed: Path, tmp_path: Path
) -> None:
    other = Store(tmp_path / "other")
    keep(other, CONFIGS[0], [[1, 1, 1, 1]] * 3)
    done = call("results", "merge", packed, "--results", other.root)
    assert done.exit_code == 1
    assert f"conflict: {other.folder(CONFIGS[0]).name}" in done.output
    run = other.find(CONFIGS[0])
    assert run is not None and run.records()[-1].correct == [1, 1, 1, 1]
    assert other.find(CONFIGS[1]) is not None


def test_attacks_on_a_run_and_on_its_beginning_are_packed_and_merged(
    results: Path, tmp_path: Path
) -> None:
    bare = Path(shutil.copytree(results, tmp_path / "bare"))
    whole = Store(results).find(CONFIGS[0])
    assert whole is not None
    beginning = whole.until(2, None)
    assert beginning is not None
    for run, name in ((whole, "attack-of-all"), (beginning, "attack-of-two")):
        run.attach(name, {"planned": 0, "victims": []})
    (whole.path / "attack-of-none.json").write_text(seal({"of": "0" * 64, "victims": []}))
    call("results", "pack", results, "--out", tmp_path / "packed.zip")
    for source in (results, tmp_path / "packed.zip"):
        done = call("results", "merge", source, "--results", bare)
        assert ("1 runs here now have more attacks" in done.output) is (source == results)
        there = Store(bare).find(CONFIGS[0])
        assert there is not None
        shorter = there.until(2, None)
        assert shorter is not None
        assert there.attachment("attack-of-all") and not there.attachment("attack-of-two")
        assert shorter.attachment("attack-of-two") and not shorter.attachment("attack-of-all")
    with zipfile.ZipFile(tmp_path / "packed.zip") as found:
        assert sum("attack" in name for name in found.namelist()) == 2


def test_the_results_command_lists_an_archive(packed: Path) -> None:
    done = call("results", "list", "--results", packed)
    assert done.exit_code == 0
    assert done.output.count("fedavg") == 2


# --- traps ----------------------------------------------------------------------------------------


def _named(name: str) -> Callable[[zipfile.ZipFile], None]:
    return lambda target: target.writestr(name, b"{}")


def _link(target: zipfile.ZipFile) -> None:
    entry = zipfile.ZipInfo("run-0123456789abcdef/config.json")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    target.writestr(entry, b"/etc/passwd")


def _twice(target: zipfile.ZipFile) -> None:
    for _ in range(2):
        target.writestr("run-0123456789abcdef/config.json", b"{}")


TRAPS: dict[str, Callable[[zipfile.ZipFile], None]] = {
    "upwards": _named("../run-0123456789abcdef/config.json"),
    "absolute": _named("/tmp/run-0123456789abcdef/config.json"),
    "nested": _named("a/run-0123456789abcdef/config.json"),
    "another system's": _named("run-0123456789abcdef\\config.json"),
    "another file": _named("run-0123456789abcdef/setup.py"),
    "a checkpoint": _named("run-0123456789abcdef/checkpoint-1.safetensors"),
    "a link": _link,
    "a file twice": _twice,
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("trap", TRAPS)
def test_an_archive_with_a_trap_is_refused_and_nothing_is_unpacked(
    trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "trap.zip"
    with zipfile.ZipFile(path, "w") as target:
        TRAPS[trap](target)
    done = call("results", "list", "--results", path)
    assert done.exit_code == 2
    assert done.output.count("\n") == 1 and "Traceback" not in done.output
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_bomb_is_refused_before_it_goes_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LARGEST_MEMBER", 1000)
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("run-0123456789abcdef/config.json", b" " * 1001)
    assert call("results", "list", "--results", path).exit_code == 2


@pytest.mark.parametrize("cut", [0, 10, 200, -30])
def test_a_cut_archive_is_one_sentence(cut: int, packed: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.zip"
    path.write_bytes(packed.read_bytes()[:cut])
    done = call("results", "list", "--results", path)
    assert done.exit_code == 2 and done.output.count("\n") == 1


def test_a_flipped_byte_is_noticed(packed: Path, tmp_path: Path) -> None:
    """By the zip's checksum, or by the run's own seals."""
    data = packed.read_bytes()
    for place in range(60, len(data) // 2, 97):
        path = tmp_path / f"{place}.zip"
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        done = call("results", "list", "--results", path)
        assert done.exit_code in (0, 2) and "Traceback" not in done.output
        if done.exit_code == 0:
            assert sound(Store(path)) <= sound(Store(packed))


def sound(store: Store) -> set[str]:
    finished = (run for run in store.all() if run.is_final and run.summary is not None)
    return {run.summary["records_sha256"] for run in finished if run.summary is not None}


def test_a_link_to_an_archive_s_content_is_not_followed_when_merging(
    packed: Path, tmp_path: Path
) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    outside.mkdir()
    target.mkdir()
    config: RunConfig = CONFIGS[0]
    (target / Store(packed).folder(config).name).symlink_to(outside)
    call("results", "merge", packed, "--results", target)
    assert not list(outside.iterdir())


def with_model(store: Store, config: RunConfig) -> None:
    with store.open(config) as writer:
        writer.keep_state({"server/head": torch.arange(3.0)})


def test_models_are_packed_on_request_and_merged_where_they_are_missing(
    results: Path, tmp_path: Path
) -> None:
    with_model(Store(results), CONFIGS[0])
    archive_, target = tmp_path / "models.zip", tmp_path / "target"
    assert call("results", "pack", results, "--models", "--out", archive_).exit_code == 0
    call("results", "pack", results, "--out", tmp_path / "plain.zip")
    call("results", "merge", tmp_path / "plain.zip", "--results", target)
    assert [run.state() for run in Store(target).all()] == [None, None]
    done = call("results", "merge", archive_, "--results", target)
    assert "1 of those now have a trained model too" in done.output
    found = Store(target).find(CONFIGS[0])
    assert found is not None and (state := found.state()) is not None
    assert torch.equal(state.tensors["server/head"], torch.arange(3.0))


def test_a_damaged_model_is_not_packed(results: Path, tmp_path: Path) -> None:
    (next(results.iterdir()) / "state.safetensors").write_bytes(b"large")
    call("results", "pack", results, "--models", "--out", tmp_path / "some.zip")
    with zipfile.ZipFile(tmp_path / "some.zip") as found:
        assert not any(name.endswith("safetensors") for name in found.namelist())
