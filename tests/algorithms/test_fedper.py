"""FedPer against SGD on the whole model, and what it shares, keeps and scores."""

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
from toy import toy_config

from pfl_bench.base.errors import UserError


def test_a_round_is_sgd_on_the_received_extractor_and_the_own_head_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("fedper", local_epochs=2)
    model = plain_model(client, {**received, **client.state})
    drawn = recorded_batches(client, monkeypatch)
    upload = algorithm.local_update(client, received)
    sgd(model, drawn, client.lr)
    assert_holds(client, {**upload, **client.state}, model)


def test_one_client_alone_is_fedavg_bit_for_bit() -> None:
    settings: dict[str, Any] = {"clients": 1, "setting": "iid", "beta": None}
    _, ours = finished(toy_config("fedper", **settings))
    _, theirs = finished(toy_config("fedavg", **settings))
    assert [r.loss for r in ours] == [r.loss for r in theirs]
    assert [r.train_loss for r in ours] == [r.train_loss for r in theirs]


def test_the_first_round_s_extractor_is_fedavg_s_bit_for_bit() -> None:
    """All heads begin alike, so the methods part only when the heads are averaged."""
    ours, _ = finished(toy_config("fedper", rounds=1))
    theirs, _ = finished(toy_config("fedavg", rounds=1))
    extractor = theirs.snapshot.server["extractor"]
    assert torch.equal(ours.snapshot.server["extractor"], extractor)


def test_the_extractor_alone_travels() -> None:
    algorithm, client, received = meet("fedper")
    assert list(received) == list(algorithm.local_update(client, received)) == ["extractor"]


def test_the_heads_of_the_clients_part() -> None:
    simulator, _ = finished(toy_config("fedper"))
    heads = [kept["head"] for kept in simulator.snapshot.clients.values()]
    assert len(heads) == simulator.task.clients
    assert not any(torch.equal(heads[0], head) for head in heads[1:])


def test_a_client_is_scored_with_the_new_extractor_and_its_own_head_joined_or_not() -> None:
    simulator, records = finished(toy_config("fedper", rounds=3, joining_ratio=(0.5, 0.5)))
    correct = records[-1].correct
    assert correct is not None
    assert simulator.snapshot.clients.keys() - set(records[-1].joined)
    for index, kept in simulator.snapshot.clients.items():
        model = {"extractor": simulator.snapshot.server["extractor"], "head": kept["head"]}
        assert correct[index] == correct_predictions(simulator, index, model)


def test_a_hyper_parameter_is_refused() -> None:
    with pytest.raises(UserError, match="hyper-parameter of fedper 'head_epochs'"):
        toy_config("fedper", {"head_epochs": 2})
