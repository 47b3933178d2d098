"""The round loop: who joins, in which order, what is scored, and when a run is called off."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from toy import colour_dataset, toy_config, toy_dataset, toy_partition, toy_run, toy_simulator

from pfl_bench.algorithms.fedavg import FedAvg
from pfl_bench.algorithms.local import Local
from pfl_bench.base import seeds
from pfl_bench.config.run_config import RunConfig
from pfl_bench.data.dataset import Dataset
from pfl_bench.engine.algorithm import Algorithm, Start, Upload
from pfl_bench.engine.client import Client, Message
from pfl_bench.engine.parallel import GROUP, IN_FLIGHT, in_order
from pfl_bench.engine.server import Server, ServerState
from pfl_bench.engine.simulator import Interrupted, Simulator, sample_clients
from pfl_bench.engine.snapshot import misfit
from pfl_bench.plugins.registry import algorithm_names, load_algorithm
from pfl_bench.store.records import DamagedError, RoundRecord, same_result

# --- sampling -------------------------------------------------------------------------------------


def test_every_algorithm_meets_the_same_clients() -> None:
    joined = {
        tuple(sample_clients(toy_config(algo, joining_ratio=(0.1, 1.0)), 20, round=7))
        for algo in algorithm_names()
    }
    assert len(joined) == 1


def test_records_name_the_clients_that_were_sampled() -> None:
    config = toy_config(joining_ratio=(0.5, 0.5))
    for record in toy_run(config):
        assert record.joined == sample_clients(config, 4, record.round)


@pytest.mark.parametrize(("ratio", "count"), [(1.0, 20), (0.5, 10), (0.3, 6), (0.01, 1)])
def test_fixed_ratio_fixes_the_number_of_clients(ratio: float, count: int) -> None:
    config = toy_config(joining_ratio=(ratio, ratio))
    for t in range(1, 50):
        joined = sample_clients(config, 20, t)
        assert len(set(joined)) == len(joined) == count
        assert joined == sorted(joined)


def test_ranged_ratio_draws_every_number_in_the_range() -> None:
    config = toy_config(joining_ratio=(0.5, 1.0))
    counts = Counter(len(sample_clients(config, 20, t)) for t in range(2000))
    assert set(counts) == set(range(10, 21))
    assert all(150 < counts[n] < 250 for n in range(11, 20))
    assert all(60 < counts[n] < 140 for n in (10, 20))  # half a step of the range each


def test_a_share_is_rounded_to_the_nearest_number_of_clients() -> None:
    config = toy_config(joining_ratio=(0.29, 0.29))
    assert len(sample_clients(config, 100, 1)) == 29


def test_every_client_joins_equally_often() -> None:
    config = toy_config(joining_ratio=(0.25, 0.25))
    counts = Counter(i for t in range(2000) for i in sample_clients(config, 20, t))
    expected, deviation = 500, math.sqrt(2000 * 0.25 * 0.75)
    assert all(abs(counts[i] - expected) < 4 * deviation for i in range(20))


def test_seed_and_round_decide_who_joins() -> None:
    draws = {
        tuple(sample_clients(toy_config(seed=seed, joining_ratio=(0.5, 0.5)), 50, t))
        for seed in (0, 1)
        for t in (1, 2)
    }
    assert len(draws) == 4


# --- the thread pool ------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [5, GROUP, 3 * GROUP + 1])
def test_results_come_in_the_order_of_the_clients_whoever_finishes_first(clients: int) -> None:
    indices = list(range(0, 2 * clients, 2))

    def slow_for_the_first(index: int) -> int:
        time.sleep(0.002 * (1 - index / (2 * clients)))
        return index

    with ThreadPoolExecutor(4) as pool:
        assert list(in_order(pool, slow_for_the_first, indices, cost=lambda i: i)) == indices


def test_costliest_clients_start_first() -> None:
    started: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        list(in_order(pool, started.append, range(5), cost=lambda i: [3, 9, 1, 7, 5][i]))
    assert started == [1, 3, 4, 0, 2]


def test_waiting_uploads_are_bounded_however_many_clients_there_are() -> None:
    class Result:
        pass

    alive: weakref.WeakSet[Result] = weakref.WeakSet()
    lock = threading.Lock()
    most = 0

    def job(_: int) -> Result:
        nonlocal most
        with lock:
            result = Result()
            alive.add(result)
            most = max(most, len(alive))
            return result

    with ThreadPoolExecutor(2) as pool:
        for result in in_order(pool, job, range(10 * IN_FLIGHT), cost=lambda i: i):
            time.sleep(0.0005)  # the server is slower than the clients
            del result
    assert most <= IN_FLIGHT + 1


def test_no_client_at_all_is_no_result() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert list(in_order(pool, lambda i: i, [], cost=lambda i: i)) == []


def test_error_of_a_client_reaches_the_caller() -> None:
    class Failing(Algorithm):
        def local_update(self, client: Client, received: Message) -> Message:
            if client.index == 2:
                raise ZeroDivisionError("client 2")
            return super().local_update(client, received)

    with pytest.raises(ZeroDivisionError, match="client 2"):
        list(simulator_of(Failing, toy_config(), workers=2).rounds())


def test_cancelled_run_stops_inside_a_client() -> None:
    simulator = toy_simulator(toy_config(local_epochs=10_000))
    timer = threading.Timer(0.1, simulator.cancelled.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        next(simulator.rounds())
    assert time.monotonic() - began < 5
    timer.join()


def simulator_of(
    kind: type[Algorithm], config: RunConfig, dataset: Dataset | None = None, workers: int = 1
) -> Simulator:
    """A simulator of an algorithm that is no plugin."""
    dataset = dataset or toy_dataset()
    partition = toy_partition(config, dataset)
    simulator = Simulator(kind, config, dataset, partition, workers=workers)
    simulator.prepare()
    return simulator


# --- divergence -----------------------------------------------------------------------------------


def test_huge_learning_rate_ends_as_diverged_with_its_reason() -> None:
    simulator = toy_simulator(toy_config(lr=1e6, rounds=50))
    records = list(simulator.rounds())
    assert simulator.diverged is not None
    assert simulator.diverged.endswith(f"in round {records[-1].round}")
    assert len(records) < 50


def test_round_that_diverged_is_recorded_but_not_scored() -> None:
    *_, last = toy_run(toy_config(lr=1e6, rounds=50))
    assert last.train_loss is not None and not math.isfinite(last.train_loss)
    assert last.correct is None and last.accuracy is None
    assert same_result(RoundRecord.from_line(last.to_line()), last)


def test_reason_names_the_client_whose_loss_is_not_finite() -> None:
    class Poisoned(Algorithm):
        def train(self, client: Client, received: Message) -> None:
            super().train(client, received)
            if client.index == 2 and client.round == 2:
                client.report(torch.tensor(math.nan))

    simulator = simulator_of(Poisoned, toy_config(rounds=5))
    assert len(list(simulator.rounds())) == 2
    assert simulator.diverged == "the training loss of client 2 is nan in round 2"


def test_upload_that_is_not_finite_is_a_divergence() -> None:
    class Overflowing(Algorithm):
        def upload(self, client: Client) -> Message:
            return {name: value * math.inf for name, value in super().upload(client).items()}

    simulator = simulator_of(Overflowing, toy_config())
    assert len(list(simulator.rounds())) == 1
    assert simulator.diverged == (
        "the upload of client 0 holds values that are not finite in round 1"
    )


def test_training_that_reports_no_loss_is_no_divergence() -> None:
    class Silent(Algorithm):
        def train(self, client: Client, received: Message) -> None:
            client.net.vector.mul_(0.99)

    simulator = simulator_of(Silent, toy_config())
    assert [record.train_loss for record in simulator.rounds()] == [None] * 3
    assert simulator.diverged is None


@pytest.mark.parametrize("name", ["a/b", "", "stats/0"])
def test_a_state_that_a_checkpoint_could_not_name_is_refused(name: str) -> None:
    class Slashed(Algorithm):
        def client_state(self, start: Start) -> Message:
            return {name: start.model}

    with pytest.raises(ValueError, match=f"a state cannot be called {name!r}"):
        simulator_of(Slashed, toy_config())


def test_a_batch_of_one_is_skipped_where_batch_norm_has_one_value_to_go_by() -> None:
    def impossible(side: int, algo: str = "fedavg", **more: Any) -> str | None:
        dataset = colour_dataset(side=side)
        config = toy_config(algo, model="resnet18", **more)
        return Simulator(
            load_algorithm(config.algo), config, dataset, toy_partition(config, dataset)
        ).impossible

    assert impossible(16) is None
    assert impossible(16, batch_size=1) == (
        "batch norm in resnet18 needs two samples at a time and batches have one"
    )
    assert impossible(64, batch_size=1) is None  # whose last maps have four pixels
    twelve = {"clients": 12, "setting": "iid", "beta": None}  # of two samples, one for training
    assert impossible(16, **twelve) == (
        "batch norm in resnet18 needs two samples at a time and client 0 trains on one"
    )
    eight = {**twelve, "clients": 8}  # of three samples, two for training
    assert impossible(16, **eight) is None
    assert "client 0 trains on one" in str(impossible(16, "fedfomo", **eight))  # one is held back


def test_healthy_run_does_not_diverge() -> None:
    simulator = toy_simulator(toy_config())
    assert len(list(simulator.rounds())) == 3
    assert simulator.diverged is None


# --- scoring --------------------------------------------------------------------------------------


def test_every_client_is_scored_on_its_whole_test_set_even_if_it_did_not_join() -> None:
    config = toy_config(joining_ratio=(0.25, 0.25))
    sizes = [len(test) for test in toy_partition(config, toy_dataset()).test]
    for record in toy_run(config):
        assert len(record.joined) == 1
        assert record.total == sizes


@pytest.mark.parametrize(
    ("every", "rounds", "scored"), [(1, 3, [1, 2, 3]), (2, 5, [2, 4, 5]), (9, 4, [4])]
)
def test_rounds_are_scored_every_so_often_and_at_the_end(
    every: int, rounds: int, scored: list[int]
) -> None:
    records = toy_run(toy_config(eval_every=every, rounds=rounds))
    assert [r.round for r in records if r.correct is not None] == scored


def test_scoring_less_often_changes_no_score() -> None:
    often, seldom = (toy_run(toy_config(eval_every=every, rounds=4)) for every in (1, 2))
    assert [r.correct for r in often[1::2]] == [r.correct for r in seldom[1::2]]
    assert often[-1].loss == seldom[-1].loss


def test_scored_model_is_the_average_of_the_uploads() -> None:
    """FedAvg's round in plain torch: train copies, average by samples, count hits."""
    config = toy_config(rounds=1)
    simulator = toy_simulator(config)
    uploads: dict[int, torch.Tensor] = {}
    for index, shard in enumerate(simulator.shards):
        net = simulator.workspaces.build()
        generator = seeds.torch_generator(config.seed, "batches", 1, index)
        optimiser = torch.optim.SGD(net.parameters(), config.lr)
        for batch in shard.batches(config.batch_size, 1, generator):
            optimiser.zero_grad()
            logits = net.module("head")(net.module("extractor")(batch.x))
            F.cross_entropy(logits, batch.y).backward()
            optimiser.step()
        uploads[index] = net.vector.clone()
    samples = np.array([shard.samples for shard in simulator.shards])
    mean = sum(w * uploads[i].double() for i, w in enumerate(samples / samples.sum()))
    (record,) = simulator.rounds()
    ours = torch.cat([simulator.snapshot.server[part] for part in ("extractor", "head")])
    torch.testing.assert_close(ours.double(), mean, rtol=1e-4, atol=1e-6)
    net = simulator.workspaces.build()
    net.vector.copy_(mean)
    hits = []
    for shard in simulator.shards:
        logits = net.module("head")(net.module("extractor")(shard.pool.inputs(shard.test)))
        hits.append(int((logits.argmax(1) == shard.pool.y[shard.test]).sum()))
    assert record.correct == hits


