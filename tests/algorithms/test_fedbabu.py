"""FedBABU against plain torch: an extractor trained under a fixed head, a head fine-tuned alone."""

from __future__ import annotations

import pytest
import torch
from by_hand import assert_holds, finished, meet, plain_model, recorded_batches, sgd
from toy import toy_config


def test_training_moves_the_extractor_under_the_fixed_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("fedbabu")
    head = client.state["head"].clone()
    model = plain_model(client, {**received, "head": head})
    batches = recorded_batches(client, monkeypatch)
    sent = algorithm.local_update(client, received)
    sgd(model, batches, client.lr, only=model[0])
    assert list(sent) == ["extractor"]
    assert torch.equal(client.state["head"], head)
    assert_holds(client, {**sent, "head": head}, model)


def test_the_scored_head_is_fine_tuned_on_the_received_extractor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("fedbabu", {"epochs": 3})
    model = plain_model(client, {**received, "head": client.state["head"]})
    batches = recorded_batches(client, monkeypatch)
    algorithm.scored(client, received)
    scored = client.net.copy(("extractor", "head"))
    sgd(model, batches, client.lr, only=model[1])
    assert len(batches) == 3 * (client.samples // 8)
    assert client.train_loss is None, "fine-tuning is not training"
    assert_holds(client, scored, model)


def test_fine_tuning_leaves_no_trace() -> None:
    """Scored or not, with more epochs or fewer: the extractor and the kept heads are the same."""
    (ours, first), (theirs, second) = (
        finished(toy_config("fedbabu", {"epochs": epochs})) for epochs in (0, 4)
    )
    assert torch.equal(ours.snapshot.server["extractor"], theirs.snapshot.server["extractor"])
    assert all(
        torch.equal(ours.snapshot.clients[i]["head"], theirs.snapshot.clients[0]["head"])
        for i in range(4)
    )
    assert first[-1].correct != second[-1].correct


def test_only_the_extractor_travels() -> None:
    simulator, records = finished(toy_config("fedbabu", rounds=1))
    extractor = sum(p.numel() for p in simulator.task.build_model().extractor.parameters())
    assert records[0].parameters_up == records[0].parameters_down == 4 * extractor
