"""FedRep against the uncached computation in plain torch, and what it shares, keeps and scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_hand import (
    assert_holds,
    assert_vectors,
    correct_predictions,
    finished,
    meet,
    plain_model,
    recorded_batches,
    sgd,
)
from torch import Tensor, nn
from toy import toy_algorithm, toy_client, toy_config, toy_text

from pfl_bench.base.errors import UserError
from pfl_bench.engine.batches import Batch
from pfl_bench.engine.client import Client
from pfl_bench.models.backbones import Model


@pytest.mark.parametrize("head_epochs", [1, 5])
def test_a_round_is_sgd_on_the_head_then_on_the_extractor_without_any_cache(
    monkeypatch: pytest.MonkeyPatch, head_epochs: int
) -> None:
    algorithm, client, received = meet("fedrep", {"head_epochs": head_epochs}, local_epochs=2)
    model = plain_model(client, {**received, **client.state})
    extractor, head = model
    drawn = recorded_batches(client, monkeypatch)
    upload = algorithm.local_update(client, received)

    epoch = client.samples // client.task.config.batch_size
    assert len(drawn) == (head_epochs + 2) * epoch
    sgd(model, drawn[: head_epochs * epoch], client.lr, only=head)
    sgd(model, drawn[head_epochs * epoch :], client.lr, only=extractor)
    assert_holds(client, {**upload, **client.state}, model)


def features_by_batch(client: Client, part: str) -> Callable[[Batch], Tensor]:
    """What `Client.frozen_features` promises, computed anew for each batch."""
    return lambda batch: client.net.module(part)(batch.x).detach()


@pytest.mark.parametrize(("model", "is_text"), [("cnn", False), ("fasttext", True)])
def test_cached_features_give_the_uncached_result(
    monkeypatch: pytest.MonkeyPatch, model: str, is_text: bool
) -> None:
    dataset = toy_text() if is_text else None
    results = []
    for is_cached in (True, False):
        if not is_cached:
            monkeypatch.setattr(Client, "frozen_features", features_by_batch)
        algorithm, client, received = meet("fedrep", dataset=dataset, model=model, beta=1.0)
        results.append({**algorithm.local_update(client, received), **client.state})
    assert_vectors(*results)


def test_features_are_not_cached_where_batch_norm_ties_a_sample_to_its_batch() -> None:
    def with_batch_norm() -> Model:
        extractor = nn.Sequential(nn.Conv2d(1, 2, 8, 8), nn.BatchNorm2d(2), nn.Flatten())
        return Model(extractor, nn.Linear(8, 4))

    algorithm = toy_algorithm(toy_config("fedrep"))
    algorithm.task = dataclasses.replace(algorithm.task, build_model=with_batch_norm)
    client, _ = toy_client(algorithm)
    features = client.frozen_features("extractor")
    client.net.train()
    convolution = client.net.module("extractor")[0]
    for batch in client.batches():
        maps = convolution(batch.x).detach()
        mean, variance = maps.mean((0, 2, 3)), maps.var((0, 2, 3), correction=0)
        shape = (1, -1, 1, 1)
        normed = (maps - mean.view(shape)) / (variance.view(shape) + 1e-5).sqrt()
        torch.testing.assert_close(features(batch), normed.flatten(1), rtol=1e-4, atol=1e-5)


def test_without_head_epochs_the_head_stays_and_the_extractor_alone_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("fedrep", {"head_epochs": 0})
    model = plain_model(client, {**received, **client.state})
    drawn = recorded_batches(client, monkeypatch)
    upload = algorithm.local_update(client, received)
    sgd(model, drawn, client.lr, only=model[0])
    assert_holds(client, {**upload, **client.state}, model)


def test_the_extractor_alone_travels() -> None:
    algorithm, client, received = meet("fedrep")
    assert list(received) == list(algorithm.local_update(client, received)) == ["extractor"]


def test_a_client_is_scored_with_the_new_extractor_and_its_own_head_joined_or_not() -> None:
    simulator, records = finished(toy_config("fedrep", rounds=3, joining_ratio=(0.5, 0.5)))
    correct = records[-1].correct
    assert correct is not None
    assert simulator.snapshot.clients.keys() - set(records[-1].joined)
    for index, kept in simulator.snapshot.clients.items():
        model = {"extractor": simulator.snapshot.server["extractor"], "head": kept["head"]}
        assert correct[index] == correct_predictions(simulator, index, model)


@pytest.mark.parametrize("value", [-1, 1.5, "many"])
def test_a_number_of_head_epochs_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match="head_epochs="):
        toy_config("fedrep", {"head_epochs": value})