class ScoredAfter(Algorithm):
    """Local training whose result is scored at once and then thrown away."""

    @property
    def scores_after_training(self) -> bool:
        return True


def test_scores_after_training_are_those_of_the_trained_model() -> None:
    config = toy_config(rounds=1, record=("convergence",))
    (after,) = simulator_of(ScoredAfter, config).rounds()
    assert after.accuracy == after.extras["convergence"]["after"]["accuracy"]


def test_recording_a_series_leaves_the_score_after_training() -> None:
    class Recorded(ScoredAfter):
        recordable = {"number": "the client's number"}

        def record(self, client: Client, series: str) -> int:
            return client.index

    config = toy_config(rounds=1, record=("convergence", "number"))
    (record,) = simulator_of(Recorded, config).rounds()
    assert record.extras["number"] == [0, 1, 2, 3]
    assert record.accuracy == record.extras["convergence"]["after"]["accuracy"]


def test_client_that_did_not_join_is_scored_on_what_it_receives() -> None:
    config = toy_config(rounds=1, joining_ratio=(0.25, 0.25))
    (after,) = simulator_of(ScoredAfter, config).rounds()
    (before,) = toy_run(config)
    assert after.correct is not None and before.correct is not None
    absent = [i for i in range(4) if i not in after.joined]
    assert [after.correct[i] for i in absent] == [before.correct[i] for i in absent]


