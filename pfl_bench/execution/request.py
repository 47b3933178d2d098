"""What is asked of `run_all`: a run and what is to follow on it; the queue of those to hand out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from pfl_bench.config import RunConfig
from pfl_bench.execution.observer import Note, Observer
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute, serves
from pfl_bench.plugins import check_plugin
from pfl_bench.store import Store, StoredRun

WAIT_SECONDS = 0.5
"""How often is looked whether another process has ended."""
LONGEST_WAIT = 60.0
"""After so long a run is tried whatever the note beside its lock says: a process on another machine
may be dead."""


class FollowUp(Protocol):
    """What is computed from the trained state once a run is finished, and kept beside its result.
    It travels to worker processes, and hence is made of plain values."""

    def result(self, run: StoredRun) -> StoredRun | None:
        """The run with what was found; None where that has yet to be computed."""

    def compute(
        self, config: RunConfig, store: Store, options: Execution, observer: Observer
    ) -> StoredRun:
        """The run with what is found now, and stored."""


@dataclass(frozen=True)
class Request:
    """A run whose result is wanted."""

    config: RunConfig
    partition: str | None = None
    """Where its PFLlib partition lies, if it uses one."""
    follow_up: FollowUp | None = None
    tags: tuple[tuple[str, str], ...] = ()
    """What trackers are told of why it is wanted: the table and the cells."""

    def result(self, store: Store) -> StoredRun | None:
        """What is stored of it, whole: what follows on the run included."""
        run = store.find(self.config)
        return run if run is None or self.follow_up is None else self.follow_up.result(run)

    def answer(self, store: Store, options: Execution) -> StoredRun | None:
        """What is stored of it, if that will do."""
        run = self.result(store)
        return run if run is not None and serves(run, options) else None


def carry_out(request: Request, store: Store, options: Execution, observer: Observer) -> StoredRun:
    """The run, and what follows on it, in this process."""
    config, follow_up = request.config, request.follow_up
    check_plugin(config.algo, config.plugin)
    keep_state = options.keep_state or follow_up is not None
    options = replace(options, partition=request.partition, keep_state=keep_state)
    run = execute(config, store, options, observer)
    if follow_up is None or run.status != "finished":
        return run
    return follow_up.compute(config, store, replace(options, fresh=False), observer)


class Waiting:
    """The runs to hand out, in order. One that another process is computing is put off until all
    others are done; then that process is waited for, and the run handed out again once it has ended
    or died: its result is there, or it is continued here."""

    def __init__(self, requests: Iterable[Request], store: Store, observer: Observer):
        self.requests = deque(requests)
        self._store, self._observer = store, observer
        self._later: list[Request] = []
        self._told: set[str] = set()

    def goes_on(self, are_out: bool) -> bool:
        """Whether there is something to hand out, or, if runs `are_out`, to wait for."""
        if not self.requests and not are_out and self._later:
            self._wait()
        return bool(self.requests) or are_out

    def put_off(self, request: Request) -> None:
        """Try a run later."""
        self._later.append(request)

    def _wait(self) -> None:
        """Until one of the runs that are put off is free, as far as can be told from here."""
        patience = time.monotonic() + LONGEST_WAIT
        while not self.requests:
            held = {
                request.config.key: self._store.holder(request.config) for request in self._later
            }
            for request in self._later:
                self._tell(request, held[request.config.key])
            is_over = time.monotonic() > patience
            free = [one for one in self._later if is_over or held[one.config.key] is None]
            self.requests.extend(free)
            self._later = [one for one in self._later if one not in free]
            time.sleep(WAIT_SECONDS)

    def _tell(self, request: Request, holder: str | None) -> None:
        if holder is not None and request.config.request not in self._told:
            self._told.add(request.config.request)
            note = f"waits for {holder}, which is computing it"
            self._observer.tell(Note(request.config, note))

    def __iter__(self) -> Iterator[Request]:
        return iter((*self.requests, *self._later))
