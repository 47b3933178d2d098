"""A team on a Ray cluster: missing runs go out as Ray tasks, and their results come into the store.

Ray places the tasks and moves the data; which run goes when, and what is kept, is decided here:

- The store is written by this process alone, which holds the lock of every run that is out. So it
  does not matter whether the nodes share a file system with it or with each other.
- A dataset is put into Ray's object store once; the nodes fetch it once each and their runs share
  the memory.
- Checkpoints come in as they are saved and are kept in the run's folder, as if it were computed
  here. A run whose worker or node is lost, or the next command, continues from there.
- Ray itself retries nothing, because it would start a run over instead of continuing it.

What happens on a node is in `ray_node`, the order of submission in `estimates`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from pfl_bench.base import UserError, shown, terminable, user_path
from pfl_bench.config import RunConfig
from pfl_bench.data import Dataset, Partition
from pfl_bench.execution.cluster.ray_node import (
    Answer,
    Files,
    Order,
    Saved,
    carry_out,
    installation,
)
from pfl_bench.execution.configuration import load_data
from pfl_bench.execution.estimates import longest_first
from pfl_bench.execution.resources import Needs, memory_of
from pfl_bench.execution.runner import default_workers, serves, starts_over
from pfl_bench.execution.tensorboard import execute_logged
from pfl_bench.execution.workers import Crew, News, TableWatcher, Waiting, pass_on
from pfl_bench.models import useful_workers
from pfl_bench.reporting.tables import Pace, PlannedRun, data_of
from pfl_bench.store import DamagedError, RunBusy, RunWriter, Store, StoredRun

INSTALL = "pip install 'pfl-bench[ray]'"
ATTEMPTS = 3
"""A run is given up when it has failed this often without getting any further."""
AHEAD = 2
"""Runs are out for this many times the places there are: none waits for this process."""
POLL_SECONDS = 0.5
"""How often waiting is broken off, to read the mail and to notice an interruption."""
STOP_SECONDS = 5.0
"""How long runs that are called off may take to save their state."""
CONNECT_SECONDS = 5.0
FETCH_SECONDS = 60.0


@dataclass(frozen=True)
class RayCluster:
    """Which cluster, and how much of it."""

    address: str | None = None
    """host:port of a running one, or "auto"; None starts one on this machine."""
    jobs: int | None = None
    """Runs that are out at the same time; by default AHEAD times the places there are."""
    gpus: float | None = None
    """Cards per run; by default one where the cluster has any."""

    @contextlib.contextmanager
    def hire(self, store: Store, crew: Crew) -> Iterator[RayTeam]:
        with _connected(self.address) as ray:
            team = RayTeam(ray, store, crew, self)
            try:
                yield team
            finally:
                team.stop()


def require_ray() -> ModuleType:
    """The library, or one sentence on how to get it."""
    # Both are read when it is imported: it reports to nobody unless asked to, and what its
    # processes say is not mixed into a table on its way to a file.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    try:
        import ray
        import ray.util.queue
        import ray.util.scheduling_strategies
    except ImportError:
        raise UserError(
            f"--backend ray needs the package ray; install it with: {INSTALL}"
        ) from None
    return ray


class RayTeam:
    """Sends runs out, as many as there are places for, and takes in what comes back."""

    def __init__(self, ray: ModuleType, store: Store, crew: Crew, cluster: RayCluster):
        self._ray, self._store, self._crew = ray, store, crew
        self._nodes = _Nodes(ray)
        self._supply = _Supply(ray, crew)
        self._jobs = 1 if crew.is_timed else cluster.jobs
        self._gpus = float(self._nodes.have_gpus) if cluster.gpus is None else cluster.gpus
        # Nodes that are this machine have this code, as worker processes have.
        self._installation = {} if cluster.address is None else installation()
        self._plugins = {path.stem: user_path(path).read_bytes() for path in crew.plugins}
        # A timed run gets a process of its own: peak memory is the process's, not the run's.
        self._task = ray.remote(max_retries=0, max_calls=int(crew.is_timed))(_on_node)
        self._mail = ray.util.queue.Queue(actor_options=_beside_this_process(ray))
        self._out: dict[Any, _Errand] = {}
        self._workers = 1

    def work_off(
        self, runs: Sequence[PlannedRun], watcher: TableWatcher
    ) -> Iterator[tuple[PlannedRun, str | None]]:
        """See `workers.Team`. A run that another process is computing is tried again after all
        others, once."""
        pace = Pace.of(self._store)
        self._workers = self._crew.workers or self._nodes.share(len(runs))
        self._nodes.check(Needs(self._workers, self._gpus))
        waiting = Waiting(longest_first(runs, pace, self._crew.data_dir))
        while waiting.goes_on(are_out=bool(self._out)):
            while waiting.runs and self._has_room():
                run = waiting.runs.popleft()
                try:
                    if not self._dispatch(run):
                        yield run, None
                except RunBusy as busy:
                    if not waiting.put_off(run):
                        yield run, str(busy)
                except UserError as refusal:
                    yield run, str(refusal)
            for errand, answer in self._answers(watcher):
                stored, error = _concluded(errand, answer)
                if stored is None and errand.failures < ATTEMPTS:
                    watcher.on_note(errand.run, f"{error}; {errand.outlook}")
                    self._send(errand)
                    continue
                errand.lock.close()
                if stored is not None:
                    pace.learn(stored)
                    error = self._logged(errand.run)
                    order = longest_first(waiting.runs, pace, self._crew.data_dir)
                    waiting.runs = deque(order)
                self._supply.keep([*waiting, *(errand.run for errand in self._out.values())])
                yield errand.run, error

    def stop(self) -> None:
        """Call off what is out. What is running saves its state, and that is taken in."""
        out = list(self._out)
        try:
            with contextlib.suppress(self._ray.exceptions.RayError):
                for reference in out:
                    self._ray.cancel(reference, recursive=False)
                if out:
                    self._ray.wait(out, num_returns=len(out), timeout=STOP_SECONDS)
                    self._read_mail(TableWatcher())
        finally:
            for errand in self._out.values():
                errand.lock.close()
            self._out = {}

    # --- sending ------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        if self._jobs is not None:
            return len(self._out) < self._jobs
        places = self._nodes.places(Needs(self._workers, self._gpus))
        return len(self._out) < AHEAD * max(1, places)

    def _dispatch(self, run: PlannedRun) -> bool:
        """Lock the run and send it out; False where its result turns out to be there."""
        lock = contextlib.ExitStack()
        try:
            writer = lock.enter_context(self._store.open(run.config))
            if writer.finished and serves(writer.finished, self._crew.options):
                lock.close()
                return False
            if starts_over(writer, self._crew.options):
                writer.discard()
            reached = writer.records[-1].round if writer.records else 0
            self._send(_Errand(run, writer, lock, reached=reached))
        except BaseException:
            lock.close()
            raise
        return True

    def _send(self, errand: _Errand) -> None:
        """One attempt at a run, from where it is."""
        data, config = self._supply.of(errand.run), errand.run.config
        workers = useful_workers(config.model, self._workers)
        memory = memory_of(config, *data.facts, workers)
        needs = Needs(workers, self._gpus, self._nodes.at_most(memory))
        errand.attempt += 1
        task = self._task.options(
            num_cpus=needs.cores,
            num_gpus=needs.gpus,
            memory=needs.memory,
            name=config.slug,
        )
        reference = task.remote(
            self._order(config),
            data.dataset,
            data.partition,
            _packed(errand.writer.carry()),
            self._mail,
            errand.address,
        )
        self._out[reference] = errand

    def _order(self, config: RunConfig) -> Order:
        options = self._crew.options
        is_off_cards = self._nodes.have_gpus and not self._gpus and options.device == "auto"
        return Order(
            config=config.to_dict(),
            installation=self._installation,
            plugins=self._plugins,
            workers=self._workers,
            device="cpu" if is_off_cards else options.device,
            is_timed=options.timed,
            keep_state=options.keep_state,
            checkpoint_every=options.checkpoint_every,
        )

    # --- receiving ----------------------------------------------------------------------------

    def _answers(self, watcher: TableWatcher) -> list[tuple[_Errand, Answer]]:
        """What has come of the runs that have ended, soon."""
        if not self._out:
            return []
        ended, _ = self._ray.wait(list(self._out), timeout=POLL_SECONDS)
        self._read_mail(watcher)  # before the answers: it was posted before them
        answers = [(self._out.pop(reference), self._answer(reference)) for reference in ended]
        for errand, answer in answers:
            if answer.mismatch:
                errand.lock.close()
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
            return Answer(error=_what_happened(self._ray, error))

    def _read_mail(self, watcher: TableWatcher) -> None:
        """Pass the news on; of the checkpoints of a run, keep the newest."""
        errands = {errand.address: errand for errand in self._out.values()}
        newest: dict[str, _Letter] = {}
        for letter in self._letters():
            if letter.address not in errands:
                continue  # from an attempt that was given up for lost
            if letter.news is not None:
                pass_on(letter.news, errands[letter.address].run, watcher)
            else:
                newest[letter.address] = letter
        for address, letter in newest.items():
            if problem := self._kept(errands[address], letter):
                watcher.on_note(errands[address].run, problem)

    def _letters(self) -> list[_Letter]:
        with contextlib.suppress(self._ray.exceptions.RayError):
            return self._mail.get_nowait_batch(self._mail.qsize())
        return []

    def _kept(self, errand: _Errand, letter: _Letter) -> str | None:
        """Keep a checkpoint; what went wrong, where something did."""
        (reference,) = letter.saved
        try:
            files = self._ray.get(reference, timeout=FETCH_SECONDS)
        except self._ray.exceptions.RayError:
            return None  # gone with its node: the one before it is still here
        try:
            errand.writer.adopt(_unpacked(files))
        except (DamagedError, UserError) as error:
            return f"its checkpoint of round {letter.round} is not kept: {error}"
        errand.reached = letter.round
        errand.failures = 0
        return None

    def _logged(self, run: PlannedRun) -> str | None:
        """Write a result for TensorBoard, where that is wanted."""
        if self._crew.tensorboard is None:
            return None
        try:
            execute_logged(run.config, self._store, replace(self._crew.options, fresh=False))
        except UserError as error:
            return str(error)
        return None


@dataclass
class _Errand:
    """A run that is out, with the lock on its folder."""

    run: PlannedRun
    writer: RunWriter
    lock: contextlib.ExitStack
    attempt: int = 0
    failures: int = 0
    """Since it last got further."""
    reached: int = 0
    """The round of the newest checkpoint that is here."""

    @property
    def address(self) -> str:
        """Where news of this attempt, and of no other, belongs."""
        return f"{self.run.config.key}/{self.attempt}"

    @property
    def outlook(self) -> str:
        where = f"continues after round {self.reached}" if self.reached else "starts again"
        return f"it {where} (attempt {self.attempt + 1})"


def _concluded(errand: _Errand, answer: Answer) -> tuple[StoredRun | None, str | None]:
    """The result of a run, stored; else what went wrong."""
    error = answer.error
    if answer.files is not None:
        try:
            return errand.writer.adopt(answer.files), None
        except DamagedError as damage:
            error = f"its result arrived damaged: {damage}"
        except UserError as refusal:  # of this machine's disk: no other attempt would help
            errand.failures = ATTEMPTS
            return None, str(refusal)
    errand.failures += 1
    return None, error


def _what_happened(ray: ModuleType, error: Exception) -> str:
    """A failure of the cluster rather than of the run, in a line."""
    kinds = {
        "NodeDiedError": "its node was lost",
        "OutOfMemoryError": "its worker was killed, because its node ran out of memory",
        "WorkerCrashedError": "its worker died",
        "ObjectLostError": "its data was lost with a node",
    }
    for kind, sentence in kinds.items():
        if isinstance(error, getattr(ray.exceptions, kind, ())):
            return sentence
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else 'no reason given'}"


# --- on a node ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Letter:
    """News of an attempt at a run, or a reference to the checkpoint that it has saved."""

    address: str
    news: News | None = None
    saved: tuple[Any, ...] = ()
    round: int = 0


def _on_node(
    order: Order,
    dataset: Dataset,
    partition: Partition,
    packed: Mapping[str, np.ndarray],
    mail: Any,
    address: str,
) -> Answer:
    """The Ray task."""
    post = partial(_post, mail, address)
    return carry_out(order, dataset, partition, _unpacked(packed), post)


def _post(mail: Any, address: str, item: News | Saved) -> None:
    import ray

    with contextlib.suppress(ray.exceptions.RayError):  # news that is lost does not stop a run
        if isinstance(item, Saved):
            # Fetched from this node's memory when there is time, and only if no newer one is there.
            saved = (ray.put(_packed(item.files)),)
            mail.put(_Letter(address, saved=saved, round=item.round))
        else:
            mail.put(_Letter(address, item))


def _packed(files: Files) -> dict[str, np.ndarray]:
    """As arrays, which Ray moves without copying them piece by piece."""
    return {name: np.frombuffer(content, np.uint8) for name, content in files.items()}


def _unpacked(packed: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in packed.items()}


# --- the cluster ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[ModuleType]:
    """Ray, connected to a running cluster or to one of this process's own."""
    ray = require_ray()
    if address is None:
        where: dict[str, Any] = {
            "address": "local",
            "num_cpus": default_workers(),
            "include_dashboard": False,
        }
    else:
        _check_address(address)
        where = {"address": address}
    try:
        # Other processes' output would tear the display apart.
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot use the Ray cluster {shown(address)}: {reason}") from error
    try:
        with terminable():  # Ray puts a handler of its own in place of ours
            yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse at once what Ray would wait for, for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UserError(
            f"--address cannot be {shown(address)}; allowed: HOST:PORT of a running Ray cluster, "
            "or auto on one of its machines"
        )
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at {shown(address)} ({error}); start one with `ray start "
            "--head`, or leave --address out to use this machine"
        ) from None


