"""FedFomo against loops over models and samples, and against local training."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from toy import toy_algorithm, toy_client, toy_config, toy_server, toy_simulator

from pfl_bench.algorithms.fedfomo import FedFomo, first_order_weights
from pfl_bench.base.errors import UserError
from pfl_bench.engine.algorithm import Start, Upload
from pfl_bench.engine.client import Client, Message
from pfl_bench.engine.server import Server


def make(index: int = 0, round: int = 1, **hyper: Any) -> tuple[FedFomo, Client, Start]:
    algorithm = toy_algorithm(toy_config("fedfomo", hyper))
    assert isinstance(algorithm, FedFomo)
    return algorithm, *toy_client(algorithm, index=index, round=round)


def message(models: Tensor) -> Message:
    return {"ids": torch.arange(1, len(models) + 1), "models": list(models)}


def candidates(algorithm: FedFomo, client: Client, start: Start) -> Tensor:
    """Two models that help the client, one that harms it, and its own."""
    train = next(client.shard.evaluation_batches("train"))
    downhill = [-g for g in client.net.gradients(algorithm.loss(client, train))]
    models = []
    for step in (0.05, 0.2, -0.2, 0.0):
        client.net.trainable.copy_(start.model)
        client.net.descend(downhill, -step)
        models.append(client.net.trainable.clone())
    client.net.trainable.copy_(start.model)
    return torch.stack(models)


def loss_on(client: Client, model: Tensor, positions: Tensor) -> float:
    """The mean cross-entropy of a model over some training samples, one sample at a time."""
    client.net.trainable.copy_(model)
    total = 0.0
    for position in positions:
        batch = next(client.shard.evaluation_batches("train", position[None]))
        with torch.no_grad():
            logits = client.net.module("head")(client.net.module("extractor")(batch.x))
        total += F.cross_entropy(logits, batch.y).item()
    return total / len(positions)


def naive_weights(gains: list[float], distances: list[float]) -> list[float]:
    """max(0, gain/distance), normalised; zeros where nothing helps."""
    raw = []
    for gain, distance in zip(gains, distances, strict=True):
        raw.append(max(0.0, gain / distance) if distance > 0 else 0.0)
    return [value / sum(raw) if sum(raw) else 0.0 for value in raw]


def held_back(algorithm: FedFomo, client: Client) -> tuple[Tensor, Tensor]:
    """Positions of the validation samples and of the rest."""
    return algorithm._hold_back(client)


# --- the weights ----------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.floats(-5, 5, allow_subnormal=False),
            st.sampled_from([0.0, 1e-3, 0.5, 20.0]),
        ),
        max_size=6,
    )
)
def test_weights_equal_the_naive_loop(pairs: list[tuple[float, float]]) -> None:
    gains, distances = [g for g, _ in pairs], [d for _, d in pairs]
    double = torch.float64
    ours = first_order_weights(torch.tensor(gains, dtype=double), torch.tensor(distances))
    assert ours.tolist() == pytest.approx(naive_weights(gains, distances), rel=1e-5, abs=1e-12)


def test_weights_of_models_equal_loops_over_models_and_validation_samples() -> None:
    algorithm, client, start = make()
    models = candidates(algorithm, client, start)
    validation, _ = held_back(algorithm, client)
    own_loss = loss_on(client, start.model, validation)
    gains = [own_loss - loss_on(client, model, validation) for model in models]
    distances = [(model - start.model).double().norm().item() for model in models]
    sent = algorithm.local_update(client, message(models))
    expected = naive_weights(gains, distances)
    assert max(expected[:2]) > 0
    assert sent["weights"].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_an_equal_model_gets_no_weight_and_no_division_by_zero() -> None:
    weights = first_order_weights(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]))
    assert weights.tolist() == [0.0, 1.0]


# --- the client's move ----------------------------------------------------------------------------


def start_of_training(
    algorithm: FedFomo, client: Client, models: Tensor, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, Tensor]:
    """The weights, and the model from which local training would start."""
    monkeypatch.setattr(client, "train", lambda loss, batches: None)
    sent = algorithm.local_update(client, message(models))
    return sent["weights"], sent["model"]


def test_the_client_moves_to_the_weighted_combination(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, client, start = make()
    models = candidates(algorithm, client, start)
    weights, moved = start_of_training(algorithm, client, models, monkeypatch)
    combination = torch.zeros_like(start.model)
    for weight, model in zip(weights.tolist(), models, strict=True):
        combination += weight * model
    torch.testing.assert_close(moved, combination, rtol=1e-5, atol=1e-6)


def test_the_client_stays_where_it_is_when_no_model_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, client, start = make()
    harmful = candidates(algorithm, client, start)[2:]
    weights, moved = start_of_training(algorithm, client, harmful, monkeypatch)
    assert weights.tolist() == [0.0, 0.0]
    assert torch.equal(moved, start.model)


# --- the data held back ---------------------------------------------------------------------------


def test_a_fifth_is_held_back_and_the_rest_is_everything_else() -> None:
    algorithm, client, _ = make()
    validation, rest = held_back(algorithm, client)
    assert len(validation) == round(0.2 * client.samples)
    assert sorted([*validation.tolist(), *rest.tolist()]) == list(range(client.samples))


def test_the_same_samples_are_held_back_in_every_round() -> None:
    first, later = (held_back(*make(round=t)[:2])[0] for t in (1, 9))
    assert torch.equal(first, later)


def test_training_never_sees_a_sample_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, client, start = make()
    received = message(candidates(algorithm, client, start)[:1])
    seen: set[int] = set()
    original = algorithm.loss

    def spying(client: Client, batch: Any) -> Tensor:
        seen.update(batch.index.tolist())
        return original(client, batch)

    monkeypatch.setattr(algorithm, "loss", spying)
    algorithm.local_update(client, received)
    assert seen
    assert seen.isdisjoint(held_back(algorithm, client)[0].tolist())


@pytest.mark.parametrize("share", [0.01, 0.9])
def test_extreme_shares_leave_data_on_both_sides(share: float) -> None:
    algorithm, client, _ = make(validation=share)
    assert all(len(part) >= 1 for part in held_back(algorithm, client))


def test_a_client_with_one_sample_makes_the_run_impossible_with_the_reason() -> None:
    algorithm, _, _ = make()
    task = dataclasses.replace(algorithm.task, train_sizes=(20, 1, 20, 20))
    reason = FedFomo(algorithm.hyper, task).impossible()
    assert reason is not None
    assert "client 1" in reason
    assert algorithm.impossible() is None


# --- what the server sends ------------------------------------------------------------------------


def server_with(
    algorithm: FedFomo, start: Start, affinity: list[list[float]], sent: list[bool]
) -> Server:
    known = {"affinity": torch.tensor(affinity), "has_sent": torch.tensor(sent)}
    return toy_server(algorithm, algorithm.server_state(start) | known)


def chosen(algorithm: FedFomo, server: Server, client: int) -> list[int]:
    return algorithm.download(server, client)["ids"].tolist()


def test_the_models_with_the_highest_affinity_are_sent() -> None:
    algorithm, _, start = make(M=2)
    affinity = [[9, 0.1, 0.5, 0.3], [0.2, 0, 0.1, 0.9], [0.4, 0.6, 0, 0.5], [0.1, 0.2, 0.3, 0]]
    server = server_with(algorithm, start, affinity, [True] * 4)
    assert [chosen(algorithm, server, i) for i in range(4)] == [[2, 3], [0, 3], [1, 3], [1, 2]]


def test_a_client_is_never_sent_its_own_model() -> None:
    algorithm, _, start = make(M=10)
    server = server_with(algorithm, start, [[5.0] * 4] * 4, [True] * 4)
    assert [chosen(algorithm, server, i) for i in range(4)] == [
        [1, 2, 3],
        [0, 2, 3],
        [0, 1, 3],
        [0, 1, 2],
    ]


def test_only_models_that_were_ever_uploaded_are_sent() -> None:
    algorithm, _, start = make(M=10)
    server = server_with(algorithm, start, [[0.0] * 4] * 4, [False, True, False, True])
    assert chosen(algorithm, server, 0) == [1, 3]


def test_ties_are_drawn_anew_in_every_round() -> None:
    algorithm, _, start = make(M=1)
    server = server_with(algorithm, start, [[0.0] * 4] * 4, [True] * 4)
    later = (toy_server(algorithm, server.state, round=t) for t in range(40))
    draws = {chosen(algorithm, server, 0)[0] for server in later}
    assert draws == {1, 2, 3}


def test_the_models_sent_are_those_named() -> None:
    algorithm, _, start = make(M=2)
    server = server_with(algorithm, start, [[0.0, 1, 0, 2]] * 4, [True] * 4)
    server.state["models"] = [start.model + n for n in range(4)]
    received = algorithm.download(server, 0)
    assert received["ids"].tolist() == [1, 3]
    for n, model in zip((1, 3), received["models"], strict=True):
        assert torch.equal(model, start.model + n)


def test_affinity_is_the_sum_of_the_weights_given() -> None:
    algorithm, _, start = make()
    state = algorithm.server_state(start)
    for weights in ([0.25, 0.75], [1.0, 0.0]):
        sent = {
            "model": start.model,
            "ids": torch.tensor([1, 3]),
            "weights": torch.tensor(weights),
        }
        state = algorithm.aggregate(toy_server(algorithm, state), iter([Upload(2, 1.0, sent)]))
    expected = torch.zeros(4, 4)
    expected[2, 1], expected[2, 3] = 1.25, 0.75
    assert torch.equal(state["affinity"], expected)


# --- degenerate value, scoring, validation --------------------------------------------------------


def test_without_other_models_it_is_local_training_on_what_is_not_held_back() -> None:
    algorithm, client, start = make(M=0)
    _, rest = held_back(algorithm, client)
    parts = [copy.deepcopy(client.net.module(name)) for name in ("extractor", "head")]
    naive = torch.nn.Sequential(*parts)
    sgd = torch.optim.SGD(naive.parameters(), client.lr)
    for batch in client.batches(of=rest):
        sgd.zero_grad()
        F.cross_entropy(naive(batch.x), batch.y).backward()
        sgd.step()
    server = server_with(algorithm, start, [[1.0] * 4] * 4, [True] * 4)
    algorithm.local_update(client, algorithm.download(server, 0))
    for ours, theirs in zip(client.net.parameters(), naive.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_with_m_0_nothing_is_downloaded() -> None:
    algorithm, _, start = make(M=0)
    server = server_with(algorithm, start, [[1.0] * 4] * 4, [True] * 4)
    received = algorithm.download(server, 0)
    assert received["models"] == [] and len(received["ids"]) == 0


def test_the_scored_model_is_the_clients_own_after_local_training() -> None:
    simulator = toy_simulator(toy_config("fedfomo", rounds=2))
    *_, record = simulator.rounds()
    assert record.loss is not None
    for index, shard in enumerate(simulator.shards):
        client, _ = toy_client(simulator.algorithm, index=index)
        client.net.load(simulator.snapshot.clients[index])
        assert torch.equal(client.net.trainable, simulator.snapshot.server["models"][index])
        batch = next(shard.evaluation_batches("test"))
        with torch.no_grad():
            logits = client.net.module("head")(client.net.module("extractor")(batch.x))
        assert record.loss[index] == pytest.approx(F.cross_entropy(logits, batch.y).item())


@pytest.mark.parametrize(
    ("name", "value"), [("M", -1), ("M", 2.5), ("validation", 0), ("validation", 1), ("models", 3)]
)
def test_a_value_outside_the_allowed_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(UserError, match=name):
        toy_config("fedfomo", {name: value})
