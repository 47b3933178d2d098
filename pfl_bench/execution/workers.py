"""Running what a table misses: worker processes that each take one run after another.

Processes are for runs, threads for the clients within a run. A worker lives for many runs, because
starting one costs seconds and the data it has read serves the next run too. Results go to the
store and do not depend on how many workers there are. Which runs are missing is in `plan`; a
team on other machines is in `cluster`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from pfl_bench.base import UserError, obey_parent
from pfl_bench.config import RunConfig
from pfl_bench.execution.runner import Options, Watcher, default_workers
from pfl_bench.execution.tensorboard import execute_logged
from pfl_bench.plugins import check_plugin, load_plugin
from pfl_bench.privacy import attacked, check_attackable
from pfl_bench.reporting.tables import PlannedRun, TablePlan
from pfl_bench.store import RoundRecord, RunBusy, Store, StoredRun

STOP_SECONDS = 1.5
"""How long a stopped worker may take to save its state before it is killed. A command that is told
to stop is gone within two seconds."""
POLL_SECONDS = 0.5
"""How often waiting is broken off, so that an interruption is noticed on every system."""


@dataclass(frozen=True)
class Crew:
    """How to run, none of which can change a result."""

    data_dir: Path
    jobs: int = 1
    """Runs at the same time, each in a process of its own."""
    workers: int | None = None
    """Clients at the same time within a run; by default each run's share of the cores."""
    plugins: tuple[Path, ...] = ()
    is_timed: bool = False
    """One run at a time, each in a fresh process, because times and memory are what is shown."""
    tensorboard: Path | None = None
    """Where the rounds are also written for TensorBoard."""
    device: str = "auto"
    fresh: bool = False
    checkpoint_every: int | None = None
    keep_state: bool = False
    """Keep the trained models beside the results, because they will be attacked."""

    @property
    def options(self) -> Options:
        share = max(1, default_workers() // self.jobs)
        return Options(
            data_dir=self.data_dir,
            workers=self.workers or share,
            timed=self.is_timed,
            tensorboard=self.tensorboard,
            device=self.device,
            fresh=self.fresh,
            checkpoint_every=self.checkpoint_every,
            keep_state=self.keep_state,
        )


class TableWatcher:
    """Told how a table goes; overrides what it cares for."""

    def on_begin(self, run: PlannedRun, round: int) -> None:
        """A run begins, or continues after `round`."""

    def on_round(self, run: PlannedRun, round: int) -> None:
        """A run has completed a round."""

    def on_note(self, run: PlannedRun, note: str) -> None:
        """Something the user should know, in a sentence."""

    def on_end(self, run: PlannedRun, stored: StoredRun) -> None:
        """A run has its result."""

    def on_failure(self, run: PlannedRun, error: str) -> None:
        """A run broke off with an error."""


class Team(Protocol):
    """Whoever carries out runs: processes here, or the nodes of a cluster."""

    def work_off(
        self, runs: Sequence[PlannedRun], watcher: TableWatcher
    ) -> Iterator[tuple[PlannedRun, str | None]]:
        """Every run with its error, if it had one, in the order in which they end. The watcher is
        told how they go; a run without an error has its result in the store."""


Hire = Callable[[Store, Crew], AbstractContextManager[Team]]
"""Makes a team that works for a store; leaving the context stops it."""


def run_missing(
    plan: TablePlan, store: Store, crew: Crew, watcher: TableWatcher, hire: Hire | None = None
) -> tuple[TablePlan, dict[str, str]]:
    """Run what the plan misses, with worker processes unless another team is hired. The plan as it
    is then, and the errors of runs that failed, by the key of the run. A hired team trains; where
    the table shows an attack on the trained models, worker processes attack them afterwards."""
    check_runnable(plan)
    if plan.spec.metric == "overhead":
        crew = replace(crew, jobs=1, is_timed=True)
    crew = replace(crew, keep_state=plan.spec.threat is not None)
    failures: dict[str, str] = {}
    if hire is not None:
        plan = _work_off(plan, store, crew, watcher, hire, failures)
    return _work_off(plan, store, crew, watcher, worker_processes, failures), failures


def _work_off(
    plan: TablePlan,
    store: Store,
    crew: Crew,
    watcher: TableWatcher,
    hire: Hire,
    failures: dict[str, str],
) -> TablePlan:
    """The plan once a team has done what it can of what is missing; `failures` are added to."""
    runs = [run for run in plan.missing() if run.config.key not in failures]
    if not runs:
        return plan
    crew = replace(crew, jobs=max(1, min(crew.jobs, len(runs))))
    with hire(store, crew) as team:
        for run, error in team.work_off(runs, watcher):
            stored = None if error else run.result(store)
            if not error and stored is None and store.find(run.config) is not None:
                continue  # trained, and yet to be attacked
            if stored is not None:
                plan = plan.with_run(stored)
                watcher.on_end(run, stored)
            else:
                failures[run.config.key] = error or "its result is not in the store"
                watcher.on_failure(run, failures[run.config.key])
    return plan


def check_runnable(plan: TablePlan) -> None:
    """Refuse, before anything trains, a table that cannot be made whole."""
    for (row, column), reason in plan.misconfigured.items():
        raise UserError(
            f"the cell {row!r}, {column!r} cannot be run: {reason} (--rows and --columns can leave "
            "it out)"
        )
    if plan.spec.threat is not None:
        for (row, column), cell in plan.cells.items():
            check_attackable(cell.configs[0], f"the cell {row!r}, {column!r}")


# --- in the command's own process -----------------------------------------------------------------


@dataclass(frozen=True)
class Began:
    round: int


@dataclass(frozen=True)
class Round:
    round: int


@dataclass(frozen=True)
class Note:
    text: str


News = Began | Round | Note
"""What is told of a run on its way."""


def pass_on(news: News, run: PlannedRun, watcher: TableWatcher) -> None:
    match news:
        case Began():
            watcher.on_begin(run, news.round)
        case Round():
            watcher.on_round(run, news.round)
        case Note():
            watcher.on_note(run, news.text)


@dataclass(frozen=True)
class _Ended:
    error: str | None = None
    is_busy: bool = False


class _Worker:
    """A process and the run it is at."""

    def __init__(self, process: BaseProcess, pipe: Connection):
        self.process, self.pipe = process, pipe
        self.run: PlannedRun | None = None

    def take(self, run: PlannedRun) -> None:
        self.run = run
        with contextlib.suppress(OSError):  # a dead worker shows when its answer is awaited
            self.pipe.send(run)

    def answer(self) -> News | _Ended:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return _Ended(f"its process ended unexpectedly ({_cause(self.process.exitcode)})")


class Waiting:
    """The runs to hand out, in order. One that another process is computing is put off until all
    others are done, and then tried once more."""

    def __init__(self, runs: Iterable[PlannedRun]):
        self.runs = deque(runs)
        self._later: list[PlannedRun] = []
        self._is_last_call = False

    def goes_on(self, are_out: bool) -> bool:
        """Whether there is something to hand out, or, if runs `are_out`, to wait for."""
        if not self.runs and not are_out and not self._is_last_call:
            self.runs.extend(self._later)
            self._later, self._is_last_call = [], True
        return bool(self.runs) or are_out

    def put_off(self, run: PlannedRun) -> bool:
        """Try a run later; False where this was its last chance."""
        if not self._is_last_call:
            self._later.append(run)
        return not self._is_last_call

    def __iter__(self) -> Iterator[PlannedRun]:
        return iter((*self.runs, *self._later))


class _Team:
    """Up to `crew.jobs` worker processes, started when there is work for them."""

    def __init__(self, root: Path, crew: Crew, lasting: bool):
        self._root, self._crew, self._lasting = root, crew, lasting
        self._workers: list[_Worker] = []

    def work_off(
        self, runs: Sequence[PlannedRun], watcher: TableWatcher
    ) -> Iterator[tuple[PlannedRun, str | None]]:
        """Every run with its error, if it had one, in the order in which they end.

        A run that another process is computing is tried again after all others, once."""
        waiting = Waiting(runs)
        while waiting.goes_on(are_out=bool(self._busy())):
            while waiting.runs and len(self._busy()) < self._crew.jobs:
                self._idle_worker().take(waiting.runs.popleft())
            for worker in self._heard():
                run, answer = worker.run, worker.answer()
                assert run is not None
                if not isinstance(answer, _Ended):
                    pass_on(answer, run, watcher)
                    continue
                self._release(worker)
                if not answer.is_busy or not waiting.put_off(run):
                    yield run, answer.error

    def stop(self) -> None:
        """End all processes: politely first, so that they can save, by force after a while."""
        workers, self._workers = self._workers, []
        _end(workers)

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.run is not None]

    def _heard(self) -> list[_Worker]:
        """The workers that have something to say, soon."""
        busy = self._busy()
        ready = connection.wait([worker.pipe for worker in busy], POLL_SECONDS)
        return [worker for worker in busy if worker.pipe in ready]

    def _idle_worker(self) -> _Worker:
        idle = next((worker for worker in self._workers if worker.run is None), None)
        if idle is None:
            idle = _start(self._root, self._crew)
            self._workers.append(idle)
        return idle

    def _release(self, worker: _Worker) -> None:
        worker.run = None
        if not self._lasting or not worker.process.is_alive():
            self._workers.remove(worker)
            _end([worker])


