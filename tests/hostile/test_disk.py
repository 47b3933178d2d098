"""A hostile disk: full, read-only, vanished, damaged, shared, copied: a sentence, and no loss."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import invoke
from prepared import NAME, prepare_toy
from processes import Child, FailAtStep, command, needs_fork, until

from pfl_bench.base.errors import UserError
from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.observer import Began, Note, Observer, Round
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.store.records import same_result
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

ROUNDS = 4
FLAGS = {
    "dataset": NAME, "algo": "ditto", "clients": 2, "rounds": ROUNDS, "batch_size": 8, "lr": 0.05,
}  # fmt: skip


def configured(data: Path, **chosen: Any) -> RunConfig:
    return configure(Profile("none", "", {}, {}, {}), {**FLAGS, **chosen}, {}, data)


def arguments(data: Path, results: Path) -> list[str]:
    flags = [(f"--{name.replace('_', '-')}", str(value)) for name, value in FLAGS.items()]
    return [
        "run", "--profile", "paper", "--data-dir", str(data), "--results", str(results),
        "--checkpoint-every", "1",
        *(part for flag in flags for part in flag),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """The run on a disk that did nothing to it."""
    store = Store(tmp_path_factory.mktemp("whole"))
    return execute(configured(data), store, Execution(data, workers=1, keep_state=True))


class Log(Observer):
    """Writes down what it is told; dies after a round, as a process would."""

    def __init__(self, dies_after: int | None = None):
        self.dies_after = dies_after
        self.notes: list[str] = []
        self.earlier = 0

    def on_began(self, event: Began) -> None:
        self.earlier = len(event.earlier)

    def on_round(self, event: Round) -> None:
        if event.record.round == self.dies_after:
            raise Killed

    def on_note(self, event: Note) -> None:
        self.notes.append(event.text)


class Killed(BaseException):
    """Stands for the sudden death of the process."""


def cut_off(data: Path, root: Path) -> Path:
    """The folder of a run that died in its last round, with two checkpoints."""
    options = Execution(data, workers=1, checkpoint_every=1)
    with pytest.raises(Killed):
        execute(configured(data), Store(root), options, Log(dies_after=ROUNDS))
    return Store(root).folder(configured(data))


def assert_same(run: StoredRun | None, whole: StoredRun) -> None:
    assert run is not None and run.status == "finished"
    assert all(same_result(a, b) for a, b in zip(run.records(), whole.records(), strict=True))


def assert_one_sentence(said: str) -> None:
    errors = [line for line in said.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1 and said.endswith(errors[0] + "\n"), said
    assert "Traceback" not in said


# --- full, read-only, failing ---------------------------------------------------------------------

FAULTS = {"full": errno.ENOSPC, "failing": errno.EIO, "read-only": errno.EROFS}


@needs_fork
@pytest.mark.parametrize("fault", FAULTS)
def test_a_disk_that_refuses_any_one_touch_costs_one_sentence_and_no_result(
    data: Path, whole: StoredRun, tmp_path: Path, fault: str
) -> None:
    """The faults share the steps out among themselves; every one falls somewhere in the run."""
    refused = tolerated = 0
    for step in range(1 + list(FAULTS).index(fault), 60, 3):
        root, out = tmp_path / str(step), tmp_path / f"out{step}"
        attack = FailAtStep(root, step, FAULTS[fault])
        child = Child(out, attack, command, *arguments(data, root))
        if child.wait() == 0:
            tolerated += 1
        else:
            refused += 1
            assert child.wait() == 2, child.said
            assert_one_sentence(child.said)
        assert not any(run.status == "damaged" and run.config for run in Store(root).all())
        assert_same(execute(configured(data), Store(root), Execution(data, workers=1)), whole)
    assert refused > tolerated


@needs_fork
def test_a_disk_that_goes_bad_for_good_costs_one_sentence_and_the_run_continues_elsewhere(
    data: Path, whole: StoredRun, tmp_path: Path
) -> None:
    for step in (2, 9, 20, 31, 42):
        root, out = tmp_path / str(step), tmp_path / f"out{step}"
        attack = FailAtStep(root, step, errno.EIO, forever=True)
        child = Child(out, attack, command, *arguments(data, root))
        assert child.wait() == 2, child.said
        assert_one_sentence(child.said)
        assert_same(execute(configured(data), Store(root), Execution(data, workers=1)), whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with room for one checkpoint; only the superuser can have one."""
    place = tmp_path / "small disk"
    place.mkdir()
    if shutil.which("mount") is None or not mount(place, "size=1600k", "-t", "tmpfs", "none"):
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def mount(place: Path, options: str, *more: str) -> bool:
    line = ["mount", "-o", options, *more, str(place)]
    return subprocess.run(line, capture_output=True).returncode == 0


