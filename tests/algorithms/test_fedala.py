"""FedALA: its weights against autograd through the mixture, and FedAvg where nothing is mixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from by_hand import MODEL, finished, flat_gradient, meet, plain_model, recorded_batches
from torch import Tensor
from toy import toy_config

from pfl_bench.algorithms import fedala


def learnt(
    layers: str, monkeypatch: pytest.MonkeyPatch, **state: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[Any]]:
    """W by the algorithm and by autograd on the same batches, one epoch, from W = 0.5."""
    hyper = {"layers": layers, "weight_lr": 30.0, "share": 0.5}
    algorithm, client, received = meet("fedala", hyper)
    mixed = ("head",) if layers == "head" else MODEL
    last = {part: client.state["last"][part].clone() for part in mixed}
    client.state["weights"] = {part: torch.full_like(last[part], 0.5) for part in mixed}
    client.state["has_learnt"] = torch.tensor(True)
    drawn = recorded_batches(client, monkeypatch)
    algorithm.load(client, received)
    ours = client.memo["weights"]
    expected_model = client.net.copy(MODEL)

    weights = {part: torch.full_like(last[part], 0.5) for part in mixed}
    for batch in drawn:
        mixture = {
            part: last[part] + (received[part] - last[part]) * weights[part] for part in mixed
        }
        model = plain_model(client, {**received, **mixture}).eval()
        F.cross_entropy(model(batch.x), batch.y).backward()
        for k, part in enumerate(MODEL):
            if part in mixed:
                slope = flat_gradient(model[k]) * (received[part] - last[part])
                moved = weights[part] - 30.0 * slope
                weights[part] = moved.clamp(0, 1)
    for part in mixed:
        mixture = last[part] + (received[part] - last[part]) * ours[part]
        torch.testing.assert_close(expected_model[part], mixture)
    return ours, weights, drawn


@pytest.mark.parametrize("layers", ["head", "model"])
def test_the_weights_learn_by_the_gradient_of_the_mixture(
    layers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, expected, drawn = learnt(layers, monkeypatch)
    assert drawn
    for part, value in expected.items():
        torch.testing.assert_close(ours[part], value, rtol=1e-3, atol=1e-3)
        assert float((ours[part] - 0.5).abs().max()) > 0.01


def test_the_first_learning_takes_as_many_epochs_as_it_needs_and_later_ones_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("fedala", {"share": 1.0})
    client.state["has_learnt"] = torch.tensor(False)
    drawn = recorded_batches(client, monkeypatch)
    an_epoch = client.samples // 8
    algorithm.load(client, received)
    assert fedala.WINDOW < len(drawn) / an_epoch <= fedala.MOST_EPOCHS
    client.state["has_learnt"] = torch.tensor(True)
    drawn.clear()
    algorithm.load(client, received)
    assert len(drawn) == an_epoch


def test_weights_that_never_settle_stop_learning_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("fedala")
    client.state["has_learnt"] = torch.tensor(False)
    monkeypatch.setattr(fedala, "STEADY", 0.0)
    drawn = recorded_batches(client, monkeypatch)
    algorithm.load(client, received)
    an_epoch = round(0.8 * client.samples) // 8
    assert len(drawn) == an_epoch * fedala.MOST_EPOCHS


def test_scoring_keeps_no_weights() -> None:
    algorithm, client, received = meet("fedala")
    before = {part: value.clone() for part, value in client.state["weights"].items()}
    algorithm.scored(client, received)
    assert all(torch.equal(client.state["weights"][part], before[part]) for part in before)


def test_with_a_rate_of_0_it_is_fedavg() -> None:
    (_, ours), (_, fedavg) = (
        finished(toy_config("fedala", {"weight_lr": 0})),
        finished(toy_config("fedavg")),
    )
    for a, b in zip(ours, fedavg, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-4)


def test_the_first_round_is_fedavg_and_later_ones_are_not() -> None:
    (_, ours), (_, fedavg) = finished(toy_config("fedala")), finished(toy_config("fedavg"))
    assert ours[0].train_loss == fedavg[0].train_loss
    assert ours[1].train_loss != fedavg[1].train_loss


def test_the_whole_model_travels_and_no_weight() -> None:
    simulator, records = finished(toy_config("fedala"))
    model = simulator.task.build_model().size
    assert {(r.parameters_up, r.parameters_down) for r in records} == {(4 * model, 4 * model)}
    assert simulator.snapshot.clients[0]["last"].keys() == {"head"}
