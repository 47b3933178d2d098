"""APFL against autograd through the mixture, and what it degenerates to."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from by_hand import MODEL, PERSONAL_MODEL, finished, meet, plain_model, recorded_batches
from torch import Tensor, nn
from torch.func import functional_call
from toy import toy_config


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_a_round_is_that_of_autograd_through_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """∂f(w)/∂w, ∂f(αv + (1 − α)w)/∂v and, at the first step, /∂α, all by autograd at the models
    before the step."""
    algorithm, client, received = meet("apfl")
    client.state["alpha"] = torch.tensor(0.3)
    model = plain_model(client, received)
    w = parameters(model)
    v = parameters(
        plain_model(client, {p: client.state[p] for p in PERSONAL_MODEL}, PERSONAL_MODEL)
    )
    batches = recorded_batches(client, monkeypatch)
    sent = algorithm.local_update(client, received)

    alpha, lr = torch.tensor(0.3), client.lr
    for number, batch in enumerate(batches):
        for values in (w, v):
            for value in values.values():
                value.requires_grad_()
        alpha.requires_grad_()
        loss = F.cross_entropy(functional_call(model, w, (batch.x,)), batch.y)
        global_gradients = torch.autograd.grad(loss, list(w.values()))
        mixed = {n: alpha * v[n] + (1 - alpha) * w[n].detach() for n in w}
        loss = F.cross_entropy(functional_call(model, mixed, (batch.x,)), batch.y)
        *gradients, slope = torch.autograd.grad(loss, [*v.values(), alpha])
        w, v = (
            {n: (p - lr * g).detach() for (n, p), g in zip(values.items(), slopes, strict=True)}
            for values, slopes in ((w, global_gradients), (v, gradients))
        )
        alpha = (alpha - lr * slope if number == 0 else alpha).detach()

    assert 0 < float(alpha) < 1 and float(alpha) != 0.3
    assert float(client.state["alpha"]) == pytest.approx(float(alpha), abs=1e-4)
    ours_w = parameters(plain_model(client, sent))
    kept = {p: client.state[p] for p in PERSONAL_MODEL}
    ours_v = parameters(plain_model(client, kept, PERSONAL_MODEL))
    for name in w:
        torch.testing.assert_close(ours_w[name], w[name], rtol=1e-3, atol=3e-5)
        torch.testing.assert_close(ours_v[name], v[name], rtol=1e-3, atol=3e-5)


def test_the_mixture_is_scored() -> None:
    algorithm, client, received = meet("apfl")
    client.state["alpha"] = torch.tensor(0.25)
    algorithm.scored(client, received)
    for part, personal in zip(MODEL, PERSONAL_MODEL, strict=True):
        expected = 0.25 * client.state[personal] + 0.75 * received[part]
        torch.testing.assert_close(client.net[personal], expected)


def test_the_weight_stays_between_0_and_1() -> None:
    algorithm, client, received = meet("apfl", lr=5.0, batch_size=200)
    for value in (0.0, 1.0):
        client.state["alpha"] = torch.tensor(value)
        algorithm.local_update(client, received)
        assert 0 <= float(client.state["alpha"]) <= 1


def test_the_global_model_is_that_of_fedavg() -> None:
    (ours, _), (fedavg, _) = finished(toy_config("apfl")), finished(toy_config("fedavg"))
    for part in MODEL:
        assert torch.equal(ours.snapshot.server[part], fedavg.snapshot.server[part])


def test_only_the_global_model_travels() -> None:
    simulator, records = finished(toy_config("apfl", rounds=1))
    model = simulator.task.build_model().size
    assert records[0].parameters_up == records[0].parameters_down == 4 * model