def test_a_full_disk_is_one_sentence_and_with_room_the_run_continues_to_the_same_bits(
    data: Path, whole: StoredRun, small_disk: Path
) -> None:
    """The first checkpoint fits, the second does not."""
    result = invoke(*arguments(data, small_disk / "results"))
    assert result.exit_code == 2
    assert_one_sentence(result.stderr)
    assert "No space left on device" in result.stderr and "small disk" in result.stderr
    assert mount(small_disk, "remount,size=20m")
    again = invoke(*arguments(data, small_disk / "results"))
    assert again.exit_code == 0 and "continues after round" in again.stderr
    assert_same(next(Store(small_disk / "results").all()), whole)


def test_a_read_only_folder_gives_its_results_and_refuses_new_ones_in_one_sentence(
    data: Path, whole: StoredRun, small_disk: Path
) -> None:
    shutil.copytree(whole.path, small_disk / whole.path.name, ignore=only_the_result)
    assert mount(small_disk, "remount,ro")
    for line in (arguments(data, small_disk), ["results", "list", "--results", small_disk]):
        assert invoke(*line).exit_code == 0
    for more in (["--seed", "1"], ["--fresh"]):
        result = invoke(*arguments(data, small_disk), *more)
        assert result.exit_code == 2
        assert_one_sentence(result.stderr)
        assert "Read-only file system" in result.stderr
    assert_same(Store(small_disk).find(configured(data)), whole)


def only_the_result(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith((".json", ".jsonl"))]


# --- data that vanish or change -------------------------------------------------------------------


def test_a_data_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    result = invoke(*arguments(tmp_path / "gone", tmp_path / "results"))
    assert result.exit_code == 2
    assert_one_sentence(result.stderr)
    assert str(tmp_path / "gone") in result.stderr


def test_a_data_folder_that_vanishes_during_a_run_is_not_missed(
    whole: StoredRun, tmp_path: Path
) -> None:
    """What a run needs is in memory from its first round on; continuing it needs the data again."""
    data = prepare_toy(tmp_path / "data", samples=64)

    class Vanishing(Log):
        def on_round(self, event: Round) -> None:
            shutil.rmtree(data, ignore_errors=True)

    run = execute(configured(data), Store(tmp_path / "results"), Execution(data), Vanishing())
    assert_same(run, whole)


TABLE = """
caption: two sets
run: {source: real, clients: 2, rounds: 300, batch_size: 8}
columns: [{name: toy, run: {dataset: toy}}, {name: other, run: {dataset: other}}]
rows: [{name: FedAvg, run: {algo: fedavg}}]
"""


@needs_fork
def test_data_that_vanish_in_the_middle_of_a_table_fail_their_runs_and_no_others(
    tmp_path: Path,
) -> None:
    data, results = prepare_toy(tmp_path / "data", samples=64), tmp_path / "results"
    shutil.copy(data / f"{NAME}.npz", data / "other.npz")
    (tmp_path / "mine.yaml").write_text(TABLE)
    (tmp_path / "plain.yaml").write_text("run: {}\n")
    child = Child(
        tmp_path / "out", None, command, "table", tmp_path / "mine.yaml", "--seeds", 1,
        "--profile", tmp_path / "plain.yaml", "--data-dir", data, "--results", results,
    )  # fmt: skip
    until(lambda: any(run.records() for run in Store(results).all()))
    shutil.rmtree(data)
    assert child.wait() == 1, child.said
    failure = child.said.splitlines()[-1]
    assert "FedAvg, other, seed 0: " in failure and str(data) in failure
    assert "Traceback" not in child.said
    (run,) = (run for run in Store(results).all() if run.is_final)
    assert run.config["dataset"] == NAME


def test_data_that_changed_since_they_were_planned_are_not_trained_on(tmp_path: Path) -> None:
    """Otherwise a result would stand under the name of data that it does not come from."""
    data = prepare_toy(tmp_path / "data", samples=64)
    planned = configured(data)
    prepare_toy(data, samples=64, seed=1)
    with pytest.raises(UserError, match="are not those that the run was configured for"):
        execute(planned, Store(tmp_path / "results"), Execution(data))
    assert not (tmp_path / "results").exists()
    changed = configured(data)
    assert changed.key != planned.key
    assert execute(changed, Store(tmp_path / "results"), Execution(data)).status == "finished"