# --- recorded series ------------------------------------------------------------------------------


def test_convergence_before_a_round_is_the_score_after_the_round_before() -> None:
    records = toy_run(toy_config(record=("convergence",)))
    for earlier, later in itertools.pairwise(records):
        assert later.extras["convergence"]["before"]["accuracy"] == earlier.accuracy


def test_local_learning_lowers_the_recorded_training_loss() -> None:
    for record in toy_run(toy_config(record=("convergence",))):
        series = record.extras["convergence"]
        assert series["after"]["train_loss"] < series["before"]["train_loss"]


@pytest.mark.parametrize("algo", ["fedavg", "local"])
def test_recording_changes_nothing_else(algo: str) -> None:
    plain = toy_run(toy_config(algo, joining_ratio=(0.5, 1.0)))
    recorded = toy_run(toy_config(algo, joining_ratio=(0.5, 1.0), record=("convergence",)))
    for one, other in zip(plain, recorded, strict=True):
        assert same_result(one, dataclasses.replace(other, extras={}))


def test_recording_leaves_batch_norm_statistics_alone() -> None:
    """Per-FedAvg adapts before it is scored, which moves the statistics."""
    settings: dict[str, Any] = {"model": "resnet18", "clients": 2, "rounds": 1, "batch_size": 4}
    plain, recorded = (
        toy_simulator(
            toy_config("perfedavg", setting="iid", beta=None, record=record, **settings),
            colour_dataset(),
        )
        for record in ((), ("convergence",))
    )
    list(plain.rounds()), list(recorded.rounds())
    assert all(torch.equal(plain.snapshot.stats[i], recorded.snapshot.stats[i]) for i in range(2))


