"""The one road of all runs: a list of them goes in, what the store lacks is run, results come out.

`run`, `table` and `figure` differ in the lists that they hand over and in who is told how it goes.
One after another in this process, in worker processes (`workers`) or on a cluster (`cluster`): the
results are the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pfl_bench.execution.observer import Ended, Failed, Observer, Observers
from pfl_bench.execution.options import AS_MANY_AS_PAY, Execution
from pfl_bench.execution.request import Request, carry_out
from pfl_bench.execution.resources import jobs_for
from pfl_bench.execution.trackers import tracking
from pfl_bench.execution.workers import worker_processes
from pfl_bench.store import Store, StoredRun

Answer = tuple[Request, str | None]
"""A run that has ended, with its error if it had one."""


class Backend(Protocol):
    """Whoever carries out runs."""

    def carry_out(self, requests: Sequence[Request], observer: Observer) -> Iterator[Answer]:
        """Every run once, in the order in which they end. The observer is told on the way how they
        go; a run without an error has its result in the store."""


@dataclass
class Outcome:
    """What came of the runs that were asked for, each by the `request` of its configuration: two of
    them can go by the same result, one further than the other."""

    runs: dict[str, StoredRun] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Why a run has no result."""
    stored: frozenset[str] = frozenset()
    """Of the runs, those that had their result before."""


def run_all(
    requests: Sequence[Request], store: Store, options: Execution, observer: Observer | None = None
) -> Outcome:
    """The results of all requests: stored ones are taken, missing ones run.

    In this process an error ends everything, as any other error of the command would; elsewhere it
    is the failure of one run."""
    asked = {request.config.request: request for request in requests}
    found = {name: request.answer(store, options) for name, request in asked.items()}
    runs = {name: run for name, run in found.items() if run is not None}
    outcome = Outcome(runs, stored=frozenset(runs))
    with tracking(options.track, list(asked.values()), store) as trackers:
        for name, run in runs.items():
            trackers.tell(Ended(asked[name].config, run))
        observers = Observers(trackers, observer or Observer())
        for stage in _stages(options):
            missing = [asked[name] for name in asked if name not in _settled(outcome)]
            if missing:
                _run(missing, store, stage, observers, outcome)
        for name in asked.keys() - _settled(outcome):
            _fail(asked[name], "its result is not in the store", observers, outcome)
    return outcome


def _settled(outcome: Outcome) -> set[str]:
    return outcome.runs.keys() | outcome.failures.keys()


def _stages(options: Execution) -> list[Execution]:
    """A cluster trains; what follows on the trained models is for this machine's processes."""
    if options.where == "local":
        return [options]
    here = replace(options, where="local", jobs=options.jobs or AS_MANY_AS_PAY, fresh=False)
    return [options, here]


def _run(
    missing: Sequence[Request],
    store: Store,
    options: Execution,
    observer: Observer,
    outcome: Outcome,
) -> None:
    """Add what comes of these runs to the outcome; a run that has yet to be followed up is left."""
    with _backend(store, options, missing) as backend:
        for request, error in backend.carry_out(missing, observer):
            run = None if error else request.result(store)
            if run is not None:
                outcome.runs[request.config.request] = run
                observer.tell(Ended(request.config, run))
            elif error:
                _fail(request, error, observer, outcome)


def _fail(request: Request, error: str, observer: Observer, outcome: Outcome) -> None:
    outcome.failures[request.config.request] = error
    observer.tell(Failed(request.config, error))


@contextlib.contextmanager
def _backend(store: Store, options: Execution, missing: Sequence[Request]) -> Iterator[Backend]:
    if options.where == "ray":
        from pfl_bench.execution.cluster import ray_cluster

        with ray_cluster(store, options) as cluster:
            yield cluster
    elif options.jobs is None and not options.timed:
        yield _Here(store, options)
    else:
        jobs = jobs_for([request.config for request in missing], options)
        with worker_processes(store, replace(options, jobs=jobs)) as workers:
            yield workers


class _Here:
    """This process, one run after another."""

    def __init__(self, store: Store, options: Execution):
        self._store, self._options = store, options

    def carry_out(self, requests: Sequence[Request], observer: Observer) -> Iterator[Answer]:
        for request in requests:
            carry_out(request, self._store, self._options, observer)
            yield request, None
