"""Local against plain SGD on each client, and against FedAvg where there is one client."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import (
    assert_holds,
    correct_predictions,
    finished,
    meet,
    plain_model,
    recorded_batches,
    sgd,
)
from toy import toy_config, toy_simulator


def test_a_round_is_plain_sgd_from_the_kept_model(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, client, received = meet("local")
    model = plain_model(client, dict(client.state))
    drawn = recorded_batches(client, monkeypatch)
    assert algorithm.local_update(client, received) == {}
    sgd(model, drawn, client.lr)
    assert_holds(client, dict(client.state), model)


def test_nothing_is_sent() -> None:
    simulator, records = finished(toy_config("local"))
    assert all(r.bytes_up == r.bytes_down == 0 for r in records)
    assert simulator.snapshot.server == {}


def test_one_client_alone_is_fedavg_bit_for_bit() -> None:
    settings: dict[str, Any] = {"clients": 1, "setting": "iid", "beta": None}
    _, alone = finished(toy_config("local", **settings))
    _, averaged = finished(toy_config("fedavg", **settings))
    assert [r.loss for r in alone] == [r.loss for r in averaged]
    assert [r.train_loss for r in alone] == [r.train_loss for r in averaged]


def test_a_client_that_does_not_join_keeps_its_model() -> None:
    simulator = toy_simulator(toy_config("local", rounds=6, joining_ratio=(0.5, 0.5)))
    before = dict(simulator.snapshot.clients)
    stayed_away = 0
    for record in simulator.rounds():
        after = dict(simulator.snapshot.clients)
        for index in before.keys() - set(record.joined):
            stayed_away += 1
            assert all(torch.equal(before[index][p], after[index][p]) for p in before[index])
        before = after
    assert stayed_away


def test_each_client_is_scored_with_its_own_model() -> None:
    simulator, records = finished(toy_config("local"))
    assert records[-1].correct == [
        correct_predictions(simulator, i, simulator.snapshot.clients[i])
        for i in range(simulator.task.clients)
    ]
