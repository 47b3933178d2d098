"""The round loop: sample clients, train them in parallel, aggregate, evaluate, record.

A run is a pure function of its configuration. Clients run on a thread pool, each on its worker's
workspace with one intra-op thread; results are consumed in the order of the clients, whatever the
order in which workers finish. Storing, resuming and stopping early are the runner's business.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pfl_bench.base import UserError, seeds
from pfl_bench.config import RunConfig, resolve
from pfl_bench.data import Dataset, Partition, roles_of
from pfl_bench.device import WorkerPool, fetched, make_repeatable, this_stream
from pfl_bench.engine.algorithm import Algorithm, Upload
from pfl_bench.engine.batches import Pool, Shard
from pfl_bench.engine.blocks import Asked, Block, Found, Meet, in_lockstep, windows
from pfl_bench.engine.client import Client, ClientState, Message, Score, Scores, Task, Training
from pfl_bench.engine.feasibility import why_impossible
from pfl_bench.engine.parallel import GROUP, blocks_in_order, in_order
from pfl_bench.engine.server import Server, Spread
from pfl_bench.engine.snapshot import Snapshot, misfit
from pfl_bench.engine.timing import RoundWatch
from pfl_bench.engine.totals import CONVERGENCE, Heard, Rated, RoundTotals, Trained
from pfl_bench.engine.trees import flatten
from pfl_bench.engine.workspaces import Workspaces
from pfl_bench.models import Network, build_model, inputs_of, useful_workers
from pfl_bench.store import NEWCOMERS, VALIDATION, DamagedError, RoundRecord


class Interrupted(Exception):
    """The run was told to stop; raised inside the workers."""


class Simulator:
    """One run in memory. Iterate `rounds()`; `snapshot` is always that of the last whole round."""

    def __init__(
        self,
        algorithm: type[Algorithm],
        config: RunConfig,
        dataset: Dataset,
        partition: Partition,
        *,
        workers: int = 1,
        device: str = "cpu",
    ):
        self.config = config
        self.device = torch.device(device)
        make_repeatable(self.device)
        self.workers = useful_workers(config.model, workers)
        self.diverged: str | None = None
        self.remark = dataset.remark
        self.found_one_by_one: Found = {}
        self.cancelled = threading.Event()
        pool = Pool(dataset.x, dataset.y, self.device)
        self.roles = roles_of(
            partition,
            validation=config.validation,
            new_clients=config.new_clients,
            batch_size=config.batch_size,
            seed=config.partition_seed,
        )
        joining, new = self.roles.clients, self.roles.newcomers
        self.shards = [
            Shard(pool, train, test, dataset.classes, held)
            for train, test, held in zip(
                joining.train, joining.test, self.roles.validation, strict=True
            )
        ]
        self.newcomers = (
            [
                Shard(pool, train, test, dataset.classes)
                for train, test in zip(new.train, new.test, strict=True)
            ]
            if new
            else []
        )
        self._everybody = [*self.shards, *self.newcomers]
        inputs = inputs_of(dataset, config.dataset, config.model)
        task = Task(
            config=config,
            classes=dataset.classes,
            train_sizes=tuple(shard.samples for shard in self.shards),
            build_model=lambda: build_model(config.model, inputs),
        )
        hyper = resolve(algorithm.Hyper, config.model, config.hyper, config.algo)
        self.algorithm = algorithm(hyper, task)
        self.task = task

    @property
    def impossible(self) -> str | None:
        """The reason why this run cannot take place, if there is one."""
        return why_impossible(self.algorithm, self.shards, self.newcomers)

    def prepare(self) -> None:
        """Build the workspaces and the state before the first round."""
        # One thread per operation, always: how a sum is split over threads changes its last bits.
        torch.set_num_threads(1)
        self.workspaces = Workspaces(self.algorithm, self.workers, self.device)
        start = self.workspaces.start()
        self._fresh_state = self.algorithm.client_state(start)
        server = self.algorithm.server_state(start)
        for state in (self._fresh_state, server):  # a name that no checkpoint could hold fails now
            flatten(state, "")
        self.snapshot = Snapshot(0, server, {}, {}, self.workspaces.fresh_average)

    def resume(
        self, round: int, tensors: dict[str, Tensor], joined: Set[int] | None = None
    ) -> None:
        """Continue after `round` from the tensors of a checkpoint; DamagedError where the state is
        not one of this run. `joined` are the clients that have trained by then, where it is known:
        they and no others have a state."""
        found = self.snapshot.continued(round, tensors, self.device)
        for index, state in found.clients.items():
            if index >= self.task.clients or state.keys() != self._fresh_state.keys():
                kept = ", ".join(self._fresh_state) or "nothing"
                raise DamagedError(f"a client's state is now {kept}")
            if problem := misfit(self._fresh_state, state, f"the state of client {index}"):
                raise DamagedError(problem)
        for index, stats in found.stats.items():
            where = f"the batch-norm statistics of client {index}"
            if problem := misfit(self.workspaces.fresh_stats, stats, where):
                raise DamagedError(problem)
        if joined is not None and self._fresh_state and found.clients.keys() != joined:
            raise DamagedError("its clients are not those that have trained")
        own_stats = set() if self.workspaces.averages_all else joined
        if own_stats is not None and found.stats.keys() != own_stats:
            raise DamagedError("its batch-norm statistics are not of the clients that have trained")
        for state in (found.server, *found.clients.values()):
            for part in self.workspaces.sizes.keys() & state.keys():
                value = state[part]
                if not isinstance(value, Tensor) or value.shape != (self.workspaces.sizes[part],):
                    raise DamagedError(f"the model's {part} has another size")
        with self.workspaces.of_server(self.snapshot) as net:
            if problem := self.algorithm.misfit(found.server, net):
                raise DamagedError(problem)
        self.snapshot = found

    def rounds(self) -> Iterator[RoundRecord]:
        """Train until the last round, yielding a record after each."""
        pool = WorkerPool(self.workers, self.device)
        try:
            while self.snapshot.round < self.config.rounds and self.diverged is None:
                yield self._round(pool, self.snapshot.round + 1)
        finally:
            self.cancelled.set()
            pool.shutdown(wait=True, cancel_futures=True)

    # --- one round ----------------------------------------------------------------------------

    def _round(self, pool: WorkerPool, round: int) -> RoundRecord:
        watch = RoundWatch(self.workers)
        totals = RoundTotals(self.snapshot)
        if round == 1 and type(self.algorithm).introduction is not Algorithm.introduction:
            self._begin(pool, totals)
        joined = self._joining(round)
        total = sum(self.shards[i].samples for i in joined)

        def job(index: int) -> Trained:
            with self.client(index, round) as client:
                return self._train(client, client.samples / total, watch)

        def block(indices: list[int]) -> list[Trained]:
            return self._train_block(indices, round, total, watch)

        recorded: dict[str, Any] = {}
        if self.in_blocks:
            grouped = windows(joined, self.config.block_size, self._samples, GROUP)
            trained = blocks_in_order(pool, block, grouped)
        else:
            trained = in_order(pool, job, joined, cost=self._samples)
        with watch.aggregation(trained) as arriving:
            uploads = totals.uploads(arriving)
            server = self.algorithm.aggregate(self.server(pool.map, recorded, joined), uploads)
            for _ in uploads:  # whom the aggregation passed over has trained all the same
                pass
        self.snapshot = totals.snapshot(round, server)
        asked = {k: v for k, v in recorded.items() if k in self.config.record}
        rated = None
        if self._is_evaluated(round) and not self._is_known_to_diverge(totals):
            wanted = [name for name in self.algorithm.recordable if name not in recorded]
            rated = self._evaluate(pool, round, totals.scores, wanted, watch)
        return self._record(round, joined, totals, fetched((totals.heard, asked, rated)), watch)

    def _is_known_to_diverge(self, totals: RoundTotals) -> bool:
        """Whether the round has gone wrong before it is evaluated: asked where it costs no wait."""
        return self.device.type == "cpu" and any(one.defect for one in fetched(totals.heard))

    def _record(
        self,
        round: int,
        joined: list[int],
        totals: RoundTotals,
        told: tuple[list[Heard], dict[str, Any], Rated | None],
        watch: RoundWatch,
    ) -> RoundRecord:
        """The round as it is kept, from what the device has told at its end."""
        heard, asked, rated = told
        totals.settle(heard)
        self.diverged = totals.defect and f"{totals.defect} in round {round}"
        extras, scores = totals.extras() | asked, None
        if rated is not None and not self.diverged:
            scores = rated.scores
            extras |= rated.series
            self.diverged = _defect(scores, round)
            if self.config.validation:
                extras[VALIDATION] = counts(s.validation for s in scores)
            if self.newcomers:
                extras[NEWCOMERS] = counts(rated.newcomers)
        return RoundRecord(
            round=round,
            joined=joined,
            correct=None if scores is None else [s.test.correct for s in scores],
            total=None if scores is None else [s.test.total for s in scores],
            loss=None if scores is None else [s.test.loss for s in scores],
            train_loss=totals.train_loss,
            bytes_up=totals.bytes_up,
            bytes_down=totals.bytes_down,
            parameters_up=totals.parameters_up,
            parameters_down=totals.parameters_down,
            extras=extras,
            seconds=watch.split(),
        )

    def _begin(self, pool: WorkerPool, totals: RoundTotals) -> None:
        """All clients introduce themselves; what is sent for it counts into the first round."""
        total = sum(self.task.train_sizes)

        def job(index: int) -> tuple[Upload, Message]:
            with self.client(index, 0) as client:
                received = self.download(index)
                told = self.algorithm.introduction(client, received)
                return Upload(index, client.samples / total, told), received

        everyone = range(self.task.clients)
        told = in_order(pool, job, everyone, cost=lambda i: self.shards[i].samples)
        server = self.server(pool.map, {}, everyone)
        begun = self.algorithm.begin(server, totals.introductions(told))
        self.snapshot = dataclasses.replace(self.snapshot, server=begun)

    def _joining(self, round: int) -> list[int]:
        """The clients that join a round, in order."""
        drawn = sample_clients(self.config, self.task.clients, round)
        chosen = sorted(set(self.algorithm.joining(self.server(), drawn)))
        if not chosen or not 0 <= chosen[0] <= chosen[-1] < self.task.clients:
            raise ValueError(
                f"{type(self.algorithm).__name__}.joining chose {chosen}; allowed: one or more of "
                f"the clients 0 to {self.task.clients - 1}"
            )
        return chosen

    @property
    def in_blocks(self) -> bool:
        """Whether clients are trained in blocks."""
        return self.config.block_size > 1 and not self.algorithm.one_by_one

    def _samples(self, index: int) -> int:
        return self.shards[index].samples

    def _train_block(
        self, indices: list[int], round: int, total: int, watch: RoundWatch
    ) -> list[Trained]:
        """The jobs of a block of clients, on a worker: they wait for each other where they train,
        and the steps of all are taken as one."""
        self.check_cancelled()
        stream = this_stream(self.device)
        with self.workspaces.of_block(indices, self.snapshot) as stack:
            trainer = Block(stack, self.found_one_by_one)

            def job(net: Network, index: int, meet: Meet[Asked]) -> Trained:
                def ask(training: Training) -> None:
                    with watch.excepted("training"):
                        meet((client, training))

                with stream():
                    client = self._client_on(net, index, round, ask)
                    return self._train(client, client.samples / total, watch)

            def together(asked: list[tuple[int, Asked]]) -> None:
                with watch.measure("training"):
                    trainer.train(asked)

            members = zip(stack.members, indices, strict=False)
            return in_lockstep([partial(job, net, index) for net, index in members], together)

    def _train(self, client: Client, weight: float, watch: RoundWatch) -> Trained:
        """The job of one joined client, on a worker."""
        index, round = client.index, client.round
        received = self.download(index)
        convergence: dict[str, tuple[Tensor, Score]] | None = None
        if CONVERGENCE in self.config.record:
            with watch.measure("evaluation"):
                self.algorithm.scored(client, received)
                convergence = {"before": self._losses(client)}
                self.workspaces.load_stats(client.net, index, self.snapshot)
        copied = client.net.seconds_copying
        with watch.measure("training"):
            message = self.algorithm.local_update(client, received)
        watch.move(client.net.seconds_copying - copied, "training", "communication")
        stats = client.net.stats.clone()
        scores = None
        with watch.measure("evaluation"):
            if self.algorithm.scores_after_training and self._is_evaluated(round):
                scores = self._scores(client)
            if convergence is not None:
                convergence["after"] = self._losses(client)
        return Trained(
            Upload(index, weight, message),
            dict(client.state),
            None if self.workspaces.averages_all else stats,
            stats[self.workspaces.averaged] if self.snapshot.server_stats is not None else None,
            received,
            client.train_loss,
            scores,
            convergence,
        )

    def _evaluate(
        self,
        pool: WorkerPool,
        round: int,
        known: dict[int, Scores],
        recordable: Sequence[str],
        watch: RoundWatch,
    ) -> Rated:
        """The scored model of every client on its test set (and on what it holds back), the series
        asked for, and the clients that never join."""
        series = [name for name in self.config.record if name in recordable]

        def job(index: int) -> tuple[Scores, list[Any]]:
            if index in known and not series:
                return known[index], []
            with watch.measure("evaluation"), self.client(index, round) as client:
                received = self.download(index)
                self.algorithm.scored(client, received)
                scores = known[index] if index in known else self._scores(client)
                return scores, [self.algorithm.record(client, name) for name in series]

        everyone = range(self.task.clients)
        results = list(in_order(pool, job, everyone, cost=lambda i: len(self.shards[i].test)))
        values = {name: [row[k] for _, row in results] for k, name in enumerate(series)}
        newcomers = self._adapted(pool, round, watch) if self.newcomers else []
        return Rated([scores for scores, _ in results], values, newcomers)

    def _adapted(self, pool: WorkerPool, round: int, watch: RoundWatch) -> list[Score]:
        """The clients that never join, each after it has adapted. Nothing of it is kept, and what
        they receive is not counted as traffic."""

        def job(index: int) -> Score:
            with watch.measure("evaluation"), self.client(index, round) as client:
                return self._adapt(client)

        first, new = self.task.clients, len(self.newcomers)
        return list(
            in_order(
                pool,
                job,
                range(first, first + new),
                cost=lambda i: self._everybody[i].samples,
            )
        )

    def _adapt(self, client: Client) -> Score:
        """The score of a client that has never been seen: it takes part as if in its first round,
        with local epochs of its own number, and is then scored as all are."""
        algorithm, epochs = self.algorithm, self.config.adapt_epochs
        received = self._welcome(client.index)
        client.state.update(algorithm.newcomer_state(dict(client.state), received))
        if epochs:
            algorithm.local_update(client.training_for(epochs), received)
        if epochs and algorithm.scores_after_training:
            return self._score(client)
        if self.snapshot.server_stats is not None:
            client.net.stats[self.workspaces.averaged] = self.snapshot.server_stats
        client.memo.clear()
        algorithm.scored(client, received)
        return self._score(client)

    def _welcome(self, index: int) -> Message:
        try:
            return self.algorithm.welcome(self.server(), index)
        except LookupError as error:
            raise UserError(
                f"{self.algorithm.title} does not say what a client gets that never joined: its "
                "newcomer() must give the reason, or its welcome() a message"
            ) from error

    def _scores(self, client: Client) -> Scores:
        """The model in the workspace on the client's test set and on what it holds back."""
        test = self._score(client)
        return Scores(test, self._score(client, "validation") if self.config.validation else None)

    def _score(self, client: Client, which: str = "test") -> Score:
        """The model in the workspace on one of the client's sets."""
        return client.evaluate(lambda x: self.algorithm.predict(client, x), which)

    def _losses(self, client: Client) -> tuple[Tensor, Score]:
        """Mean training loss and test score of the model in the workspace."""
        return self._score(client, "train").loss, self._score(client)

    def _is_evaluated(self, round: int) -> bool:
        return round % self.config.eval_every == 0 or round == self.config.rounds

    # --- the server ---------------------------------------------------------------------------

    def server(
        self,
        spread: Spread = map,
        recorded: dict[str, Any] | None = None,
        joined: Sequence[int] = (),
    ) -> Server:
        """The server after the last whole round."""
        return Server(
            self.snapshot.server,
            self.snapshot.round,
            self.task,
            lambda: self.workspaces.of_server(self.snapshot),
            spread,
            recorded,
            joined,
        )

    def download(self, index: int) -> Message:
        """What the server sends to a client at this moment."""
        return self.algorithm.download(self.server(), index)

    # --- clients ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def client(self, index: int, round: int) -> Iterator[Client]:
        """A client on a free workspace, with what it kept."""
        self.check_cancelled()
        with self.workspaces.of_client(index, self.snapshot) as net:
            yield self._client_on(net, index, round)

    def trained_client(self, index: int) -> Client:
        """A client on a workspace of its own, which holds the model that counts after the last
        whole round."""
        net = self.workspaces.build()
        self.workspaces.load_stats(net, index, self.snapshot)
        client = self._client_on(net, index, self.snapshot.round)
        self.algorithm.scored(client, self.download(index))
        return client

    def _client_on(
        self,
        net: Network,
        index: int,
        round: int,
        in_block: Callable[[Training], None] | None = None,
    ) -> Client:
        state = ClientState(self._fresh_state, self.snapshot.clients.get(index, {}))
        shard = self._everybody[index]
        return Client(index, round, self.task, shard, state, net, self.check_cancelled, in_block)

    def check_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise Interrupted


def sample_clients(config: RunConfig, clients: int, round: int) -> list[int]:
    """The clients that join a round, in order; the same for every algorithm under one seed."""
    generator = seeds.numpy_generator(config.seed, "join", round)
    low, high = config.joining_ratio
    ratio = low if low == high else generator.uniform(low, high)
    count = max(1, math.floor(ratio * clients + 0.5))
    return sorted(generator.choice(clients, count, replace=False).tolist())


def counts(scores: Iterable[Score | None]) -> dict[str, list[int]]:
    """Correct predictions and samples of each client, as a record holds them."""
    known = [score for score in scores if score is not None]
    return {"correct": [s.correct for s in known], "total": [s.total for s in known]}


def _defect(scores: Sequence[Scores], round: int) -> str | None:
    """What is wrong with the scores of a round, if anything is."""
    for client, score in enumerate(scores):
        if not math.isfinite(score.test.loss):
            return f"the test loss of client {client} is {score.test.loss} in round {round}"
    return None
