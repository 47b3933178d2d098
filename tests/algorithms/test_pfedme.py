"""pFedMe against hand-computed updates, its degenerate values, and that θ is never w."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import (
    MODEL,
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
from torch import Tensor
from toy import toy_algorithm, toy_config, toy_server, toy_simulator

from pfl_bench.base.errors import UserError
from pfl_bench.engine.algorithm import Upload


def test_updates_on_a_quadratic_are_those_computed_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    lam, steps, personal_lr = 3.0, 4, 0.05
    algorithm, client, received = meet(
        "pfedme", {"lambda": lam, "K": steps, "personal_lr": personal_lr}
    )
    drawn = recorded_batches(client, monkeypatch)
    monkeypatch.setattr(algorithm, "loss", quadratic(client, lambda batch: 0.5))
    upload = algorithm.local_update(client, received)

    def by_hand(w: Tensor) -> tuple[Tensor, Tensor]:
        theta = w
        for _ in drawn:
            theta = proximal_descent(theta, w, 0.5, lam, personal_lr, steps)
            w = w - client.lr * lam * (w - theta)
        return theta, w

    assert len(drawn) > 1
    expected = {part: by_hand(value.double()) for part, value in received.items()}
    assert_vectors(dict(client.state), {part: theta for part, (theta, _) in expected.items()})
    assert_vectors(upload, {part: w for part, (_, w) in expected.items()})


def test_a_round_is_the_naive_double_loop_on_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    hyper = {"lambda": 5.0, "K": 3, "personal_lr": 0.02}
    algorithm, client, received = meet("pfedme", hyper)
    theta, w = plain_model(client, received), plain_model(client, received)
    drawn = recorded_batches(client, monkeypatch)
    upload = algorithm.local_update(client, received)
    kept = dict(client.state)
    for batch in drawn:
        sgd(theta, [batch] * 3, 0.02, extra_loss=proximal_term(theta, w, 5.0))
        with torch.no_grad():
            for mine, personal in zip(w.parameters(), theta.parameters(), strict=True):
                mine.sub_(client.lr * 5.0 * (mine - personal))
    assert_holds(client, kept, theta)
    assert_holds(client, upload, w)


def test_with_one_inner_step_and_full_steps_of_w_the_server_is_fedavg_s_bit_for_bit() -> None:
    """K = 1 and ηλ = 1 make w follow θ exactly, so that the envelope never pulls."""
    hyper = {"K": 1, "lambda": 20, "personal_lr": 0.05, "beta": 1}
    ours, _ = finished(toy_config("pfedme", hyper, lr=0.05))
    theirs, _ = finished(toy_config("fedavg", lr=0.05))
    for part in MODEL:
        assert torch.equal(ours.snapshot.server[part], theirs.snapshot.server[part])


@pytest.mark.parametrize("hyper", [{"lambda": 0}, {"beta": 0}, {"personal_lr": 0}])
def test_a_degenerate_value_leaves_the_server_where_it_began(hyper: dict[str, Any]) -> None:
    simulator = toy_simulator(toy_config("pfedme", hyper, rounds=2))
    before = dict(simulator.snapshot.server)
    for _ in simulator.rounds():
        pass
    for part in MODEL:
        torch.testing.assert_close(
            simulator.snapshot.server[part], before[part], rtol=1e-6, atol=1e-7
        )


def test_without_the_envelope_theta_is_plain_sgd_at_its_own_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("pfedme", {"lambda": 0, "K": 2, "personal_lr": 0.03})
    theta = plain_model(client, received)
    drawn = recorded_batches(client, monkeypatch)
    algorithm.local_update(client, received)
    sgd(theta, [batch for batch in drawn for _ in range(2)], 0.03)
    assert_holds(client, dict(client.state), theta)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 2.0])
def test_the_server_moves_by_beta_towards_the_weighted_average(beta: float) -> None:
    algorithm = toy_algorithm(toy_config("pfedme", {"beta": beta}))
    server = {"extractor": torch.tensor([1.0, -2.0]), "head": torch.tensor([4.0])}
    uploads = [
        Upload(0, 0.25, {"extractor": torch.tensor([3.0, 0.0]), "head": torch.tensor([8.0])}),
        Upload(2, 0.75, {"extractor": torch.tensor([7.0, 4.0]), "head": torch.tensor([0.0])}),
    ]
    average = {"extractor": torch.tensor([6.0, 3.0]), "head": torch.tensor([2.0])}
    moved = algorithm.aggregate(toy_server(algorithm, server), iter(uploads))
    assert_vectors(moved, {p: (1 - beta) * server[p] + beta * average[p] for p in server})


def test_theta_is_a_real_copy_that_shares_no_memory_with_w_or_the_workspace() -> None:
    algorithm, client, received = meet("pfedme")
    upload = algorithm.local_update(client, received)
    others = [client.net.vector, *upload.values(), *received.values()]
    places = {tensor.untyped_storage().data_ptr() for tensor in others}
    assert all(client.state[p].untyped_storage().data_ptr() not in places for p in MODEL)
    assert all(upload[p].data_ptr() != received[p].data_ptr() for p in MODEL)


def test_theta_differs_from_w_in_value() -> None:
    algorithm, client, received = meet("pfedme")
    upload = algorithm.local_update(client, received)
    assert not any(torch.equal(client.state[part], upload[part]) for part in MODEL)


def test_the_theta_each_client_kept_is_scored_joined_or_not() -> None:
    config = toy_config("pfedme", rounds=4, joining_ratio=(0.5, 0.5), lr=0.01)
    simulator, records = finished(config)
    kept = simulator.snapshot.clients
    assert kept.keys() - set(records[-1].joined), "no client sat the last round out"
    correct = records[-1].correct
    assert correct is not None
    for index, theta in kept.items():
        assert correct[index] == correct_predictions(simulator, index, theta)


def test_scoring_puts_theta_into_the_workspace_and_not_what_was_received() -> None:
    algorithm, client, received = meet("pfedme")
    algorithm.scored(client, received)
    for part in MODEL:
        assert torch.equal(client.net[part], client.state[part])
        assert not torch.equal(client.net[part], received[part])


@pytest.mark.parametrize(
    ("name", "value"),
    [("lambda", -1), ("K", 2.5), ("K", -1), ("personal_lr", -0.1), ("beta", "nan")],
)
def test_a_value_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"{name}="):
        toy_config("pfedme", {name: value})


def test_no_inner_step_at_all_is_refused() -> None:
    """Such a run would never compute a loss and would be taken for a diverged one."""
    with pytest.raises(UserError, match="K="):
        toy_config("pfedme", {"K": 0})


def test_lambda_is_typed_by_its_own_name() -> None:
    assert toy_config("pfedme", {"lambda": 7}).hyper["lambda"] == 7.0
    with pytest.raises(UserError, match="did you mean 'lambda'"):
        toy_config("pfedme", {"lam": 7})
