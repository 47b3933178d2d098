"""Per-FedAvg against a two-step calculation, its degenerate step sizes, and when it cannot run."""

from __future__ import annotations

import copy
import dataclasses
from itertools import pairwise

import pytest
import torch
from by_hand import (
    assert_holds,
    assert_vectors,
    cross_entropy,
    finished,
    meet,
    plain_model,
    quadratic,
    recorded_batches,
    sgd,
)
from torch import Tensor
from toy import toy_algorithm, toy_config, toy_simulator

from pfl_bench.base.errors import UserError
from pfl_bench.engine.batches import Batch
from pfl_bench.store.records import same_result


def mean_label(batch: Batch) -> float:
    """A centre that differs from batch to batch."""
    return float(batch.y.double().mean())


def test_steps_on_a_quadratic_are_the_two_step_calculation(monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, beta = 0.2, 0.3
    algorithm, client, received = meet("perfedavg", {"alpha": alpha, "beta": beta})
    drawn = recorded_batches(client, monkeypatch)
    monkeypatch.setattr(algorithm, "loss", quadratic(client, mean_label))
    upload = algorithm.local_update(client, received)

    def by_hand(theta: Tensor) -> Tensor:
        for first, second in zip(drawn[::2], drawn[1::2], strict=True):
            adapted = theta - alpha * (theta - mean_label(first))
            theta = theta - beta * (adapted - mean_label(second))
        return theta

    assert any(mean_label(a) != mean_label(b) for a, b in pairwise(drawn))
    assert_vectors(upload, {part: by_hand(value.double()) for part, value in received.items()})


def test_a_step_applies_the_adapted_copy_s_gradient_to_the_model_before_adaptation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("perfedavg")
    model = plain_model(client, received)
    drawn = recorded_batches(client, monkeypatch)
    upload = algorithm.local_update(client, received)
    for first, second in zip(drawn[::2], drawn[1::2], strict=True):
        adapted = copy.deepcopy(model)
        sgd(adapted, [first], client.lr)
        gradients = torch.autograd.grad(cross_entropy(adapted, second), list(adapted.parameters()))
        with torch.no_grad():
            for theta, gradient in zip(model.parameters(), gradients, strict=True):
                theta.sub_(client.lr * gradient)
    assert_holds(client, upload, model)


def test_an_epoch_uses_whole_pairs_of_full_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, client, received = meet("perfedavg", local_epochs=3)
    drawn = recorded_batches(client, monkeypatch)
    algorithm.local_update(client, received)
    size = client.task.config.batch_size
    assert len(drawn) == 3 * 2 * (client.samples // (2 * size))
    assert {len(batch.rows) for batch in drawn} == {size}


def test_without_adaptation_it_is_sgd_on_every_second_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("perfedavg", {"alpha": 0})
    model = plain_model(client, received)
    drawn = recorded_batches(client, monkeypatch)
    upload = algorithm.local_update(client, received)
    sgd(model, drawn[1::2], client.lr)
    assert_holds(client, upload, model)


def test_without_a_meta_step_nothing_is_learnt() -> None:
    algorithm, client, received = meet("perfedavg", {"beta": 0})
    upload = algorithm.local_update(client, received)
    assert all(torch.equal(upload[part], value) for part, value in received.items())


def test_both_step_sizes_are_the_learning_rate_unless_given() -> None:
    _, silent = finished(toy_config("perfedavg", lr=0.03))
    _, explicit = finished(toy_config("perfedavg", {"alpha": 0.03, "beta": 0.03}, lr=0.03))
    assert all(map(same_result, silent, explicit))


def test_the_model_scored_is_the_global_one_after_one_step_on_one_training_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("perfedavg", {"alpha": 0.07})
    model = plain_model(client, received)
    drawn = recorded_batches(client, monkeypatch)
    algorithm.scored(client, received)
    scored = client.net.copy(received)

    (batch,) = drawn
    assert len(batch.rows) == client.task.config.batch_size
    assert set(batch.rows.tolist()) <= set(client.shard.train.tolist())
    sgd(model, [batch], 0.07)
    assert_holds(client, scored, model)


def test_scoring_leaves_the_received_model_as_it_was() -> None:
    algorithm, client, received = meet("perfedavg")
    before = {part: value.clone() for part, value in received.items()}
    algorithm.scored(client, received)
    assert all(torch.equal(received[part], value) for part, value in before.items())


@pytest.mark.parametrize(("smallest", "runs"), [(20, True), (19, False)])
def test_it_runs_if_and_only_if_every_client_has_two_batches(smallest: int, runs: bool) -> None:
    algorithm = toy_algorithm(toy_config("perfedavg"))
    config = dataclasses.replace(algorithm.task.config, batch_size=10)
    algorithm.task = dataclasses.replace(
        algorithm.task, config=config, train_sizes=(40, 300, smallest, 25)
    )
    assert (algorithm.impossible() is None) == runs


def test_the_reason_for_not_running_names_the_client_and_what_it_lacks() -> None:
    algorithm = toy_algorithm(toy_config("perfedavg", batch_size=10))
    algorithm.task = dataclasses.replace(algorithm.task, train_sizes=(40, 300, 13, 25))
    reason = algorithm.impossible()
    assert reason is not None
    assert "20 training samples" in reason
    assert "client 2 has 13" in reason


def test_the_simulator_reports_the_reason_before_the_first_round() -> None:
    config = toy_config("perfedavg", setting="iid", beta=None)
    half = min(toy_simulator(config).task.train_sizes) // 2
    assert toy_simulator(dataclasses.replace(config, batch_size=half)).impossible is None
    assert toy_simulator(dataclasses.replace(config, batch_size=half + 1)).impossible is not None


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("value", [-0.1, "nan", "fast"])
def test_a_step_size_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(UserError, match=f"{name}="):
        toy_config("perfedavg", {name: value})
