"""Clients in blocks: the same training as one by one, and what is found out where it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from toy import toy_config, toy_dataset, toy_simulator, toy_text

from pfl_bench.config.run_config import RunConfig
from pfl_bench.engine.algorithm import Algorithm
from pfl_bench.engine.batches import Batch
from pfl_bench.engine.blocks.forming import windows
from pfl_bench.engine.client import Client, Message
from pfl_bench.engine.simulator import Interrupted, Simulator

COLOUR = toy_dataset()
COLOUR = replace(COLOUR, x=COLOUR.x.repeat(3, axis=3))


def both(config: RunConfig, dataset: Any = None, size: int = 3) -> tuple[Simulator, Simulator]:
    """The same run one by one and in blocks, both at their end."""
    pair = tuple(toy_simulator(replace(config, block_size=s), dataset) for s in (1, size))
    for simulator in pair:
        for record in simulator.rounds():
            assert record.train_loss is not None
    return pair


def assert_close(alone: Simulator, together: Simulator) -> None:
    left, right = alone.snapshot.tensors(), together.snapshot.tensors()
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(right[name], value, rtol=2e-3, atol=2e-4)


def assert_trained_as_one(config: RunConfig, dataset: Any = None) -> None:
    alone, together = both(config, dataset)
    assert_close(alone, together)
    assert together.found_one_by_one == {}


RAGGED = {"clients": 5, "beta": 0.1, "rounds": 2, "joining_ratio": (0.6, 1.0)}


@pytest.mark.parametrize("algo", ["fedavg", "fedbn", "fedcp", "fedphp", "fedrep"])
@pytest.mark.parametrize("bn_stats", ["local", "average"])
def test_batch_norm_in_blocks(algo: str, bn_stats: str) -> None:
    if algo == "fedbn" and bn_stats == "average":
        pytest.skip("FedBN keeps its statistics")
    config = toy_config(algo, model="resnet_small", bn_stats=bn_stats, lr=0.01, **RAGGED)
    assert_trained_as_one(config, COLOUR)


@pytest.mark.parametrize(
    "hyper",
    [
        {"cs": False}, {"ss": False}, {"cs": False, "ss": False}, {"gfm": False}, {"lambda": 0.0},
        {"cpn": False}, {"cpn": False, "gh": False}, {"layers": 2}, {"norm": "batch"},
        {"norm": "group"}, {"activation": "tanh"}, {"activation": "sigmoid"}, {"score": "after"},
    ],
    ids=str,
)  # fmt: skip
def test_every_variant_of_fedcp_in_blocks(hyper: dict[str, Any]) -> None:
    assert_trained_as_one(toy_config("fedcp", hyper, model="cnn_small", **RAGGED))


def test_gumbel_noise_is_found_out_and_drawn_as_if_there_were_no_blocks() -> None:
    alone, together = both(toy_config("fedcp", {"gumbel": True}, model="cnn_small", **RAGGED))
    assert together.found_one_by_one == {"its loss draws random numbers": None}
    for name, value in alone.snapshot.tensors().items():
        assert torch.equal(together.snapshot.tensors()[name], value), name


@pytest.mark.parametrize("algo", ["fedavg", "fedrep", "ditto", "fedcp", "fedrod", "gpfl"])
def test_texts_of_any_length_in_blocks(algo: str) -> None:
    assert_trained_as_one(toy_config(algo, model="fasttext", **RAGGED), toy_text())


def test_the_vector_of_the_padding_stays_as_it_is_in_every_network() -> None:
    _, together = both(toy_config("local", model="fasttext", clients=3), toy_text())
    fresh = together.workspaces.start().parts["extractor"][:32]
    for state in together.snapshot.clients.values():
        assert torch.equal(state["extractor"][:32], fresh)


@pytest.mark.parametrize("algo", ["fedavg", "fedprox", "ditto", "scaffold"])
def test_momentum_and_weight_decay_in_blocks(algo: str) -> None:
    config = toy_config(algo, model="cnn_small", momentum=0.9, weight_decay=0.01, **RAGGED)
    assert_trained_as_one(config)


def test_several_epochs_and_clients_below_one_batch() -> None:
    """A client with fewer samples than a batch has smaller batches and is trained apart."""
    config = toy_config("fedper", local_epochs=3, **{**RAGGED, "clients": 8, "batch_size": 20})
    assert_trained_as_one(config)


def test_a_block_larger_than_the_round_is_the_round() -> None:
    alone, together = both(toy_config("fedavg", **RAGGED), size=50)
    assert_close(alone, together)


# --- who is together ------------------------------------------------------------------------------


def test_blocks_hold_everybody_once_and_the_largest_first() -> None:
    sizes = [5, 9, 9, 1, 7, 3, 8]
    formed = list(windows([0, 1, 2, 3, 4, 6], 2, sizes.__getitem__, least=4))
    assert formed == [[[1, 2], [0, 3]], [[6, 4]]]


def test_windows_bound_how_many_uploads_wait() -> None:
    found = list(windows(range(1000), 20, lambda i: i * 37 % 101, least=32))
    for number, window in enumerate(found):
        assert {i // 40 for block in window for i in block} == {number}


# --- what is found out ----------------------------------------------------------------------------


class Rogue(Algorithm):
    title, summary, citation = "Rogue", "A loss that cannot be computed for many.", "none"


class Counting(Rogue):
    def loss(self, client: Client, batch: Batch) -> Tensor:
        client.memo["step"] = client.memo.get("step", 0) + 1
        return super().loss(client, batch) / client.memo["step"]


class Looking(Rogue):
    def loss(self, client: Client, batch: Batch) -> Tensor:
        loss = super().loss(client, batch)
        return loss if loss.item() > 1 else 2 * loss


class Apart(Rogue):
    """Does something else on odd clients."""

    def loss(self, client: Client, batch: Batch) -> Tensor:
        return super().loss(client, batch) * (1 + client.index % 2)


class Remembering(Rogue):
    def loss(self, client: Client, batch: Batch) -> Tensor:
        loss = super().loss(client, batch)
        client.memo["last"] = loss.detach()
        return loss


class Changing(Rogue):
    """Changes a tensor that it was given."""

    def train(self, client: Client, received: Message) -> None:
        client.memo["sum"] = torch.zeros(())
        super().train(client, received)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        loss = super().loss(client, batch)
        client.memo["sum"].add_(loss.detach())
        return loss + client.memo["sum"]


class Generating(Rogue):
    """Its batches are made while it trains."""

    def train(self, client: Client, received: Message) -> None:
        def batches() -> Iterator[Batch]:
            for batch in client.batches():
                if float(client.net.vector.norm()) > 0:
                    yield batch

        client.train(lambda batch: self.loss(client, batch), batches=batches())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Counting, "step"),
        (Looking, "reads the values"),
        (Apart, "another way"),
        (Remembering, "step"),
        (Changing, "in place"),
        (Generating, None),
    ],
)
def test_what_cannot_be_done_for_many_is_done_one_by_one_to_the_bit(
    kind: type[Algorithm], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfl_bench.plugins.testing.load_algorithm", lambda name: kind)
    alone, together = both(toy_config(clients=4, rounds=2))
    for name, value in alone.snapshot.tensors().items():
        assert torch.equal(together.snapshot.tensors()[name], value), name
    if reason is not None:
        (found,) = together.found_one_by_one
        assert reason in found


class Captured(Rogue):
    """Names tensors of its own in many ways: all of them must be each client's."""

    def train(self, client: Client, received: Message) -> None:
        head = client.net.module("head").weight
        still = client.net["head"].clone()
        scale = torch.tensor(1.0 + client.index)
        table = torch.arange(float(client.samples)) / 10 + client.index

        def loss(batch: Batch) -> Tensor:
            tie = (client.net["head"] - still).square().sum() + head.square().sum()
            return scale * self.loss(client, batch) + 0.01 * tie + table[batch.index].mean() * tie

        client.train(loss)


def test_whatever_a_loss_takes_from_outside_is_each_clients_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pfl_bench.plugins.testing.load_algorithm", lambda name: Captured)
    assert_trained_as_one(toy_config(clients=4, rounds=2, lr=0.01))


# --- failures -------------------------------------------------------------------------------------


class Failing(Rogue):
    def upload(self, client: Client) -> Message:
        if client.index == 1:
            raise RuntimeError("no upload")
        return super().upload(client)


def test_an_error_of_one_client_ends_the_block_with_that_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pfl_bench.plugins.testing.load_algorithm", lambda name: Failing)
    simulator = toy_simulator(toy_config(clients=4, block_size=3))
    with pytest.raises(RuntimeError, match="no upload"):
        list(simulator.rounds())


def test_a_run_that_is_told_to_stop_stops_within_a_block() -> None:
    simulator = toy_simulator(toy_config(clients=4, block_size=4))
    simulator.cancelled.set()
    with pytest.raises(Interrupted):
        list(simulator.rounds())