def _beside_this_process(ray: ModuleType) -> dict[str, Any]:
    """Options of an actor that must not be lost with another node."""
    here = ray.get_runtime_context().get_node_id()
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
    return {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": strategy}


class _Nodes:
    """What the nodes that are alive have to offer."""

    def __init__(self, ray: ModuleType):
        self._ray = ray

    @property
    def have_gpus(self) -> bool:
        return any(node.get("GPU", 0) for node in self._alive())

    def places(self, needs: Needs) -> int:
        """How many runs fit at the same time."""
        return sum(_fits(node, needs) for node in self._alive())

    def share(self, runs: int) -> int:
        """Cores for each of so many runs: one, or more where there are more cores than runs."""
        cores = [int(node.get("CPU", 0)) for node in self._alive()]
        return max(1, min(max(cores, default=1), sum(cores) // max(1, runs)))

    def at_most(self, memory: int) -> int:
        """An estimate must not keep a run from the largest node."""
        return int(min(memory, max((node.get("memory", 0) for node in self._alive()), default=0)))

    def check(self, needs: Needs) -> None:
        """Refuse what no node could ever take; Ray would wait for one."""
        if self.places(needs) == 0:
            cards = f" and {needs.gpus:g} GPU" if needs.gpus else ""
            raise UserError(
                f"no node of the cluster has {needs.cores} core(s){cards} for a run; the largest "
                f"have {self._largest('CPU'):g} core(s) and {self._largest('GPU'):g} GPU(s)"
            )

    def _largest(self, resource: str) -> float:
        return max((node.get(resource, 0) for node in self._alive()), default=0)

    def _alive(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]


def _fits(node: Mapping[str, float], needs: Needs) -> int:
    wanted = {"CPU": needs.cores, "GPU": needs.gpus, "memory": needs.memory}
    return int(min(node.get(name, 0) / amount for name, amount in wanted.items() if amount))


@dataclass(frozen=True)
class _Goods:
    """References to the data of a run, and what of it must be known without fetching it."""

    dataset: Any
    partition: Any
    facts: tuple[Dataset, int]
    """The dataset without its samples, and the number of clients."""


class _Supply:
    """Data in Ray's object store: every dataset and every partition once, however many runs."""

    def __init__(self, ray: ModuleType, crew: Crew):
        self._ray, self._crew = ray, crew
        self._datasets: dict[str, Any] = {}
        self._goods: dict[str, _Goods] = {}

    def of(self, run: PlannedRun) -> _Goods:
        key = data_of(run.config)
        if key not in self._goods:
            dataset, partition = load_data(run.config, self._crew.data_dir, run.partition)
            facts = replace(dataset, x=dataset.x[:0].copy(), y=dataset.y[:0].copy())
            self._goods[key] = _Goods(
                self._put_dataset(run.config, dataset),
                self._ray.put(partition),
                (facts, len(partition.train)),
            )
        return self._goods[key]

    def keep(self, runs: Iterable[PlannedRun]) -> None:
        """Let go of what none of these runs uses."""
        configs = [run.config for run in runs]
        wanted = {data_of(config) for config in configs}
        self._goods = {key: goods for key, goods in self._goods.items() if key in wanted}
        sets = {_dataset_of(config) for config in configs}
        self._datasets = {key: ref for key, ref in self._datasets.items() if key in sets}

    def _put_dataset(self, config: RunConfig, dataset: Dataset) -> Any:
        key = _dataset_of(config)
        if key not in self._datasets:
            self._datasets[key] = self._ray.put(dataset)
        return self._datasets[key]


def _dataset_of(config: RunConfig) -> str:
    """All that decides the samples of a run, whoever holds them."""
    names = ("dataset", "source", "data_fingerprint", "fraction", "partition_seed", "image_size")
    return repr([getattr(config, name) for name in names])