def test_other_data_of_the_same_size_and_age_are_told_apart(tmp_path: Path) -> None:
    """As a copy that keeps the times, or a clock that was set back, leaves them."""
    data = prepare_toy(tmp_path / "data", samples=64)
    file = data / f"{NAME}.npz"
    before, first = file.stat(), configured(data)
    content = dict(np.load(file))
    np.savez(file, x=content["x"][::-1], y=content["y"])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert configured(data).data_fingerprint != first.data_fingerprint


# --- damage ---------------------------------------------------------------------------------------


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Cut at any byte, or with one bit flipped anywhere."""
    place = rng.randrange(len(content))
    if rng.random() < 0.5:
        return content[:place]
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


@pytest.mark.parametrize("name", ["checkpoint-3.safetensors", "rounds.jsonl", "config.json", "all"])
def test_a_run_with_damaged_files_continues_to_the_same_bits_and_says_what_it_dropped(
    data: Path, whole: StoredRun, tmp_path: Path, name: str
) -> None:
    rng = random.Random(name)
    sound = cut_off(data, tmp_path / "sound")
    names = ["checkpoint-2.safetensors", "checkpoint-3.safetensors", "rounds.jsonl"]
    for case in range(12):
        root = tmp_path / str(case)
        folder = root / sound.name
        shutil.copytree(sound, folder)
        for hit in names if name == "all" else [name]:
            content = (folder / hit).read_bytes()
            (folder / hit).write_bytes(damaged(content, rng))
        log = Log()
        run = execute(configured(data), Store(root), Execution(data, workers=1), log)
        assert_same(run, whole)
        if name.startswith("checkpoint"):
            assert log.earlier == 2 and any(name in note for note in log.notes)
        elif name == "all":
            assert (
                log.earlier == 0 and log.notes[-1] == "no checkpoint is usable; the run starts over"
            )
        elif log.earlier < 3:
            assert any(name in note for note in log.notes)
        shutil.rmtree(root)


@pytest.mark.parametrize("name", ["rounds.jsonl", "summary.json", "config.json"])
def test_a_damaged_result_is_not_shown_as_one_and_is_computed_again(
    data: Path, whole: StoredRun, tmp_path: Path, name: str
) -> None:
    rng = random.Random(name)
    for case in range(8):
        root = tmp_path / str(case)
        folder = root / whole.path.name
        shutil.copytree(whole.path, folder)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(damaged(content, rng))
        (run,) = Store(root).all()
        if run.is_final:  # the bit of a blank between two fields
            assert run.summary == whole.summary
        else:
            assert run.status == "damaged" and run.damage is not None and name in run.damage
            assert Store(root).find(configured(data)) is None
        assert_same(execute(configured(data), Store(root), Execution(data, workers=1)), whole)


def test_a_damaged_state_is_no_state(data: Path, whole: StoredRun, tmp_path: Path) -> None:
    rng = random.Random(0)
    sound = whole.state()
    assert sound is not None
    folder = tmp_path / whole.path.name
    shutil.copytree(whole.path, folder)
    content = (folder / "state.safetensors").read_bytes()
    for _ in range(20):
        (folder / "state.safetensors").write_bytes(damaged(content, rng))
        run = Store(tmp_path).find(configured(data))
        assert run is not None
        state = run.state()
        assert state is None or all(
            torch.equal(state.tensors[name], value) for name, value in sound.tensors.items()
        )


# --- time, company, places ------------------------------------------------------------------------


def test_a_clock_that_goes_backwards_changes_nothing(
    data: Path, whole: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at it finds it an hour further back; what takes time is measured otherwise."""
    looks, real = 0, time.time

    class Backwards(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Backwards:
            nonlocal looks
            looks += 1
            return super().now(tz) - timedelta(hours=looks)

    monkeypatch.setattr("pfl_bench.store.provenance.datetime", Backwards)
    monkeypatch.setattr(time, "time", lambda: real() - 3600 * looks)
    folder = cut_off(data, tmp_path)
    for age, path in enumerate(sorted(folder.glob("checkpoint-*"))):
        os.utime(path, (10**9 - age, 10**9 - age))  # the newest looks the oldest
    log = Log()
    run = execute(configured(data), Store(tmp_path), Execution(data, workers=1), log)
    assert log.earlier == ROUNDS - 1
    assert_same(run, whole)
    assert run.summary is not None and looks > 1
    told = run.summary["provenance"]
    assert told["finished"] < told["started"]
    assert all(value >= 0 for record in run.records() for value in record.seconds.values())
    assert invoke("results", "show", run.key, "--results", tmp_path).exit_code == 0


@needs_fork
def test_of_two_processes_at_one_run_one_computes_it_and_the_other_says_who_does(
    data: Path, whole: StoredRun, tmp_path: Path
) -> None:
    line = [*arguments(data, tmp_path / "results"), "--rounds", "40"]
    first = Child(tmp_path / "first", None, command, *line)
    until(lambda: any(run.records() for run in Store(tmp_path / "results").all()))
    second = Child(tmp_path / "second", None, command, *line)
    assert second.wait() == 2, second.said
    assert_one_sentence(second.said)
    assert f"is being computed by process {first.pid} on " in second.said
    assert first.wait() == 0, first.said
    (run,) = Store(tmp_path / "results").all()
    assert len(run.records()) == 40
    alone = execute(configured(data, rounds=40), Store(tmp_path / "alone"), Execution(data))
    assert_same(run, alone)


@needs_fork
def test_many_processes_that_begin_at_once_leave_one_whole_result(
    data: Path, whole: StoredRun, tmp_path: Path
) -> None:
    line = arguments(data, tmp_path / "results")
    children = [Child(tmp_path / f"out{k}", None, command, *line) for k in range(5)]
    ends = [child.wait() for child in children]
    assert set(ends) <= {0, 2} and 0 in ends
    for child in children:
        assert "Traceback" not in child.said
    (run,) = Store(tmp_path / "results").all()
    assert_same(run, whole)


@needs_fork
def test_the_lock_of_a_dead_process_stops_nobody(
    data: Path, whole: StoredRun, tmp_path: Path
) -> None:
    store = Store(tmp_path / "results")
    child = Child(tmp_path / "out", None, command, *arguments(data, store.root), "--rounds", 400)
    until(lambda: any(run.records() for run in store.all()))
    child.send(signal.SIGKILL)
    child.wait()
    (left,) = store.all()
    assert (left.path / "run.lock").exists() and (left.path / "owner.lock").exists()
    with store.open(configured(data, rounds=400)) as writer:
        assert writer.finished is None


@pytest.fixture
def elsewhere(data: Path, tmp_path: Path) -> Path:
    """A store as a colleague's archive brings it: other times, locks of another host, a finished
    run and one that was cut off."""
    cut = cut_off(data, tmp_path / "theirs")
    (cut / "owner.lock").write_text('{"pid": 1, "host": "elsewhere"}')
    (cut / "run.lock").write_text("")
    for path in cut.iterdir():
        path.chmod(0o444)
        os.utime(path, (0, 0))
    return Path(shutil.move(tmp_path / "theirs", tmp_path / "from elsewhere"))


def test_a_run_copied_from_another_machine_continues_to_the_same_bits(
    data: Path, whole: StoredRun, elsewhere: Path
) -> None:
    log = Log()
    run = execute(configured(data), Store(elsewhere), Execution(data, workers=1), log)
    assert log.earlier == ROUNDS - 1 and log.notes == []
    assert_same(run, whole)


def test_results_copied_from_another_machine_need_no_data_to_be_shown(
    whole: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole.path, tmp_path / "copied" / whole.path.name)
    monkeypatch.setenv("PFL_BENCH_DATA", str(tmp_path / "no such folder"))
    for line in (["list"], ["show", whole.key], ["export"]):
        result = invoke("results", *line, "--results", tmp_path / "copied")
        assert result.exit_code == 0, result.output


def test_every_path_may_hold_spaces_and_other_alphabets(
    data: Path, whole: StoredRun, tmp_path: Path
) -> None:
    """Real processes and their workers, in a locale that knows no letter beyond ASCII."""
    here = tmp_path / "Übung 1 – данные 実験"
    shutil.copytree(data, here / "my data")
    shutil.copy(Path(__file__).parents[2] / "algorithms" / "ditto.py", here / "mein_ditto.py")
    (here / "mein plan β.yaml").write_text(
        "caption: β\n"
        "run: {dataset: toy, source: real, clients: 2, rounds: 4, batch_size: 8, lr: 0.05}\n"
        "columns: [{name: β=0.1, run: {beta: 0.1}}]\n"
        "rows: [{name: Ditto, run: {algo: ditto}}, {name: Übung, run: {algo: mein_ditto}}]\n",
        encoding="utf-8",
    )
    (here / "einfach.yaml").write_text("run: {}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pfl_bench", "table", "mein plan β.yaml", "--profile",
         "einfach.yaml", "--seeds", "1", "--data-dir", "my data", "--results", "meine Läufe",
         "--plugin", "mein_ditto.py", "--out", "Bilder für später", "--workers", "1"],
        cwd=here, capture_output=True, timeout=120,
        env={**os.environ, "LC_ALL": "C", "PFL_BENCH_CACHE": str(here / "Zwischen ablage")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = list(Store(here / "meine Läufe").all())
    assert len(runs) == 2
    for run in runs:
        assert_same(run, whole)
    assert any((here / "Bilder für später").glob("*.md"))
