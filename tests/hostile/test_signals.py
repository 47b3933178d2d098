"""SIGINT, SIGTERM, SIGHUP: in two seconds a process is gone, has said how to continue, does so."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prepared import NAME
from processes import Child, command, members, moments, needs_fork, needs_proc, until

from pfl_bench.config.options import Profile
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.store.records import same_result
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

pytestmark = [needs_fork, needs_proc]

SECONDS = 2.0
CONTINUES = "Stopped. The same command continues where it left off."
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ROUNDS = 30
STOPS = 6
"""At random moments, for each signal."""
TABLE = """
caption: two methods
run: {dataset: toy, source: real, clients: 2, rounds: 500, batch_size: 8}
columns: [{name: only, run: {beta: 1}}]
rows: [{name: Ditto, run: {algo: ditto}}, {name: FedAMP, run: {algo: fedamp}}]
"""

STUCK = """
import time
from pfl_bench.engine.algorithm import Algorithm

class Stuck(Algorithm):
    title, summary, citation, scored_model = "Stuck", "Sleeps.", "none", "the global model"

    def train(self, client, received):
        if client.round == 4:
            time.sleep(600)
        super().train(client, received)
"""


@pytest.fixture
def line(data: Path, store: Store) -> list[object]:
    return [
        "run", "--profile", "paper", "--algo", "ditto", "--dataset", NAME,
        "--data-dir", data, "--results", store.root,
        "--clients", 2, "--batch-size", 8, "--rounds", ROUNDS, "--lr", 0.05, "--workers", 2,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """The run that nobody stopped."""
    chosen = {"dataset": NAME, "algo": "ditto", "clients": 2, "batch_size": 8, "rounds": ROUNDS}
    config = configure(Profile("none", "", {}, {}, {}), {**chosen, "lr": 0.05}, {}, data)
    return execute(config, Store(tmp_path_factory.mktemp("whole")), Execution(data, workers=1))


def table_line(data: Path, store: Store, folder: Path, table: str) -> list[object]:
    for name, text in (("mine.yaml", table), ("plain.yaml", "run: {}\n")):
        (folder / name).write_text(text, encoding="utf-8")
    return [
        "table", folder / "mine.yaml", "--profile", folder / "plain.yaml", "--seeds", 1,
        "--jobs", 2, "--data-dir", data, "--results", store.root,
    ]  # fmt: skip


def rounds_in(store: Store) -> int:
    return sum(path.read_bytes().count(b"\n") for path in store.root.glob("*/rounds.jsonl"))


def stuck_runs(store: Store) -> list[StoredRun]:
    return [run for run in store.all() if run.config.get("algo") == "stuck"]


def stopped_in(child: Child, send: Callable[[], None]) -> float:
    """Seconds from the signal until no process of the command is left."""
    began = time.monotonic()
    send()
    until(lambda: not child.is_alive and not members(child.pid))
    return time.monotonic() - began


def assert_same(run: StoredRun, whole: StoredRun) -> None:
    assert run.status == "finished"
    assert all(same_result(a, b) for a, b in zip(run.records(), whole.records(), strict=True))


@pytest.mark.parametrize("number", [*SIGNALS, signal.SIGHUP])
def test_a_run_that_is_told_to_stop_stops_says_how_to_continue_and_loses_no_round(
    line: list[object], store: Store, whole: StoredRun, tmp_path: Path, number: signal.Signals
) -> None:
    child = Child(tmp_path / "out", None, command, *line)
    until(lambda: rounds_in(store) >= 8)
    seconds = stopped_in(child, lambda: child.send(number))
    assert seconds < SECONDS
    assert child.wait() == 130
    assert child.said.splitlines()[-1] == CONTINUES
    assert "Traceback" not in child.said
    (left,) = store.all()
    recorded = len(left.records())
    again = Child(tmp_path / "again", None, command, *line)
    assert again.wait() == 0, again.said
    assert f"continues after round {recorded}" in again.said
    assert_same(next(store.all()), whole)


@pytest.mark.parametrize(
    ("number", "group"),
    [
        (signal.SIGINT, True),
        (signal.SIGTERM, False),
        (signal.SIGTERM, True),
        (signal.SIGHUP, False),
        (signal.SIGHUP, True),
    ],
)
def test_a_table_that_is_told_to_stop_ends_all_its_processes_and_keeps_their_rounds(
    data: Path, store: Store, tmp_path: Path, number: signal.Signals, group: bool
) -> None:
    """A terminal tells every process of the command, a supervisor often the first one alone."""
    child = Child(tmp_path / "out", None, command, *table_line(data, store, tmp_path, TABLE))
    until(lambda: sum(len(run.records()) > 3 for run in store.all()) == 2)
    assert len(members(child.pid)) >= 3
    seconds = stopped_in(child, lambda: child.send(number, group))
    assert seconds < SECONDS
    assert child.wait() == 130
    assert child.said.splitlines()[-1] == CONTINUES
    assert "Traceback" not in child.said and "failed" not in child.said
    for run in store.all():
        (newest,) = run.path.glob("checkpoint-*")
        assert run.status == "interrupted"
        assert newest.name == f"checkpoint-{len(run.records())}.safetensors"


def test_a_step_that_does_not_end_is_cut_off_and_the_rounds_before_it_are_kept(
    data: Path, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    line = table_line(data, store, tmp_path, TABLE.replace("ditto", "stuck"))
    child = Child(tmp_path / "out", None, command, *line, "--plugin", tmp_path / "stuck.py")
    until(lambda: any(len(run.records()) == 3 for run in stuck_runs(store)))
    assert stopped_in(child, lambda: child.send(signal.SIGTERM)) < SECONDS
    assert child.wait() == 130
    assert child.said.splitlines()[-1] == CONTINUES
    assert all(run.status == "interrupted" for run in store.all())


@pytest.mark.parametrize("number", SIGNALS)
def test_told_to_stop_at_any_moment_there_is_no_traceback_and_the_same_end(
    line: list[object], store: Store, whole: StoredRun, tmp_path: Path, number: signal.Signals
) -> None:
    began = time.monotonic()
    calm = Child(tmp_path / "calm", None, command, *line, "--results", tmp_path / "unused")
    assert calm.wait() == 0, calm.said
    waits = moments(number.name, time.monotonic() - began)
    stops = 0
    while stops < STOPS or not any(run.is_final for run in store.all()):
        if any(run.is_final for run in store.all()):
            shutil.rmtree(store.root)
        child = Child(tmp_path / "out", None, command, *line)
        until(child.output.exists)
        child.process.join(0.02 + next(waits))
        assert stopped_in(child, lambda: child.send(number)) < SECONDS  # noqa: B023
        assert child.wait() in (0, 130), child.said
        assert child.wait() == 0 or child.said.splitlines()[-1] == CONTINUES
        assert "Traceback" not in child.said
        stops += child.wait() == 130
    assert_same(next(store.all()), whole)


def test_impatience_does_no_harm(
    line: list[object], store: Store, whole: StoredRun, tmp_path: Path
) -> None:
    """Ctrl-C again and again, also while the state is being saved."""
    for pause in (0.0, 0.001, 0.003, 0.01):
        child = Child(tmp_path / "out", None, command, *line)
        reached = rounds_in(store)
        until(lambda: rounds_in(store) > reached + 2 or not child.is_alive)  # noqa: B023
        for _ in range(4):
            child.send(signal.SIGINT)
            time.sleep(pause)
        assert child.wait() == 130, child.said
        assert "Traceback" not in child.said
    last = Child(tmp_path / "out", None, command, *line)
    assert last.wait() == 0, last.said
    assert_same(next(store.all()), whole)


def ignore_hangups() -> None:
    """As `nohup` does for the command that it starts."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_under_nohup_a_closed_terminal_stops_nothing(
    line: list[object], store: Store, whole: StoredRun, tmp_path: Path
) -> None:
    child = Child(tmp_path / "out", ignore_hangups, command, *line)
    until(lambda: rounds_in(store) >= 4)
    child.send(signal.SIGHUP, group=True)
    assert child.wait() == 0, child.said
    assert_same(next(store.all()), whole)
