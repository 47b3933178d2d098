"""FedProx against its closed form on a quadratic, against autograd, and against FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import (
    assert_holds,
    assert_vectors,
    correct_predictions,
    finished,
    meet,
    plain_model,
    proximal_descent,
    proximal_term,
    quadratic,
    recorded_batches,
    sgd,
)
from toy import toy_config

from pfl_bench.base.errors import UserError
from pfl_bench.store.records import same_result


@pytest.mark.parametrize("mu", [0.001, 1.0, 8.0])
def test_local_training_on_a_quadratic_follows_the_closed_form(
    monkeypatch: pytest.MonkeyPatch, mu: float
) -> None:
    algorithm, client, w = meet("fedprox", {"mu": mu})
    drawn = recorded_batches(client, monkeypatch)
    monkeypatch.setattr(algorithm, "loss", quadratic(client, lambda batch: 0.5))
    upload = algorithm.local_update(client, w)
    steps = len(drawn)
    assert steps > 1, "the proximal term vanishes in the first step"
    assert_vectors(
        upload, {part: proximal_descent(v, v, 0.5, mu, client.lr, steps) for part, v in w.items()}
    )


def test_the_step_is_the_gradient_of_the_loss_with_its_proximal_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("fedprox", {"mu": 2.0}, local_epochs=2)
    model, anchor = plain_model(client, received), plain_model(client, received)
    drawn = recorded_batches(client, monkeypatch)
    upload = algorithm.local_update(client, received)
    sgd(model, drawn, client.lr, extra_loss=proximal_term(model, anchor, 2.0))
    assert_holds(client, upload, model)


def test_without_the_proximal_term_it_is_fedavg_bit_for_bit() -> None:
    ours, records = finished(toy_config("fedprox", {"mu": 0}, joining_ratio=(0.5, 1.0)))
    theirs, expected = finished(toy_config("fedavg", joining_ratio=(0.5, 1.0)))
    assert all(map(same_result, records, expected))
    for part, value in theirs.snapshot.server.items():
        assert torch.equal(ours.snapshot.server[part], value)


def test_the_default_is_not_fedavg() -> None:
    ours, _ = finished(toy_config("fedprox", rounds=1))
    theirs, _ = finished(toy_config("fedavg", rounds=1))
    assert not torch.equal(ours.snapshot.server["head"], theirs.snapshot.server["head"])


def test_the_global_model_is_scored() -> None:
    simulator, records = finished(toy_config("fedprox"))
    assert records[-1].correct == [
        correct_predictions(simulator, i, simulator.snapshot.server)
        for i in range(simulator.task.clients)
    ]


@pytest.mark.parametrize("value", [-0.1, "nan", "inf", "much", True])
def test_a_mu_that_is_no_weight_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match="mu="):
        toy_config("fedprox", {"mu": value})
