"""Kill it anywhere: whatever moment a process dies at, the same command ends with the same bits.

Processes are killed before every touch of a file, in the middle of every write, and at random
moments from outside. Methods that keep state between rounds have the most to lose."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from prepared import NAME
from processes import (
    Child,
    DieAtStep,
    DieWriting,
    at_step,
    command,
    members,
    moments,
    needs_fork,
    needs_proc,
    until,
)

from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.store.records import same_result
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

pytestmark = needs_fork

ALGORITHMS = ("ditto", "fedamp", "fedcp")
ROUNDS = 4
FLAGS = {
    "dataset": NAME, "clients": 3, "rounds": ROUNDS, "batch_size": 8, "lr": 0.05,
    "joining_ratio": "0.5-1",
}  # fmt: skip
FILES = {"config.json", "rounds.jsonl", "state.safetensors", "summary.json", "run.lock"}
"""What a finished run consists of."""

TABLE = """
caption: methods with a memory
run: {dataset: toy, source: real, clients: 3, rounds: 4, batch_size: 8, lr: 0.05}
columns:
  - {name: β=0.5, run: {beta: 0.5}}
  - {name: β=5, run: {beta: 5}}
rows:
  - {name: Ditto, run: {algo: ditto}}
  - {name: FedAMP, run: {algo: fedamp}}
  - {name: FedCP, run: {algo: fedcp}}