# --- batch-norm statistics ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def normed() -> dict[str, tuple[Simulator, list[RoundRecord]]]:
    """Two rounds of ResNet-18 with each way to treat the statistics."""
    runs = {}
    for bn_stats in ("local", "average"):
        config = toy_config(
            model="resnet18", bn_stats=bn_stats, clients=2, rounds=2, setting="iid", beta=None
        )
        simulator = toy_simulator(config, colour_dataset())
        runs[bn_stats] = simulator, list(simulator.rounds())
    return runs


def test_local_statistics_stay_with_each_client(
    normed: dict[str, tuple[Simulator, list[RoundRecord]]],
) -> None:
    snapshot = normed["local"][0].snapshot
    assert snapshot.server_stats is None
    assert set(snapshot.stats) == {0, 1}
    assert not torch.equal(snapshot.stats[0], snapshot.stats[1])


def test_averaged_statistics_lie_at_the_server_alone(
    normed: dict[str, tuple[Simulator, list[RoundRecord]]],
) -> None:
    snapshot = normed["average"][0].snapshot
    assert snapshot.stats == {}
    assert snapshot.server_stats is not None


def test_averaged_statistics_are_counted_as_sent(
    normed: dict[str, tuple[Simulator, list[RoundRecord]]],
) -> None:
    simulator, (average, _) = normed["average"]
    _, (local, _) = normed["local"]
    statistics = 2 * simulator.workspaces.fresh_stats.numel()  # of two clients
    assert (
        simulator.workspaces.fresh_stats.numel() == 2 * 4800
    )  # mean and variance of ResNet-18's channels
    assert average.parameters_up - local.parameters_up == statistics
    assert average.bytes_down - local.bytes_down == 4 * statistics


