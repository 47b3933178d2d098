"""The yardsticks compute what pfl-bench computes, so that their times can be compared."""

from __future__ import annotations

import pytest
import torch

from benchmarks import blocks
from benchmarks.bare import BareLoop
from benchmarks.naive import NaiveSimulator
from benchmarks.rounds import measure_device
from benchmarks.server import Server, plain_mixture
from benchmarks.workloads import CIFAR, TEXT, Workload

SMALL = [Workload(algo, CIFAR, 240, clients=3) for algo in ("fedavg", "fedcp", "fedrep", "ditto")]
SMALL += [Workload("fedavg", TEXT, 240, clients=3)]


@pytest.mark.parametrize("workload", SMALL, ids=lambda workload: workload.name)
def test_the_naive_simulator_trains_the_same_model(workload: Workload) -> None:
    ours = workload.simulator(workers=1)
    naive = NaiveSimulator(ours)
    rounds = ours.rounds()
    for _ in range(2):
        assert naive.run_round() == pytest.approx(next(rounds).accuracy)
    with ours.client(0, 3) as client:
        ours.algorithm.load(client, ours.download(0))
        module = client.net.module("extractor")
        for mine, theirs in zip(
            module.parameters(), naive.model.extractor.parameters(), strict=True
        ):
            torch.testing.assert_close(mine.data, theirs.data, rtol=1e-3, atol=2e-6)


def test_the_bare_loop_takes_as_many_steps_as_a_round_of_ours() -> None:
    ours = SMALL[0].simulator(workers=2)
    loop = BareLoop(ours)
    batches = sum(len(batches) for _, batches, _ in loop.work)
    assert batches == sum(shard.samples // 10 for shard in ours.shards)
    loop.run_round()


def test_the_plain_loop_over_pairs_mixes_as_our_server_does() -> None:
    server = Server("fedamp", clients=4)
    mixtures = server.work()["mixtures"]
    for i in range(4):
        torch.testing.assert_close(mixtures[i], plain_mixture(server, i), rtol=1e-5, atol=1e-6)


def test_a_device_is_measured_beside_the_cores() -> None:
    row = measure_device(SMALL[0], "cpu", workers=1, repeats=1)
    assert row.difference == 0 and row.seconds > 0


def test_a_block_dispatches_a_tenth_of_the_kernels_of_its_clients_one_by_one() -> None:
    alone, together = blocks.kernels(1), blocks.kernels(blocks.SIZE)
    assert together.step <= 3 < alone.step / 8
