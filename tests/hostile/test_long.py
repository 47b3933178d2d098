"""Long runs: memory, open files, threads and processes do not pile up."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from prepared import NAME
from processes import Child, command, fork_server, members, needs_fork, needs_proc

from pfl_bench.algorithms.ditto import Ditto
from pfl_bench.base.errors import UserError
from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.observer import Observer, Round
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.store.records import RoundRecord
from pfl_bench.store.store import Store
from pfl_bench.store.writer import RunWriter

ROUNDS, SETTLED = 500, 100
PAGE = os.sysconf("SC_PAGE_SIZE")
ALLOWED_GROWTH = 4e6
"""Bytes between the two looks: the records of 400 rounds take about half a megabyte."""


def configured(data: Path, rounds: int) -> RunConfig:
    chosen = {"dataset": NAME, "algo": "ditto", "clients": 2, "batch_size": 16, "rounds": rounds,
              "setting": "iid", "lr": 0.01}  # fmt: skip
    return configure(Profile("none", "", {}, {}, {}), chosen, {}, data)


class Gauge(Observer):
    """Looks at the process after some rounds: resident memory, open files, threads."""

    def __init__(self) -> None:
        self.memory: dict[int, int] = {}
        self.files: dict[int, int] = {}
        self.threads: dict[int, int] = {}

    def on_round(self, event: Round) -> None:
        if event.record.round % SETTLED:
            return
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory[event.record.round] = resident * PAGE
        self.files[event.record.round] = len(list(Path("/proc/self/fd").iterdir()))
        self.threads[event.record.round] = threading.active_count()


def gauged(config: RunConfig, root: Path, data: Path, answers: Any) -> None:
    gauge = Gauge()
    execute(config, Store(root), Execution(data, workers=2, checkpoint_every=5), gauge)
    answers.put((gauge.memory, gauge.files, gauge.threads))


@needs_fork
@needs_proc
def test_memory_files_and_threads_stay_flat_over_five_hundred_rounds(
    data: Path, tmp_path: Path
) -> None:
    answers = fork_server.SimpleQueue()
    child = Child(tmp_path / "out", None, gauged, configured(data, ROUNDS), tmp_path / "store",
                  data, answers)  # fmt: skip
    assert child.wait(120) == 0, child.said
    memory, files, threads = answers.get()
    assert memory[ROUNDS] - memory[SETTLED] < ALLOWED_GROWTH, memory
    assert len(set(files.values())) == 1, files
    assert len(set(threads.values())) == 1, threads
    (run,) = Store(tmp_path / "store").all()
    assert len(run.records()) == ROUNDS


class Mishap(Exception):
    """Whatever may go wrong in a hook."""


def client_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("client")]


@pytest.mark.parametrize(
    "hook", ["download", "local_update", "aggregate", "scored", "predict", "client_state"]
)
def test_the_thread_pool_ends_with_an_error_in_any_hook(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    sound = getattr(Ditto, hook)
    calls = 0

    def failing(self: Ditto, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if hook == "client_state" or calls == 5:
            raise Mishap
        return sound(self, *args)

    monkeypatch.setattr(Ditto, hook, failing)
    with pytest.raises(Mishap) as caught:
        execute(configured(data, 9), Store(tmp_path), Execution(data, workers=2))
    assert caught.value is not None and client_threads() == []  # although the frames still live


def test_the_thread_pool_ends_when_the_disk_refuses_a_record(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: RunWriter, record: RoundRecord) -> None:
        raise UserError("cannot write")

    monkeypatch.setattr(RunWriter, "append", refused)
    with pytest.raises(UserError) as caught:
        execute(configured(data, 9), Store(tmp_path), Execution(data, workers=2))
    assert caught.value is not None and client_threads() == []


TABLE = """
metric: METRIC
caption: four methods
run: {dataset: toy, source: real, clients: 2, rounds: 2, batch_size: 8}
columns: [{name: only, COLUMN}]
rows:
  - {name: FedAvg, run: {algo: fedavg}}
  - {name: Ditto, run: {algo: ditto}}
  - {name: FedAMP, run: {algo: fedamp}}
  - {name: FedPer, run: {algo: fedper}}
"""


def make_table(*arguments: object) -> None:
    """The command, and then what is left of it while its own process still lives."""
    try:
        command(*arguments)
    except SystemExit as end:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        print(f"exit code {end.code}, children: {children}")


@needs_fork
@needs_proc
@pytest.mark.parametrize(
    ("metric", "column"), [("accuracy", "run: {beta: 1}"), ("overhead", "measure: total_minutes")]
)
def test_a_table_leaves_neither_zombie_nor_orphan(
    data: Path, tmp_path: Path, metric: str, column: str
) -> None:
    """A table of times starts a process for each of its runs, others a few for all of them."""
    text = TABLE.replace("METRIC", metric).replace("COLUMN", column)
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "plain.yaml").write_text("run: {}\n", encoding="utf-8")
    child = Child(
        tmp_path / "out", None, make_table, "table", tmp_path / "mine.yaml", "--jobs", 2,
        "--profile", tmp_path / "plain.yaml", "--seeds", 1, "--data-dir", data,
        "--results", tmp_path / "results",
    )  # fmt: skip
    assert child.wait() == 0, child.said
    assert child.said.splitlines()[-1] == "exit code 0, children: []"
    assert members(child.pid) == []