def test_first_average_is_that_of_the_clients_own_statistics() -> None:
    """In round one both ways start alike, so the average can be taken by hand."""
    config = toy_config(model="resnet18", clients=2, rounds=1, setting="iid", beta=None)
    local, average = (
        toy_simulator(dataclasses.replace(config, bn_stats=how), colour_dataset())
        for how in ("local", "average")
    )
    list(local.rounds()), list(average.rounds())
    sizes = [shard.samples for shard in local.shards]
    by_hand = sum(n * local.snapshot.stats[i].double() for i, n in enumerate(sizes)) / sum(sizes)
    assert average.snapshot.server_stats is not None
    torch.testing.assert_close(
        average.snapshot.server_stats.double(), by_hand, rtol=1e-5, atol=1e-6
    )


def test_method_that_shares_nothing_averages_no_statistics() -> None:
    config = toy_config(
        "local", model="resnet18", clients=2, setting="iid", beta=None, bn_stats="average"
    )
    assert toy_simulator(config, colour_dataset()).snapshot.server_stats is None


@pytest.mark.parametrize("algo", ["pfedme", "ditto", "fedamp", "fedper"])
def test_statistics_of_personal_parts_stay_on_the_clients_when_others_are_averaged(
    algo: str,
) -> None:
    config = toy_config(
        algo, model="resnet18", clients=2, rounds=1, setting="iid", beta=None, bn_stats="average"
    )
    simulator = toy_simulator(config, colour_dataset())
    list(simulator.rounds())
    snapshot, whole = simulator.snapshot, simulator.workspaces.fresh_stats.numel()
    averaged = {"pfedme": 0, "ditto": 9600, "fedamp": 0, "fedper": 9600}[algo]
    found = 0 if snapshot.server_stats is None else snapshot.server_stats.numel()
    assert found == averaged
    assert "stats" not in snapshot.server
    if averaged < whole:
        own = torch.ones(whole, dtype=torch.bool)
        own[simulator.workspaces.averaged] = False
        assert not torch.equal(snapshot.stats[0][own], snapshot.stats[1][own])


def test_clients_train_even_if_the_aggregation_does_not_look_at_them() -> None:
    class Deaf(Local):
        def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
            return server.state

    def losses(kind: type[Algorithm]) -> list[float]:
        config, dataset = toy_config("local"), toy_dataset()
        partition = toy_partition(config, dataset)
        simulator = Simulator(kind, config, dataset, partition)
        simulator.prepare()
        return [record.train_loss for record in simulator.rounds()]

    assert losses(Local) == losses(Deaf)


@pytest.mark.parametrize("bn_stats", ["local", "average"])
def test_statistics_survive_a_checkpoint(
    normed: dict[str, tuple[Simulator, list[RoundRecord]]], bn_stats: str
) -> None:
    simulator, whole = normed[bn_stats]
    first = toy_simulator(simulator.config, colour_dataset())
    next(first.rounds())
    second = toy_simulator(simulator.config, colour_dataset())
    second.resume(1, {name: value.clone() for name, value in first.snapshot.tensors().items()})
    (continued,) = second.rounds()
    assert same_result(continued, whole[1])


def test_finished_run_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    toy_run(toy_config(rounds=1), workers=3)
    gc.collect()
    assert threading.active_count() == before


