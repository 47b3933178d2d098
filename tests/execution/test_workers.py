"""Worker processes on a table: same bits, failures contained, stopped at once, continued."""

from __future__ import annotations

import json
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast

import pytest
from smalltables import (
    CHOSEN,
    computed_here,
    loaded_plugins,
    small_plan,
    small_spec,
)
from toy import toy_config

from pfl_bench.base.errors import UserError
from pfl_bench.execution import options as options_module
from pfl_bench.execution import request as request_module
from pfl_bench.execution import worker, workers
from pfl_bench.execution.observer import Began, Ended, Failed, Note, Observer, Round
from pfl_bench.execution.options import Execution
from pfl_bench.execution.request import Request, Waiting
from pfl_bench.execution.worker import STOP_SECONDS
from pfl_bench.reporting.tables.plan import run_missing
from pfl_bench.store.records import RoundRecord, same_result
from pfl_bench.store.store import Store

STEPS = {
    "slow": "time.sleep(0.2)",
    "raising": "raise ArithmeticError('no such luck')",
    "dying": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.fixture
def plugins(tmp_path: Path) -> Iterator[tuple[Path, ...]]:
    """Algorithms that take their time, raise, or take their process down."""
    with loaded_plugins(tmp_path, STEPS) as paths:
        yield paths


def _options(plugins: tuple[Path, ...] = (), jobs: int = 1) -> Execution:
    return Execution(Path("no-data"), jobs=jobs, plugins=plugins)


def _is_same(found: list[RoundRecord], expected: list[RoundRecord]) -> bool:
    return len(found) == len(expected) and all(map(same_result, found, expected))


class _Diary(Observer):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.notes: list[str] = []
        self.most_at_once = 0
        self.when_noted: Callable[[], object] = lambda: None

    def on_note(self, event: Note) -> None:
        self.notes.append(event.text)
        self.when_noted()

    def on_began(self, event: Began) -> None:
        self.begun.append(event.config.key)
        self.most_at_once = max(self.most_at_once, len(self.begun) - len(self.ended))

    def on_ended(self, event: Ended) -> None:
        self.ended.append(event.config.key)

    def on_failed(self, event: Failed) -> None:
        self.ended.append(event.config.key)


class _CtrlC(Observer):
    """Stops the table after its first round, as a user would."""

    def on_round(self, event: Round) -> None:
        self.pressed = time.monotonic()
        raise KeyboardInterrupt


class _Hand(threading.Thread):
    """Stands in for a worker process where only the handing out of runs is looked at."""

    def __init__(self, root: Path, options: Execution):
        super().__init__(daemon=True)
        self.pipe, self._theirs = multiprocessing.Pipe()
        self._store, self._options = Store(root), options

    def run(self) -> None:
        while (request := self._theirs.recv()) is not None:
            self._theirs.send(worker.attempt(request, self._store, self._options, self._theirs))

    def terminate(self) -> None:
        self.pipe.send(None)

    def kill(self) -> None:
        """A thread that has been told to end does."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[_Hand]:
    """The workers that were started, threads instead of processes."""
    hands: list[_Hand] = []

    def start(root: Path, options: Execution) -> workers._Worker:
        hands.append(_Hand(root, options))
        hands[-1].start()
        return workers._Worker(cast(BaseProcess, hands[-1]), hands[-1].pipe)

    monkeypatch.setattr(workers, "_start", start)
    return hands


def test_parallel_processes_give_the_bits_of_one_run_after_the_other(tmp_path: Path) -> None:
    store = Store(tmp_path / "parallel")
    plan = small_plan(small_spec("fedavg", "fedcp"), store, seeds=2)
    expected = computed_here(plan, Store(tmp_path / "alone"))
    diary = _Diary()
    done, failures = run_missing(plan, store, _options(jobs=2), diary)
    assert not done.missing() and not failures
    assert sorted(diary.ended) == sorted(expected)
    for cell in done.cells.values():
        for run in cell.runs:
            assert run is not None and _is_same(run.records(), expected[run.key])


def test_a_run_that_fails_or_kills_its_process_does_not_stop_the_others(
    tmp_path: Path, plugins: tuple[Path, ...]
) -> None:
    store = Store(tmp_path / "results")
    plan = small_plan(small_spec("raising", "fedavg", "dying", "local"), store)
    keys = {algo: plan.cells[algo, "only"].configs[0].request for algo in plan.spec.rows}
    done, failures = run_missing(plan, store, _options(plugins), Observer())
    assert {row: cell.status for (row, _), cell in done.cells.items()} == {
        "raising": "not run",
        "fedavg": "done",
        "dying": "not run",
        "local": "done",
    }
    assert failures == {
        keys["raising"]: "ArithmeticError: no such luck (raising.py, line 9)",
        keys["dying"]: "its process ended unexpectedly (killed by SIGKILL)",
    }


def test_timed_tables_run_one_at_a_time_each_in_a_process_of_its_own(
    tmp_path: Path, started: list[_Hand]
) -> None:
    store, diary = Store(tmp_path / "results"), _Diary()
    plan = small_plan(small_spec("fedavg", "local", "fedper", metric="overhead"), store)
    done, _ = run_missing(plan, store, _options(jobs=2), diary)
    assert not done.missing()
    assert (diary.most_at_once, len(started)) == (1, 3)


def test_other_tables_use_a_worker_for_many_runs(tmp_path: Path, started: list[_Hand]) -> None:
    store = Store(tmp_path / "results")
    done, _ = run_missing(
        small_plan(small_spec("fedavg", "local"), store, 2), store, _options(), _Diary()
    )
    assert not done.missing()
    assert len(started) == 1


HOLD = """
import json, sys, time
from pathlib import Path
from pfl_bench.config.run_config import RunConfig
from pfl_bench.store.store import Store
config = RunConfig.from_dict(json.loads(sys.argv[2]))
with Store(Path(sys.argv[1])).open(config):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["ends", "dies"])
def test_a_run_computed_elsewhere_is_waited_for_and_taken_over_when_that_process_is_gone(
    tmp_path: Path, how: str
) -> None:
    store, diary = Store(tmp_path / "results"), _Diary()
    plan = small_plan(small_spec("fedavg", "local"), store)
    taken, free = (plan.cells[algo, "only"].configs[0] for algo in plan.spec.rows)
    arguments = [sys.executable, "-c", HOLD, str(store.root), json.dumps(taken.to_dict())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(arguments, text=True, **pipes) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        diary.when_noted = other.kill if how == "dies" else lambda: other.communicate()
        _, failures = run_missing(plan, store, _options(), diary)
    assert failures == {} and diary.ended == [free.key, taken.key]
    assert diary.notes == [
        f"waits for process {other.pid} on {socket.gethostname()}, which is computing it"
    ]


def test_runs_that_are_put_off_come_again_when_nothing_else_is_left(store: Store) -> None:
    busy, other = (Request(toy_config(seed=seed)) for seed in (0, 1))
    waiting = Waiting([busy, other], store, Observer())
    assert waiting.goes_on(are_out=False) and waiting.requests.popleft() is busy
    waiting.put_off(busy)
    assert list(waiting) == [other, busy]
    assert waiting.goes_on(are_out=False) and waiting.requests.popleft() is other
    assert waiting.goes_on(are_out=True) and not waiting.requests, "the other is not done yet"
    for _ in range(2):
        assert waiting.goes_on(are_out=False) and waiting.requests.popleft() is busy
        waiting.put_off(busy)
    assert list(waiting) == [busy]


def test_a_note_of_a_process_elsewhere_is_not_believed_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(toy_config())
    monkeypatch.setattr(Store, "holder", lambda *_: "process 1 on a machine that is gone")
    monkeypatch.setattr(request_module, "LONGEST_WAIT", 0.0)
    waiting = Waiting([], store, Observer())
    waiting.put_off(request)
    assert waiting.goes_on(are_out=False) and waiting.requests.popleft() is request


def test_interrupted_the_workers_stop_at_once_and_the_run_continues_to_the_same_end(
    tmp_path: Path, plugins: tuple[Path, ...]
) -> None:
    store = Store(tmp_path / "results")
    plan = small_plan(small_spec("slow"), store, rounds=3)
    expected = computed_here(plan, Store(tmp_path / "alone"))
    user = _CtrlC()
    with pytest.raises(KeyboardInterrupt):
        run_missing(plan, store, _options(plugins), user)
    assert time.monotonic() - user.pressed < STOP_SECONDS + 1
    assert multiprocessing.active_children() == []
    config = plan.cells["slow", "only"].configs[0]
    with store.open(config) as writer:
        assert writer.checkpoint is not None and writer.finished is None
    assert _is_same(computed_here(plan, store)[config.key], expected[config.key])


def test_a_table_with_a_cell_that_cannot_be_configured_is_refused_before_it_trains(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "results")
    spec = small_spec("fedavg", "local")
    wrong = replace(spec.cells["local", "only"], chosen={**CHOSEN, "of": 2})
    plan = small_plan(replace(spec, cells={**spec.cells, ("local", "only"): wrong}), store)
    with pytest.raises(UserError, match="'local', 'only' cannot be run: 3 clients cannot be"):
        run_missing(plan, store, _options(), Observer())
    assert not store.root.exists()


def test_each_job_gets_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module, "default_workers", lambda: 8)
    shares = [Execution(Path(), jobs=jobs).share for jobs in (None, 1, 2, 3, 16)]
    assert shares == [8, 8, 4, 2, 1]
    assert Execution(Path(), jobs=4, workers=5).share == 5
