"""Ditto's personal model against its closed form and autograd, its global one against FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import (
    MODEL,
    PERSONAL_MODEL,
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
from pfl_bench.engine.client import Client


@pytest.mark.parametrize("mu", [0.1, 1.0, 6.0])
def test_the_personal_model_on_a_quadratic_follows_the_closed_form(
    monkeypatch: pytest.MonkeyPatch, mu: float
) -> None:
    """The tie is to w as received, though the local copy of w moves elsewhere meanwhile."""
    algorithm, client, w = meet("ditto", {"mu": mu, "personal_epochs": 2})
    monkeypatch.setattr(algorithm, "loss", quadratic(client, lambda _: 0.5, PERSONAL_MODEL))
    monkeypatch.setattr(algorithm, "global_loss", quadratic(client, lambda _: -3.0, MODEL))
    kept = dict(client.state)
    algorithm.local_update(client, w)
    steps = 2 * (client.samples // client.task.config.batch_size)
    assert_vectors(
        dict(client.state),
        {
            mine: proximal_descent(kept[mine], w[tie], 0.5, mu, client.lr, steps)
            for mine, tie in zip(PERSONAL_MODEL, MODEL, strict=True)
        },
    )


def test_a_round_is_sgd_on_two_models_of_which_one_is_tied_to_the_other_s_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("ditto", {"mu": 2.0, "personal_epochs": 2}, local_epochs=3)
    w, anchor = plain_model(client, received), plain_model(client, received)
    v = plain_model(client, dict(client.state), PERSONAL_MODEL)
    drawn = recorded_batches(client, monkeypatch)
    upload = algorithm.local_update(client, received)
    kept = dict(client.state)

    epoch = client.samples // client.task.config.batch_size
    assert len(drawn) == (3 + 2) * epoch
    sgd(w, drawn[: 3 * epoch], client.lr)
    sgd(v, drawn[3 * epoch :], client.lr, extra_loss=proximal_term(v, anchor, 2.0))
    assert_holds(client, upload, w)
    assert_holds(client, kept, v)


def test_the_global_model_is_fedavg_s_bit_for_bit() -> None:
    ours, records = finished(toy_config("ditto", joining_ratio=(0.5, 1.0)))
    theirs, expected = finished(toy_config("fedavg", joining_ratio=(0.5, 1.0)))
    assert all(torch.equal(ours.snapshot.server[p], theirs.snapshot.server[p]) for p in MODEL)
    assert [r.bytes_up for r in records] == [r.bytes_up for r in expected]


def test_without_the_tie_the_personal_models_are_local_s_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both models of a client draw the same batches here, so that Local's draws are comparable."""
    original = Client.generator
    monkeypatch.setattr(Client, "generator", lambda self, purpose: original(self, "batches"))
    settings: dict[str, Any] = {"joining_ratio": (0.5, 1.0), "rounds": 4}
    ours, records = finished(toy_config("ditto", {"mu": 0}, **settings))
    theirs, expected = finished(toy_config("local", **settings))
    assert [r.loss for r in records] == [r.loss for r in expected]
    for index, kept in theirs.snapshot.clients.items():
        for mine, local in zip(PERSONAL_MODEL, MODEL, strict=True):
            assert torch.equal(ours.snapshot.clients[index][mine], kept[local])


def test_without_personal_epochs_the_personal_model_stays_as_it_was() -> None:
    algorithm, client, received = meet("ditto", {"personal_epochs": 0})
    kept = dict(client.state)
    algorithm.local_update(client, received)
    assert all(torch.equal(client.state[part], value) for part, value in kept.items())


def test_only_the_global_model_travels() -> None:
    algorithm, client, received = meet("ditto")
    assert set(received) == set(algorithm.local_update(client, received)) == set(MODEL)


def test_each_client_is_scored_with_its_personal_model() -> None:
    simulator, records = finished(toy_config("ditto", rounds=4))
    assert records[-1].correct == [
        correct_predictions(simulator, i, simulator.snapshot.clients[i])
        for i in range(simulator.task.clients)
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("mu", -1), ("mu", "inf"), ("personal_epochs", 0.5), ("personal_epochs", -1)],
)
def test_a_value_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"{name}="):
        toy_config("ditto", {name: value})