def test_a_test_loss_that_is_not_finite_is_diverged() -> None:
    """One batch, one round: the training loss is that of the model before its only step."""
    config = toy_config("local", rounds=1, lr=1e30, clients=2, batch_size=200)
    simulator = toy_simulator(config)
    records = list(simulator.rounds())
    assert len(records) == 1 and math.isfinite(records[0].train_loss or math.nan)
    assert "in round 1" in (simulator.diverged or "")


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"server/other": torch.zeros(3)}, "the server's state is now extractor, head"),
        (
            {"server/extractor": torch.zeros(3), "server/head": torch.zeros(3)},
            "is 3 of float32",
        ),
        ({"nonsense": torch.zeros(3)}, "it cannot be read"),
        ({"server/head/first": torch.zeros(3)}, "it cannot be read"),
        ({"client/0/seen": torch.zeros(3)}, "a client's state is now nothing"),
        ({"stats/0": torch.zeros(3)}, "batch-norm statistics"),
        ({"server_stats": torch.zeros(3)}, "the server has other batch-norm statistics"),
    ],
)
def test_state_of_another_run_is_refused(tensors: dict[str, torch.Tensor], reason: str) -> None:
    simulator = toy_simulator(toy_config("fedavg"))
    sound = simulator.snapshot.tensors()
    is_part = next(iter(tensors)).startswith(("server/other", "server/extractor"))
    with pytest.raises(DamagedError, match=reason):
        simulator.resume(1, tensors if is_part else {**sound, **tensors})
    simulator.resume(1, sound)
    assert simulator.snapshot.round == 1


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({3: torch.zeros(4), 5: torch.zeros(4)}, None),
        ({3: torch.zeros(2, 4), 5: torch.zeros(9, 4)}, None),
        ({"a": torch.zeros(4), "b": torch.zeros(2, dtype=torch.int64)}, None),
        ([torch.zeros(2, 2), torch.zeros(2)], None),
        ({3: {"n": torch.tensor(1), "x": torch.zeros(2)}, 5: {"x": torch.zeros(2)}}, None),
        ([{"n": torch.tensor(1), "x": torch.zeros(2)}] * 2, None),
        ({3: torch.zeros(4), 5: torch.zeros(3)}, "entries of several shapes"),
        ({3: torch.zeros(4), 5: torch.zeros(4, 4)}, "entries of several shapes"),
        ({3: torch.zeros(4), 5: torch.zeros(())}, "entries of several shapes"),
        ({3: torch.zeros(4), 5: [torch.zeros(4)]}, "entries of several kinds"),
        ({3: torch.zeros(4), 5: torch.zeros(4).double()}, "numbers of several types"),
        ({3: {"x": torch.zeros(2)}, 5: {"x": torch.zeros(3)}}, "entries of several shapes"),
    ],
)
def test_what_has_come_to_stand_under_numbers_is_alike(found: Any, problem: str | None) -> None:
    said = misfit(type(found)(), found, "it")
    assert said == (None if problem is None else f"it has {problem}")


def test_what_a_method_keeps_beside_the_model_may_grow() -> None:
    class Remembers(FedAvg):
        def client_state(self, start: Start) -> Message:
            return {"losses": torch.zeros(1)}

        def server_state(self, start: Start) -> ServerState:
            return {**super().server_state(start), "past": [], "rounds": torch.zeros(1)}

    config, dataset = toy_config("fedavg"), toy_dataset()
    partition = toy_partition(config, dataset)
    simulator = Simulator(Remembers, config, dataset, partition)
    simulator.prepare()
    grown = {
        **simulator.snapshot.tensors(),
        "client/1/losses": torch.zeros(5),
        "server/rounds": torch.zeros(4),
        "server/seen": torch.zeros(2),
    }
    mixed = {"server/past/0": torch.zeros(1), "server/past/1": torch.zeros(1, dtype=torch.float64)}
    with pytest.raises(DamagedError, match="past has numbers of several types"):
        simulator.resume(1, {name: grown[name] for name in grown if "past" not in name} | mixed)
    simulator.resume(1, grown)
    assert simulator.snapshot.server["past"] == []
    assert simulator.snapshot.clients[1]["losses"].numel() == 5
