"""SCAFFOLD against its equations in plain torch, and the identity of all control variates."""

from __future__ import annotations

import pytest
import torch
from by_hand import (
    MODEL,
    assert_vectors,
    cross_entropy,
    finished,
    flat_gradient,
    meet,
    plain_model,
    recorded_batches,
)
from toy import toy_algorithm, toy_client, toy_config, toy_server

from pfl_bench.engine.algorithm import Upload


def test_a_clients_round_is_that_of_the_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    """y ← y − η(∇f(y) − c_i + c), then c_i⁺ = c_i − c + (x − y)/(Kη), all different."""
    algorithm, client, received = meet("scaffold", local_epochs=2)
    generator = torch.Generator().manual_seed(3)

    def drawn() -> dict[str, torch.Tensor]:
        return {p: 0.1 * torch.randn(len(received[p]), generator=generator) for p in MODEL}

    own, c = drawn(), drawn()
    client.state["c"] = own
    model = plain_model(client, received)
    batches = recorded_batches(client, monkeypatch)
    sent = algorithm.local_update(client, {**received, "c": c})

    values = [received[part].clone() for part in MODEL]
    for batch in batches:
        client.net.load(dict(zip(MODEL, values, strict=True)))
        model = plain_model(client, dict(zip(MODEL, values, strict=True)))
        cross_entropy(model, batch).backward()
        for k, part in enumerate(MODEL):
            slope = flat_gradient(model[k]) - own[part] + c[part]
            values[k] = values[k] - client.lr * slope
    way = len(batches) * client.lr
    for part, y in zip(MODEL, values, strict=True):
        torch.testing.assert_close(sent[part], y, rtol=1e-3, atol=3e-5)
        expected = own[part] - c[part] + (received[part] - y) / way
        torch.testing.assert_close(client.state["c"][part], expected, rtol=1e-3, atol=1e-3)
        change = client.state["c"][part] - own[part]
        torch.testing.assert_close(sent["moves"][part], change, rtol=1e-4, atol=1e-5)


def test_the_servers_variate_is_the_mean_of_all_clients_by_samples() -> None:
    simulator, _ = finished(toy_config("scaffold", rounds=5, joining_ratio=(0.5, 0.75)))
    sizes, kept = simulator.task.train_sizes, simulator.snapshot.clients
    assert len(set(sizes)) > 1
    for part in MODEL:
        nothing = torch.zeros_like(simulator.snapshot.server[part])
        expected = sum(
            n / sum(sizes) * (kept[i]["c"][part] if i in kept else nothing)
            for i, n in enumerate(sizes)
        )
        torch.testing.assert_close(
            simulator.snapshot.server["c"][part], expected, rtol=1e-4, atol=1e-5
        )


def test_the_first_round_is_fedavg() -> None:
    (_, ours), (_, fedavg) = finished(toy_config("scaffold")), finished(toy_config("fedavg"))
    assert ours[0].loss == pytest.approx(fedavg[0].loss, rel=1e-6)
    assert ours[1].loss != pytest.approx(fedavg[1].loss, rel=1e-6)


def test_the_server_steps_by_its_learning_rate() -> None:
    algorithm = toy_algorithm(toy_config("scaffold", {"server_lr": 0.25}))
    _, start = toy_client(algorithm)
    server = toy_server(algorithm, start, joined=[0])
    sent = {part: server.state[part] + 1 for part in MODEL}
    after = algorithm.aggregate(
        server, iter([Upload(0, 1.0, {**sent, "moves": server.state["c"]})])
    )
    assert_vectors(
        {part: after[part] for part in MODEL}, {p: server.state[p] + 0.25 for p in MODEL}
    )


def test_model_and_variate_travel_both_ways() -> None:
    simulator, records = finished(toy_config("scaffold", rounds=1))
    both = 2 * simulator.task.build_model().size * simulator.task.clients
    assert records[0].parameters_up == records[0].parameters_down == both