"""


@pytest.fixture(params=ALGORITHMS)
def algo(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def config(data: Path, algo: str) -> RunConfig:
    return configured(data, algo)


def configured(data: Path, algo: str) -> RunConfig:
    return configure(Profile("none", "", {}, {}, {}), {**FLAGS, "algo": algo}, {}, data)


@pytest.fixture
def options(data: Path) -> Execution:
    return Execution(data, workers=2, checkpoint_every=1, keep_state=True)


@pytest.fixture
def whole(config: RunConfig, options: Execution, tmp_path: Path) -> StoredRun:
    """The run that nobody killed."""
    return execute(config, Store(tmp_path / "whole"), options)


def arguments(data: Path, results: Path, algo: str) -> list[str]:
    flags = [(f"--{name.replace('_', '-')}", str(value)) for name, value in FLAGS.items()]
    return [
        "run", "--profile", "paper", "--algo", algo, "--data-dir", str(data),
        "--results", str(results), "--checkpoint-every", "1",
        *(part for flag in flags for part in flag),
    ]  # fmt: skip


def work(config: RunConfig, root: Path, options: Execution) -> None:
    execute(config, Store(root), options)


def count_touches(config: RunConfig, root: Path, options: Execution) -> None:
    touches = at_step(root, 0, lambda event: None)
    work(config, root, options)
    print(touches())


def assert_same(run: StoredRun, whole: StoredRun) -> None:
    assert run.status == whole.status == "finished"
    pairs = zip(run.records(), whole.records(), strict=True)
    assert all(same_result(a, b) for a, b in pairs)


def assert_same_bits(run: StoredRun, whole: StoredRun) -> None:
    """Same records, and the same state after the last round."""
    assert_same(run, whole)
    ours, theirs = run.state(), whole.state()
    assert ours is not None and theirs is not None
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in ours.tensors)


def assert_nothing_damaged(store: Store) -> None:
    """Dying leaves a run that is whole or one to resume; damage would be something else."""
    for run in store.all():
        assert run.status in ("finished", "interrupted", "begun"), run.damage


def killed(child: Child) -> bool:
    """Whether the process died of its attack; False where it came to its end before."""
    code = child.wait()
    assert code in (0, -signal.SIGKILL), child.said
    return code != 0


# --- at exact steps -------------------------------------------------------------------------------


def test_killed_before_any_touch_of_a_file_the_run_ends_with_the_same_bits(
    algo: str, config: RunConfig, options: Execution, whole: StoredRun, tmp_path: Path
) -> None:
    count = Child(tmp_path / "out", None, count_touches, config, tmp_path / "counted", options)
    assert count.wait() == 0
    touches = int(count.said)
    first = 1 + ALGORITHMS.index(algo)  # the methods share the steps out among themselves
    for step in range(first, touches + 1, len(ALGORITHMS)):
        root = tmp_path / str(step)
        assert killed(Child(tmp_path / "out", DieAtStep(root, step), work, config, root, options))
        assert_nothing_damaged(Store(root))
        resumed = execute(config, Store(root), options)
        Store(root).tidy()
        assert_same_bits(resumed, whole)
        assert {path.name for path in resumed.path.iterdir()} - {"owner.lock"} == FILES
        shutil.rmtree(root)


def test_killed_in_the_middle_of_any_write_the_run_ends_with_the_same_bits(
    algo: str, config: RunConfig, options: Execution, whole: StoredRun, tmp_path: Path
) -> None:
    rng = random.Random(algo)
    is_dead, kills = True, -1
    while is_dead:
        kills += 1
        root, attack = tmp_path / str(kills), DieWriting(kills + 1, rng.random())
        is_dead = killed(Child(tmp_path / "out", attack, work, config, root, options))
        assert_nothing_damaged(Store(root))
        resumed = execute(config, Store(root), options)
        assert_same_bits(resumed, whole)
        shutil.rmtree(root)
    # A record a round, a checkpoint after all but the last, and once the data's fingerprint, the
    # owner of the lock, the configuration, the state and the summary.
    assert kills >= 2 * ROUNDS - 1 + 4


def test_a_repetition_killed_at_any_step_leaves_a_whole_result(
    data: Path, options: Execution, tmp_path: Path
) -> None:
    config = configured(data, "fedamp")
    whole = execute(config, Store(tmp_path / "whole"), options)
    again = replace(options, fresh=True)
    is_dead, kills, step = True, -1, 35
    while is_dead:
        kills, step = kills + 1, step + 3
        root = tmp_path / str(step)
        shutil.copytree(tmp_path / "whole", root)
        child = Child(tmp_path / "out", DieAtStep(root, step), work, config, root, again)
        is_dead = killed(child)
        found = Store(root).find(config)
        assert found is not None
        assert_same_bits(found, whole)
        assert_same_bits(execute(config, Store(root), again), whole)
    assert kills >= 8


# --- at random moments ----------------------------------------------------------------------------

KILLS_PER_METHOD = 10


def test_a_command_killed_at_random_moments_continues_to_the_same_bits(
    algo: str, data: Path, whole: StoredRun, tmp_path: Path
) -> None:
    began = time.monotonic()
    undisturbed = Child(tmp_path / "out", None, command, *arguments(data, tmp_path / "calm", algo))
    assert undisturbed.wait() == 0, undisturbed.said
    waits = moments(algo, time.monotonic() - began)
    kills = runs = 0
    while kills < KILLS_PER_METHOD:
        store = Store(tmp_path / f"results{runs}")
        runs += 1
        while not (found := [run for run in store.all() if run.is_final]):
            child = Child(tmp_path / "out", None, command, *arguments(data, store.root, algo))
            if kills < KILLS_PER_METHOD:
                child.process.join(next(waits))
                child.send(signal.SIGKILL)
            kills += killed(child)
            assert_nothing_damaged(store)
        assert_same(found[0], whole)
    assert "Traceback" not in child.said


@pytest.fixture
def expected(data: Path, tmp_path: Path) -> dict[str, StoredRun]:
    """Every run of the table, computed alone."""
    store, found = Store(tmp_path / "expected"), {}
    for algo in ALGORITHMS:
        for beta in (0.5, 5.0):
            chosen = {**FLAGS, "algo": algo, "beta": beta, "joining_ratio": "1"}
            config = configure(Profile("none", "", {}, {}, {}), chosen, {}, data)
            found[config.key] = execute(config, store, Execution(data, workers=1))
    return found


def table_arguments(data: Path, results: Path, spec: Path) -> list[str]:
    spec.write_text(TABLE, encoding="utf-8")
    profile = spec.with_name("plain.yaml")
    profile.write_text("run: {}\n", encoding="utf-8")
    return [
        "table", str(spec), "--profile", str(profile), "--seeds", "1", "--jobs", "2",
        "--data-dir", str(data), "--results", str(results),
    ]  # fmt: skip


@needs_proc
def test_a_table_killed_at_random_moments_is_whole_in_the_end_and_leaves_no_process(
    data: Path, expected: dict[str, StoredRun], tmp_path: Path
) -> None:
    """Now the command alone is killed, whose workers must end by themselves, now all at once."""
    store, waits = Store(tmp_path / "results"), moments("table", 1.5)
    line = table_arguments(data, store.root, tmp_path / "mine.yaml")
    kills = 0
    while kills < 8:
        if sum(run.is_final for run in store.all()) == len(expected):
            shutil.rmtree(store.root)
        child = Child(tmp_path / "out", None, command, *line)
        child.process.join(next(waits))
        child.send(signal.SIGKILL, group=kills % 2 == 0)
        kills += killed(child)
        until(lambda: not members(child.pid), seconds=10)  # noqa: B023
        assert_nothing_damaged(store)
    last = Child(tmp_path / "out", None, command, *line)
    assert last.wait() == 0, last.said
    found = {run.key: run for run in store.all()}
    assert found.keys() == expected.keys()
    for key, run in found.items():
        assert_same(run, expected[key])


@needs_proc
def test_a_worker_that_is_killed_costs_its_run_alone(
    data: Path, expected: dict[str, StoredRun], tmp_path: Path
) -> None:
    store = Store(tmp_path / "results")
    line = table_arguments(data, store.root, tmp_path / "mine.yaml")
    child = Child(tmp_path / "out", None, command, *line)
    until(lambda: len(members(child.pid)) == 3)
    os.kill(max(set(members(child.pid)) - {child.pid}), signal.SIGKILL)
    assert child.wait() == 1
    assert "1 run(s) failed" in child.said and "killed by SIGKILL" in child.said
    assert sum(run.is_final for run in store.all()) == len(expected) - 1
    again = Child(tmp_path / "out", None, command, *line)
    assert again.wait() == 0, again.said
    for run in store.all():
        assert_same(run, expected[run.key])


def test_a_real_command_killed_from_its_first_moment_on_continues_to_the_same_bits(
    data: Path, options: Execution, tmp_path: Path
) -> None:
    line = [sys.executable, "-m", "pfl_bench", *arguments(data, tmp_path / "results", "ditto")]
    for seconds in (0.3, 2.0):
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        time.sleep(seconds)
        process.kill()
        process.communicate()
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (run,) = Store(tmp_path / "results").all()
    assert_same(run, execute(configured(data, "ditto"), Store(tmp_path / "whole"), options))