@contextlib.contextmanager
def worker_processes(store: Store, crew: Crew) -> Iterator[Team]:
    """Up to `crew.jobs` processes on this machine."""
    # A timed run gets a process of its own: peak memory is the process's, not the run's.
    team = _Team(store.root, crew, lasting=not crew.is_timed)
    try:
        yield team
    finally:
        team.stop()


def _start(root: Path, crew: Crew) -> _Worker:
    # Spawned, not forked: a fork would copy the locks of torch's threads in whatever state.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, root, crew.options, crew.plugins), daemon=True
    )
    with _interrupts_held():
        process.start()
    theirs.close()
    return _Worker(process, ours)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait, here and for good in the processes started meanwhile: a terminal sends it
    to all of them, and it is this process that tells the others."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(workers: Sequence[_Worker]) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    try:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()


def _cause(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"


# --- in a worker process --------------------------------------------------------------------------


def _serve(pipe: Connection, root: Path, options: Options, plugins: Sequence[Path]) -> None:
    """The life of a worker: take a run, tell how it goes, take the next."""
    obey_parent()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    store = Store(root)
    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):
        refusal = _refusal(plugins)
        while True:
            run: PlannedRun = pipe.recv()
            pipe.send(_Ended(refusal) if refusal else _attempt(run, store, options, pipe))


