"""FedBN: what is averaged and what stays, and that without batch norm it is FedAvg."""

from __future__ import annotations

import torch
from by_hand import finished
from torch import nn
from toy import colour_dataset, toy_algorithm, toy_config, toy_simulator

from pfl_bench.engine.client import Client, Message
from pfl_bench.models.backbones import seeded

NORMED = {"model": "resnet18", "clients": 2, "setting": "iid", "beta": None, "batch_size": 4}


def test_on_a_model_without_batch_norm_it_is_fedavg() -> None:
    (_, ours), (_, fedavg) = finished(toy_config("fedbn")), finished(toy_config("fedavg"))
    assert [r.loss for r in ours] == [r.loss for r in fedavg]
    assert [r.bytes_up for r in ours] == [r.bytes_up for r in fedavg]


def test_everything_but_batch_norm_is_averaged() -> None:
    """Parameters named one by one after a round: those of norm layers are each client's own."""
    config = toy_config("fedbn", rounds=1, **NORMED)
    simulator = toy_simulator(config, colour_dataset())
    trained: dict[int, dict[str, torch.Tensor]] = {}
    update = simulator.algorithm.local_update

    def spying(client: Client, received: Message) -> Message:
        sent = update(client, received)
        trained[client.index] = named(client)
        return sent

    simulator.algorithm.local_update = spying  # type: ignore[method-assign]
    rounds = simulator.rounds()
    record = next(rounds)
    weights = [n / sum(simulator.task.train_sizes) for n in simulator.task.train_sizes]
    for index in range(2):
        with simulator.client(index, 1) as client:
            simulator.algorithm.scored(client, simulator.download(index))
            held = named(client)
            norms = norm_names(client)
        for name, value in held.items():
            mean = sum(w * trained[i][name] for i, w in enumerate(weights))
            expected = trained[index][name] if name in norms else mean
            torch.testing.assert_close(value, expected)
    kept = sum(held[name].numel() for name in norms)
    assert kept == 9_600 and not torch.equal(*(trained[i][min(norms)] for i in range(2)))
    assert record.parameters_up == 2 * (simulator.task.build_model().size - kept)


def named(client: Client) -> dict[str, torch.Tensor]:
    parts = ((part, client.net.module(part)) for part in ("extractor", "head"))
    return {
        f"{part}.{name}": value.detach().clone()
        for part, module in parts
        for name, value in module.named_parameters()
    }


def norm_names(client: Client) -> set[str]:
    layers = client.net.module("extractor").named_modules()
    return {
        f"extractor.{name}.{kind}"
        for name, layer in layers
        if isinstance(layer, nn.BatchNorm2d)
        for kind in ("weight", "bias")
    }


def test_averaged_statistics_contradict_it() -> None:
    simulator = toy_simulator(toy_config("fedbn", bn_stats="average", **NORMED), colour_dataset())
    assert simulator.impossible == "FedBN keeps batch-norm statistics on the clients"


def test_the_start_is_that_of_every_method() -> None:
    """Where parameters lie in the vector does not change what they are."""
    ours, fedavg = (
        seeded(0, lambda a=a: a.parts(a.task.build_model()))
        for a in (toy_algorithm(toy_config(name)) for name in ("fedbn", "fedavg"))
    )
    for part in ("extractor", "head"):
        for a, b in zip(ours[part].parameters(), fedavg[part].parameters(), strict=True):
            assert torch.equal(a, b)
