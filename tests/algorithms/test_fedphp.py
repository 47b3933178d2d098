"""FedPHP against naive training, the schedule's closed form, and FedAvg."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy import (
    colour_dataset,
    toy_algorithm,
    toy_client,
    toy_config,
    toy_run,
    toy_server,
    toy_simulator,
)

from pfl_bench.algorithms.fedphp import FedPHP
from pfl_bench.base.errors import UserError
from pfl_bench.engine.algorithm import Start
from pfl_bench.engine.batches import Batch
from pfl_bench.engine.client import Client
from pfl_bench.models.backbones import Model


def make(hyper: Mapping[str, Any] | None = None, round: int = 1) -> tuple[FedPHP, Client, Start]:
    algorithm = toy_algorithm(toy_config("fedphp", hyper, rounds=10))
    assert isinstance(algorithm, FedPHP)
    return algorithm, *toy_client(algorithm, round=round)


def remember_something_else(client: Client, start: Start) -> None:
    """Give the client a personal model that differs from the global one."""
    generator = torch.Generator().manual_seed(3)
    for name in ("personal_extractor", "personal_head"):
        noise = torch.randn(len(start.parts[name]), generator=generator)
        client.state[name] = start.parts[name] + 0.05 * noise
    client.net.load(client.state)


def naive_mmd(x: Tensor, y: Tensor) -> Tensor:
    """The MMD from differences of all pairs of rows."""

    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        squared = ((a[:, None] - b[None, :]) ** 2).sum(2)
        return sum((torch.exp(-squared / (2 * w)) for w in (10, 15, 20, 50)), squared * 0).mean()

    return mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)


# --- the memory's schedule ------------------------------------------------------------------------


def test_it_says_that_its_course_depends_on_the_planned_rounds() -> None:
    """The schedule has T in it: the second of two rounds is not the second of ten."""
    short, long = (toy_run(toy_config("fedphp", rounds=rounds))[1] for rounds in (2, 10))
    assert FedPHP.plans_rounds and short.loss != long.loss


@pytest.mark.parametrize("round", [1, 2, 6, 10])
def test_the_personal_model_moves_by_the_schedule(round: int) -> None:
    """p ← μ_t p + (1 − μ_t) θ with μ_t = 0.9·t/T and t = 0 … T − 1."""
    algorithm, client, start = make(round=round)
    remember_something_else(client, start)
    before = {name: value.clone() for name, value in client.state.items()}
    theta = algorithm.local_update(client, algorithm.download(toy_server(algorithm, start), 0))
    mu_t = 0.9 * (round - 1) / 10
    for p, w in (("personal_extractor", "extractor"), ("personal_head", "head")):
        expected = mu_t * before[p] + (1 - mu_t) * theta[w]
        torch.testing.assert_close(client.state[p], expected, rtol=1e-5, atol=1e-7)


def test_the_first_round_forgets_the_initial_personal_model_entirely() -> None:
    algorithm, client, start = make(round=1)
    remember_something_else(client, start)
    theta = algorithm.local_update(client, algorithm.download(toy_server(algorithm, start), 0))
    assert torch.equal(client.state["personal_extractor"], theta["extractor"])
    assert torch.equal(client.state["personal_head"], theta["head"])


# --- the local loss -------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.01, 0.6])
def test_local_training_equals_sgd_with_features_of_p_computed_afresh(lam: float) -> None:
    algorithm, client, start = make({"lambda": lam})
    remember_something_else(client, start)
    extractor, head, p = (
        copy.deepcopy(client.net.module(name))
        for name in ("extractor", "head", "personal_extractor")
    )
    sgd = torch.optim.SGD([*extractor.parameters(), *head.parameters()], client.lr)
    for batch in client.batches():
        sgd.zero_grad()
        features = extractor(batch.x)
        entropy = F.cross_entropy(head(features), batch.y)
        distance = naive_mmd(features, p(batch.x).detach())
        ((1 - lam) * entropy + lam * distance).backward()
        sgd.step()
    algorithm.local_update(client, algorithm.download(toy_server(algorithm, start), 0))
    for name, naive in (("extractor", extractor), ("head", head)):
        for ours, theirs in zip(client.net.parameters([name]), naive.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_cached_features_of_p_equal_direct_ones() -> None:
    _, client, start = make()
    remember_something_else(client, start)
    cached = client.frozen_features("personal_extractor")
    for batch in client.batches():
        with torch.no_grad():
            direct = client.net.module("personal_extractor")(batch.x)
        torch.testing.assert_close(cached(batch), direct, rtol=1e-5, atol=1e-6)


def test_no_gradient_reaches_the_personal_model() -> None:
    algorithm, client, start = make()
    remember_something_else(client, start)
    client.memo["inherited"] = client.frozen_features("personal_extractor")
    algorithm.loss(client, next(client.batches())).backward()
    for name in ("personal_extractor", "personal_head"):
        for parameter in client.net.module(name).parameters():
            assert parameter.grad is None and not parameter.requires_grad


def test_local_training_leaves_the_batch_norm_statistics_of_the_personal_model_alone() -> None:
    """With t = 1 of 1 round μ_t is 0: p takes over those of θ. Half-way it is their mean."""
    config = toy_config(
        "fedphp", {"mu": 1.0}, model="resnet18", clients=2, rounds=2, setting="iid", beta=None
    )
    simulator = toy_simulator(config, colour_dataset())
    with simulator.client(0, 2) as client:
        algorithm = simulator.algorithm
        algorithm.load(client, simulator.download(0))
        before = [buffer.clone() for buffer in client.net.statistics("personal_extractor")]
        algorithm.train(client, simulator.download(0))
        after = client.net.statistics("personal_extractor")
        theta = client.net.statistics("extractor")
    for old, new, own in zip(before, after, theta, strict=True):
        assert not torch.equal(old, own)
        torch.testing.assert_close(new, (old + own) / 2)


# --- degenerate values ----------------------------------------------------------------------------


def finished_server(algo: str, hyper: Mapping[str, Any] | None = None) -> dict[str, Any]:
    simulator = toy_simulator(toy_config(algo, hyper))
    for _ in simulator.rounds():
        pass
    return simulator.snapshot.server


def test_without_the_mmd_the_global_model_is_fedavgs_bit_for_bit() -> None:
    ours, fedavg = finished_server("fedphp", {"lambda": 0}), finished_server("fedavg")
    assert all(torch.equal(ours[part], fedavg[part]) for part in ("extractor", "head"))


def test_without_memory_the_personal_model_is_the_trained_one_in_every_round() -> None:
    algorithm, client, start = make({"mu": 0}, round=7)
    remember_something_else(client, start)
    theta = algorithm.local_update(client, algorithm.download(toy_server(algorithm, start), 0))
    assert torch.equal(client.state["personal_extractor"], theta["extractor"])


def test_with_lambda_1_labels_have_no_influence() -> None:
    algorithm, client, start = make({"lambda": 1})
    remember_something_else(client, start)
    client.memo["inherited"] = client.frozen_features("personal_extractor")
    batch = next(client.batches())
    relabelled = Batch(batch.pool, batch.rows, batch.index)
    relabelled.__dict__["y"] = (batch.y + 1) % client.task.classes
    values = [algorithm.loss(client, b).item() for b in (batch, relabelled)]
    assert values[0] == values[1] > 0


# --- what is sent, what is scored -----------------------------------------------------------------


def test_the_personal_model_is_never_sent() -> None:
    algorithm, client, start = make()
    received = algorithm.download(toy_server(algorithm, start), 0)
    assert set(received) == set(algorithm.local_update(client, received)) == {"extractor", "head"}


def test_the_score_is_that_of_p_after_local_training() -> None:
    simulator = toy_simulator(toy_config("fedphp", rounds=3))
    *_, record = simulator.rounds()
    assert record.loss is not None
    for index, shard in enumerate(simulator.shards):
        client, _ = toy_client(simulator.algorithm, index=index)
        client.net.load(simulator.snapshot.clients[index])
        batch = next(shard.evaluation_batches("test"))
        extractor, head = (
            client.net.module(name) for name in ("personal_extractor", "personal_head")
        )
        with torch.no_grad():
            loss = F.cross_entropy(head(extractor(batch.x)), batch.y)
        assert record.loss[index] == pytest.approx(loss.item())


def test_with_batch_norm_a_personal_model_without_memory_predicts_as_the_trained_one() -> None:
    """In the first round p becomes θ, hence must normalise as θ does."""
    algorithm = toy_algorithm(toy_config("fedphp"))

    def build_model() -> Model:
        layers = (nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.ReLU())
        return Model(nn.Sequential(*layers), nn.Linear(8, 4))

    task = dataclasses.replace(algorithm.task, build_model=build_model)
    algorithm = FedPHP(algorithm.hyper, task)
    client, start = toy_client(algorithm)
    algorithm.local_update(client, algorithm.download(toy_server(algorithm, start), 0))
    client.net.train(False)
    x = next(client.shard.evaluation_batches("test")).x
    theta = client.net.module("head")(client.net.module("extractor")(x))
    torch.testing.assert_close(algorithm.predict(client, x), theta)


@pytest.mark.parametrize(
    ("name", "value"), [("mu", -0.1), ("mu", 1.1), ("lambda", -1), ("lambda", 2), ("lamda", 0.1)]
)
def test_a_value_outside_the_allowed_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(UserError, match=name):
        toy_config("fedphp", {name: value})
