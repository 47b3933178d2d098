"""FedDBE: the consensus, the loss and what stays, against plain torch."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from by_hand import MODEL, finished, meet, recorded_batches, sgd
from torch import nn
from toy import toy_algorithm, toy_client, toy_config, toy_server, toy_simulator

from pfl_bench.algorithms.feddbe import FedDBE
from pfl_bench.config.hyper import resolve
from pfl_bench.engine.client import Client
from pfl_bench.models.backbones import MODELS, Inputs, build_model


def modules_of(client: Client) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    extractor, head = (copy.deepcopy(client.net.module(part)) for part in MODEL)
    return extractor, head, client.net["memory"].clone()


def test_the_consensus_is_the_mean_feature_of_all_samples_after_one_local_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulator = toy_simulator(toy_config("feddbe", rounds=1, joining_ratio=(0.5, 0.5)))
    next(simulator.rounds())
    total, samples = torch.zeros(()), 0
    for index in range(4):
        client, start = toy_client(simulator.algorithm, index=index, round=0)
        client.net.load(start.parts)
        model = nn.Sequential(*(copy.deepcopy(client.net.module(part)) for part in MODEL))
        sgd(model, client.batches(), client.lr)
        pool, rows = client.shard.pool, client.shard.train
        with torch.no_grad():
            total = total + model[0](pool.inputs(rows)).sum(0)
        samples += len(rows)
    consensus = simulator.snapshot.server["consensus"]
    torch.testing.assert_close(consensus, total / samples, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("momentum", [1.0, 0.3])
def test_a_round_is_torchs_sgd_on_the_loss_written_out(
    momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, client, received = meet("feddbe", {"kappa": 5.0, "momentum": momentum})
    consensus = torch.linspace(-1, 1, client.net["memory"].numel())
    client.net.load({**received, "memory": client.state["memory"]})
    extractor, head, memory = modules_of(client)
    memory.requires_grad_()
    batches = recorded_batches(client, monkeypatch)
    sent = algorithm.local_update(client, {**received, "consensus": consensus})

    optimiser = torch.optim.SGD([*extractor.parameters(), *head.parameters(), memory], client.lr)
    running = None
    for batch in batches:
        h = extractor(batch.x)
        mean = h.mean(0)
        if running is not None:
            mean = (1 - momentum) * running + momentum * mean
        running = mean.detach()
        tie = (0.5 * (mean - consensus) ** 2).mean()
        loss = F.cross_entropy(head(h + memory), batch.y) + 5 * tie
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    torch.testing.assert_close(client.state["memory"], memory.detach(), rtol=1e-3, atol=3e-5)
    client.net.load(sent)
    for part, module in zip(MODEL, (extractor, head), strict=True):
        pairs = zip(client.net.module(part).parameters(), module.parameters(), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-3, atol=1e-4)


def test_the_memory_is_added_to_what_the_head_reads() -> None:
    algorithm, client, received = meet("feddbe")
    received = {**received, "consensus": torch.zeros_like(client.state["memory"])}
    algorithm.scored(client, received)
    batch = next(client.batches())
    extractor, head, memory = modules_of(client)
    assert bool(memory.any())
    expected = head(extractor(batch.x) + memory)
    torch.testing.assert_close(algorithm.predict(client, batch.x), expected)


def test_the_memory_starts_at_nothing_and_stays_on_the_client() -> None:
    algorithm = toy_algorithm(toy_config("feddbe"))
    _, start = toy_client(algorithm)
    assert not bool(start.parts["memory"].any())
    assert "memory" not in algorithm.download(toy_server(algorithm, start), 0)


def test_the_introduction_is_counted_in_the_first_round() -> None:
    simulator, (first, second) = finished(toy_config("feddbe", rounds=2))
    model = simulator.task.build_model()
    each = model.size + model.features
    assert (second.parameters_down, second.parameters_up) == (4 * each, 4 * model.size)
    assert first.parameters_down == 2 * 4 * each
    assert first.parameters_up == 4 * (model.size + model.features)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_the_tie_pulls_as_hard_a_step_as_in_the_authors_setting(model: str) -> None:
    """The step on a mean feature, to first order, is ηκ/K times its distance from the consensus."""
    shape = {"image": (3, 16, 16), "text": None}[MODELS[model].kind]
    built = build_model(model, Inputs(10, shape, None if shape else 50))
    kappa = resolve(FedDBE.Hyper, model, {}, "feddbe").kappa
    assert MODELS[model].lr * kappa / built.features == pytest.approx(0.005 * 50 / 512, rel=0.05)
