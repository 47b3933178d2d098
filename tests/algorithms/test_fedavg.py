"""FedAvg against plain SGD, against a weighted mean written out, and what it scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from by_hand import MODEL, assert_holds, correct_predictions, finished, plain_model
from toy import toy_client, toy_config, toy_dataset, toy_partition, toy_simulator

from pfl_bench.base import seeds
from pfl_bench.base.errors import UserError
from pfl_bench.engine.client import Client, Message


def test_one_client_with_full_participation_is_plain_sgd() -> None:
    config = toy_config(clients=1, setting="iid", beta=None, rounds=3, local_epochs=2)
    dataset = toy_dataset()
    simulator = toy_simulator(config, dataset)
    client, _ = toy_client(simulator.algorithm)
    model = plain_model(client, simulator.snapshot.server)
    for _ in simulator.rounds():
        pass

    rows = toy_partition(config, dataset).train[0]
    x = torch.from_numpy((dataset.x[rows].astype(np.float32) / 255 - 0.5) / 0.5).permute(0, 3, 1, 2)
    y = torch.from_numpy(dataset.y[rows])
    optimiser = torch.optim.SGD(model.parameters(), lr=config.lr)
    for round in range(1, config.rounds + 1):
        generator = seeds.torch_generator(config.seed, "batches", round, 0)
        for _ in range(config.local_epochs):
            order = torch.randperm(len(rows), generator=generator)
            for batch in order.split(config.batch_size):
                if len(batch) == config.batch_size:
                    optimiser.zero_grad()
                    F.cross_entropy(model(x[batch]), y[batch]).backward()
                    optimiser.step()

    assert_holds(client, simulator.snapshot.server, model)


def test_the_average_weighs_joined_clients_by_their_training_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulator = toy_simulator(toy_config(rounds=1, joining_ratio=(0.75, 0.75)))

    def sends_its_number(client: Client, received: Message) -> Message:
        client.report(torch.zeros(()))
        return {part: torch.full_like(value, client.index + 1) for part, value in received.items()}

    monkeypatch.setattr(simulator.algorithm, "local_update", sends_its_number)
    (record,) = simulator.rounds()

    sizes = {i: len(simulator.shards[i].train) for i in record.joined}
    expected = sum((i + 1) * n for i, n in sizes.items()) / sum(sizes.values())
    assert len(set(sizes.values())) > 1, "equal sizes would not tell a weighted mean from a plain"
    for part in MODEL:
        value = simulator.snapshot.server[part]
        torch.testing.assert_close(value, torch.full_like(value, expected))


def test_the_averaged_model_is_scored_on_every_client_joined_or_not() -> None:
    simulator, records = finished(toy_config(rounds=2, joining_ratio=(0.5, 0.5)))
    assert len(records[-1].joined) < simulator.task.clients
    assert records[-1].correct == [
        correct_predictions(simulator, i, simulator.snapshot.server)
        for i in range(simulator.task.clients)
    ]


def test_the_whole_model_travels_both_ways() -> None:
    simulator, (record,) = finished(toy_config(rounds=1))
    client, _ = toy_client(simulator.algorithm)
    parameters = sum(p.numel() for part in MODEL for p in client.net.module(part).parameters())
    assert record.parameters_up == record.parameters_down == parameters * len(record.joined)


def test_a_hyper_parameter_is_refused() -> None:
    with pytest.raises(UserError, match="hyper-parameter of fedavg 'mu'"):
        toy_config("fedavg", {"mu": 0.1})
