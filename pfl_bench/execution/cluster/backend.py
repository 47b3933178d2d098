"""Runs on a Ray cluster: missing runs go out as Ray tasks, and their results come into the store.

Ray places the tasks and moves the data; which run goes when, and what is kept, is decided here:

- The store is written by this process alone, which holds the lock of every run that is out. So it
  does not matter whether the nodes share a file system with it or with each other.
- A dataset is put into Ray's object store once; the nodes fetch it once each and their runs share
  the memory.
- Checkpoints come in as they are saved and are kept in the run's folder, as if it were computed
  here. A run whose worker or node is lost, or the next command, continues from there.
- Ray itself retries nothing, because it would start a run over instead of continuing it.

What happens on a node is in `node`, what travels between in `mail`, the order of submission in
`estimates`.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pfl_bench.base import UserError, user_path
from pfl_bench.config import RunConfig
from pfl_bench.execution.cluster.connection import connected, what_happened
from pfl_bench.execution.cluster.mail import Letter, mailbox, on_node, packed, unpacked
from pfl_bench.execution.cluster.node import Answer, Order, installation
from pfl_bench.execution.cluster.nodes import Nodes
from pfl_bench.execution.cluster.shared_data import SharedData
from pfl_bench.execution.estimates import Pace, longest_first
from pfl_bench.execution.observer import Note, Observer
from pfl_bench.execution.options import Execution
from pfl_bench.execution.request import Request, Waiting
from pfl_bench.execution.resources import Resources, memory_of
from pfl_bench.execution.runner import answer_of
from pfl_bench.models import useful_workers
from pfl_bench.store import DamagedError, RunBusy, RunWriter, Store, StoredRun

ATTEMPTS = 3
"""A run is given up when it has failed this often without getting any further."""
AHEAD = 2
"""Runs are out for this many times the places there are: none waits for this process."""
POLL_SECONDS = 0.5
"""How often waiting is broken off, to read the mail and to notice an interruption."""
STOP_SECONDS = 5.0
"""How long runs that are called off may take to save their state."""
FETCH_SECONDS = 60.0


@contextlib.contextmanager
def ray_cluster(store: Store, options: Execution) -> Iterator[RayCluster]:
    """The cluster of the options, working for a store; leaving the context calls off its runs."""
    with connected(options.address) as ray:
        cluster = RayCluster(ray, store, options)
        try:
            yield cluster
        finally:
            cluster.stop()


class RayCluster:
    """Sends runs out, as many as there are places for, and takes in what comes back."""

    def __init__(self, ray: ModuleType, store: Store, options: Execution):
        self._ray, self._store, self._options = ray, store, options
        self._nodes = Nodes(ray)
        self._data = SharedData(ray, options.data_dir)
        self._jobs = 1 if options.timed else options.jobs
        self._gpus = float(self._nodes.have_gpus) if options.gpus is None else options.gpus
        # Nodes that are this machine have this code, as worker processes have.
        self._installation = {} if options.address is None else installation()
        self._plugins = {path.stem: user_path(path).read_bytes() for path in options.plugins}
        # A timed run gets a process of its own: peak memory is the process's, not the run's.
        self._task = ray.remote(max_retries=0, max_calls=int(options.timed))(on_node)
        self._mail = mailbox(ray)
        self._out: dict[Any, _Away] = {}
        self._workers = 1

    def carry_out(
        self, requests: Sequence[Request], observer: Observer
    ) -> Iterator[tuple[Request, str | None]]:
        """See `many.Backend`. A run that another process is computing comes after all others."""
        pace = Pace.of(self._store.all())
        data_dir = self._options.data_dir
        self._workers = self._options.workers or self._nodes.share(len(requests))
        self._nodes.check(Resources(self._workers, self._gpus))
        waiting = Waiting(longest_first(requests, pace, data_dir), self._store, observer)
        while waiting.goes_on(are_out=bool(self._out)):
            while waiting.requests and self._has_room():
                request = waiting.requests.popleft()
                try:
                    if not self._dispatch(request):
                        yield request, None
                except RunBusy:
                    waiting.put_off(request)
                except UserError as refusal:
                    yield request, str(refusal)
            for away, answer in self._answers(observer):
                stored, error = _concluded(away, answer)
                if stored is None and away.failures < ATTEMPTS:
                    observer.tell(Note(away.config, f"{error}; {away.outlook}"))
                    self._send(away)
                    continue
                away.lock.close()
                if stored is not None:
                    pace.learn(stored)
                    waiting.requests = deque(longest_first(waiting.requests, pace, data_dir))
                self._data.keep([*waiting, *(away.request for away in self._out.values())])
                yield away.request, error

    def stop(self) -> None:
        """Call off what is out. What is running saves its state, and that is taken in."""
        out = list(self._out)
        try:
            with contextlib.suppress(self._ray.exceptions.RayError):
                for reference in out:
                    self._ray.cancel(reference, recursive=False)
                if out:
                    self._ray.wait(out, num_returns=len(out), timeout=STOP_SECONDS)
                    self._read_mail(Observer())
        finally:
            for away in self._out.values():
                away.lock.close()
            self._out = {}

    # --- sending ------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        if self._jobs is not None:
            return len(self._out) < self._jobs
        places = self._nodes.places(Resources(self._workers, self._gpus))
        return len(self._out) < AHEAD * max(1, places)

    def _dispatch(self, request: Request) -> bool:
        """Lock the run and send it out; False where its result turns out to be there."""
        lock = contextlib.ExitStack()
        try:
            writer = lock.enter_context(self._store.open(request.config))
            if answer_of(writer, self._options) is not None:
                lock.close()
                return False
            if writer.finished and (state := writer.checkpoint) is not None:
                # A finished run that goes on: its state travels as a checkpoint.
                writer.save_checkpoint(state.round, state.tensors, state.meta)
            reached = writer.records[-1].round if writer.records else 0
            self._send(_Away(request, writer, lock, reached=reached))
        except BaseException:
            lock.close()
            raise
        return True

    def _send(self, away: _Away) -> None:
        """One attempt at a run, from where it is."""
        data, config = self._data.of(away.request), away.config
        workers = useful_workers(config.model, self._workers)
        memory = memory_of(config, *data.facts, workers)
        wanted = Resources(workers, self._gpus, self._nodes.at_most(memory))
        away.attempt += 1
        task = self._task.options(
            num_cpus=wanted.cores,
            num_gpus=wanted.gpus,
            memory=wanted.memory,
            name=config.slug,
        )
        reference = task.remote(
            self._order(away.request),
            data.dataset,
            data.partition,
            packed(away.writer.carry()),
            self._mail,
            away.address,
        )
        self._out[reference] = away

    def _order(self, request: Request) -> Order:
        options = self._options
        is_off_cards = self._nodes.have_gpus and not self._gpus and options.device == "auto"
        return Order(
            config=request.config.to_dict(),
            installation=self._installation,
            plugins=self._plugins,
            workers=self._workers,
            device="cpu" if is_off_cards else options.device,
            is_timed=options.timed,
            keep_state=options.keep_state or request.follow_up is not None,
            checkpoint_every=options.checkpoint_every,
        )

    # --- receiving ----------------------------------------------------------------------------

    def _answers(self, observer: Observer) -> list[tuple[_Away, Answer]]:
        """What has come of the runs that have ended, soon."""
        if not self._out:
            return []
        ended, _ = self._ray.wait(list(self._out), timeout=POLL_SECONDS)
        self._read_mail(observer)  # before the answers: it was posted before them
        answers = [(self._out.pop(reference), self._answer(reference)) for reference in ended]
        for away, answer in answers:
            if answer.mismatch:
                away.lock.close()
                raise UserError(
                    f"a node of the cluster does not have what this machine has: {answer.mismatch};"
                    " install the same on all of them"
                )
        return answers

    def _answer(self, reference: Any) -> Answer:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            if "No module named 'pfl_bench" in str(error):
                return Answer(mismatch="pfl-bench is not installed there")
            return Answer(error=what_happened(self._ray, error))

    def _read_mail(self, observer: Observer) -> None:
        """Pass the events on; of the checkpoints of a run, keep the newest."""
        sent = {away.address: away for away in self._out.values()}
        newest: dict[str, Letter] = {}
        for letter in self._letters():
            if letter.address not in sent:
                continue  # from an attempt that was given up for lost
            if letter.event is not None:
                observer.tell(letter.event)
            else:
                newest[letter.address] = letter
        for address, letter in newest.items():
            if problem := self._kept(sent[address], letter):
                observer.tell(Note(sent[address].config, problem))

    def _letters(self) -> list[Letter]:
        with contextlib.suppress(self._ray.exceptions.RayError):
            return self._mail.get_nowait_batch(self._mail.qsize())
        return []

    def _kept(self, away: _Away, letter: Letter) -> str | None:
        """Keep a checkpoint; what went wrong, where something did."""
        (reference,) = letter.saved
        try:
            files = self._ray.get(reference, timeout=FETCH_SECONDS)
        except self._ray.exceptions.RayError:
            return None  # gone with its node: the one before it is still here
        try:
            away.writer.adopt(unpacked(files))
        except (DamagedError, UserError) as error:
            return f"its checkpoint of round {letter.round} is not kept: {error}"
        away.reached = letter.round
        away.failures = 0
        return None


@dataclass
class _Away:
    """A run that is out, with the lock on its folder."""

    request: Request
    writer: RunWriter
    lock: contextlib.ExitStack
    attempt: int = 0
    failures: int = 0
    """Since it last got further."""
    reached: int = 0
    """The round of the newest checkpoint that is here."""

    @property
    def config(self) -> RunConfig:
        return self.request.config

    @property
    def address(self) -> str:
        """Where letters of this attempt, and of no other, belong."""
        return f"{self.config.request}/{self.attempt}"

    @property
    def outlook(self) -> str:
        where = f"continues after round {self.reached}" if self.reached else "starts again"
        return f"it {where} (attempt {self.attempt + 1})"


def _concluded(away: _Away, answer: Answer) -> tuple[StoredRun | None, str | None]:
    """The result of a run, stored; else what went wrong."""
    error = answer.error
    if answer.files is not None:
        try:
            return away.writer.adopt(answer.files), None
        except DamagedError as damage:
            error = f"its result arrived damaged: {damage}"
        except UserError as refusal:  # of this machine's disk: no other attempt would help
            away.failures = ATTEMPTS
            return None, str(refusal)
    away.failures += 1
    return None, error