def _refusal(plugins: Sequence[Path]) -> str | None:
    """Load the plugins; why one cannot be, if so: its file may have changed since the command
    began."""
    try:
        for plugin in plugins:
            load_plugin(plugin)
    except UserError as error:
        return str(error)
    return None


def _attempt(run: PlannedRun, store: Store, options: Options, pipe: Connection) -> _Ended:
    """The run carried out; whatever goes wrong in it is told and does not end the worker."""
    try:
        chosen = replace(options, partition=run.partition)
        check_plugin(run.config.algo, run.config.plugin)
        stored = execute_logged(run.config, store, chosen, _Teller(pipe))
        if run.threat is not None and stored.status == "finished":
            attacked(run.config, store, replace(chosen, fresh=False), run.threat, _Teller(pipe))
    except RunBusy as error:
        return _Ended(str(error), is_busy=True)
    except Exception as error:
        return _Ended(reason_of(error))
    return _Ended()


def reason_of(error: Exception) -> str:
    """Why a run broke off, in a line: a user's mistake speaks for itself, others say where."""
    if isinstance(error, UserError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{reason} ({where})"


class _Teller(Watcher):
    """Passes on how the run goes."""

    def __init__(self, pipe: Connection):
        self._pipe = pipe

    def on_start(self, config: RunConfig, earlier: Sequence[RoundRecord]) -> None:
        self._pipe.send(Began(len(earlier)))

    def on_round(self, record: RoundRecord) -> None:
        self._pipe.send(Round(record.round))

    def on_note(self, note: str) -> None:
        self._pipe.send(Note(note))


def _end_with_parent() -> None:
    """When the command dies without a word, its workers save their state and go too."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)
