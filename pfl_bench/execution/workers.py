"""Worker processes on this machine, each of which takes one run after another.

Processes are for runs, threads for the clients within a run. A worker lives for many runs, because
starting one costs seconds and the data it has read serves the next run too. Results go to the
store and do not depend on how many workers there are. What a worker does is in `worker`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from pfl_bench.execution.observer import Event, Observer
from pfl_bench.execution.options import Execution
from pfl_bench.execution.request import Request, Waiting
from pfl_bench.execution.worker import STOP_SECONDS, Done, serve
from pfl_bench.store import Store

POLL_SECONDS = 0.5
"""How often waiting is broken off, so that an interruption is noticed on every system."""


class _Worker:
    """A process and the run it is at."""

    def __init__(self, process: BaseProcess, pipe: Connection):
        self.process, self.pipe = process, pipe
        self.request: Request | None = None

    def take(self, request: Request) -> None:
        self.request = request
        with contextlib.suppress(OSError):  # a dead worker shows when its answer is awaited
            self.pipe.send(request)

    def answer(self) -> Event | Done:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return Done(f"its process ended unexpectedly ({_cause(self.process.exitcode)})")


class Workers:
    """Up to `options.jobs` processes, started when there is work for them."""

    def __init__(self, store: Store, options: Execution):
        self._store, self._options = store, options
        self._workers: list[_Worker] = []

    def carry_out(
        self, requests: Sequence[Request], observer: Observer
    ) -> Iterator[tuple[Request, str | None]]:
        """See `many.Backend`. A run that another process is computing comes after all others."""
        waiting = Waiting(requests, self._store, observer)
        while waiting.goes_on(are_out=bool(self._busy())):
            while waiting.requests and len(self._busy()) < (self._options.jobs or 1):
                self._idle_worker().take(waiting.requests.popleft())
            for worker in self._heard():
                request, answer = worker.request, worker.answer()
                assert request is not None
                if not isinstance(answer, Done):
                    observer.tell(answer)
                    continue
                self._release(worker)
                if answer.is_busy:
                    waiting.put_off(request)
                else:
                    yield request, answer.error

    def stop(self) -> None:
        """End all processes: politely first, so that they can save, by force after a while."""
        workers, self._workers = self._workers, []
        _end(workers)

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.request is not None]

    def _heard(self) -> list[_Worker]:
        """The workers that have something to say, soon."""
        busy = self._busy()
        ready = connection.wait([worker.pipe for worker in busy], POLL_SECONDS)
        return [worker for worker in busy if worker.pipe in ready]

    def _idle_worker(self) -> _Worker:
        idle = next((worker for worker in self._workers if worker.request is None), None)
        if idle is None:
            idle = _start(self._store.root, self._options)
            self._workers.append(idle)
        return idle

    def _release(self, worker: _Worker) -> None:
        worker.request = None
        # A timed run gets a process of its own: peak memory is the process's, not the run's.
        if self._options.timed or not worker.process.is_alive():
            self._workers.remove(worker)
            _end([worker])


@contextlib.contextmanager
def worker_processes(store: Store, options: Execution) -> Iterator[Workers]:
    """Worker processes for a store; leaving the context ends them."""
    workers = Workers(store, options)
    try:
        yield workers
    finally:
        workers.stop()


def _start(root: Path, options: Execution) -> _Worker:
    # Spawned, not forked: a fork would copy the locks of torch's threads in whatever state.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, root, options), daemon=True)
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
