"""GPFL: conditions, loss and steps against the equations in plain torch."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from by_hand import finished, meet, recorded_batches
from torch import Tensor
from toy import toy_config

from pfl_bench.engine.client import Client, Message

PARTS = ("extractor", "head", "valve", "embeddings")


def conditions(client: Client, embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Means of the embeddings: of all classes alike, and by the client's samples one by one."""
    labels = client.shard.pool.y[client.shard.train].tolist()
    personal = sum(embeddings[label] for label in labels) / len(labels)
    return embeddings.mean(0), personal


def valve(module: torch.nn.Module, h: Tensor, condition: Tensor) -> Tensor:
    """relu((1 + γ)h + β), with γ and β from two layers each, written out."""
    values = []
    for branch in (module.gamma, module.beta):
        linear, _, norm = branch
        a = torch.relu(linear.weight @ condition + linear.bias)
        a = (a - a.mean()) / torch.sqrt(a.var(unbiased=False) + norm.eps)
        values.append(a * norm.weight + norm.bias)
    gamma, beta = values
    return torch.relu((1 + gamma) * h + beta)


def naive_loss(
    modules: dict[str, torch.nn.Module], first: Tensor, client: Client, x: Tensor, y: Tensor
) -> Tensor:
    generic_condition, personal_condition = conditions(client, first)
    h = modules["extractor"](x)
    total = h.new_zeros(())
    for row, label in zip(h, y.tolist(), strict=True):
        generic = valve(modules["valve"], row, generic_condition)
        angles = F.cosine_similarity(generic[None], modules["embeddings"].weight)
        angle = torch.logsumexp(angles, 0) - angles[label]
        length = torch.sqrt(((generic - first[label]) ** 2).sum())
        logits = modules["head"](valve(modules["valve"], row, personal_condition))
        total = total + torch.logsumexp(logits, 0) - logits[label] + angle + 0.01 * length
    return total / len(y)


def modules_of(client: Client, received: Message) -> dict[str, torch.nn.Module]:
    client.net.load({**received, "head": client.state["head"]})
    return {part: copy.deepcopy(client.net.module(part)) for part in PARTS}


def test_the_loss_is_the_sum_over_samples_written_out() -> None:
    algorithm, client, received = meet("gpfl")
    modules = modules_of(client, received)
    algorithm.load(client, received)
    batch = next(client.batches())
    expected = naive_loss(
        modules, modules["embeddings"].weight.detach().clone(), client, batch.x, batch.y
    )
    torch.testing.assert_close(algorithm.loss(client, batch), expected, rtol=1e-4, atol=1e-5)


def test_a_round_is_torchs_sgd_with_weight_decay_on_valve_and_embeddings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("gpfl")
    modules = modules_of(client, received)
    first = modules["embeddings"].weight.detach().clone()
    batches = recorded_batches(client, monkeypatch)
    sent = algorithm.local_update(client, received)
    groups = [
        {"params": [*modules[part].parameters()], "weight_decay": decay}
        for part, decay in (("extractor", 0), ("head", 0), ("valve", 0.1), ("embeddings", 0.1))
    ]
    optimiser = torch.optim.SGD(groups, lr=client.lr)
    for batch in batches:
        optimiser.zero_grad()
        naive_loss(modules, first, client, batch.x, batch.y).backward()
        optimiser.step()
    client.net.load({**sent, "head": client.state["head"]})
    for part, module in modules.items():
        pairs = zip(client.net.module(part).parameters(), module.parameters(), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-3, atol=1e-4)


def test_the_personal_condition_predicts() -> None:
    algorithm, client, received = meet("gpfl")
    modules = modules_of(client, received)
    algorithm.scored(client, received)
    batch = next(client.batches())
    _, condition = conditions(client, modules["embeddings"].weight.detach())
    h = modules["extractor"](batch.x)
    rows = [modules["head"](valve(modules["valve"], row, condition)) for row in h]
    torch.testing.assert_close(
        algorithm.predict(client, batch.x), torch.stack(rows), rtol=1e-4, atol=1e-4
    )


def test_everything_but_the_head_travels() -> None:
    simulator, records = finished(toy_config("gpfl", rounds=1))
    model = simulator.task.build_model()
    k, classes = model.features, 4
    valve_size = 2 * (k * k + k + 2 * k)
    head = k * classes + classes
    each = model.size - head + valve_size + classes * k
    assert records[0].parameters_up == records[0].parameters_down == 4 * each
