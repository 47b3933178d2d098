"""FedAvg + FT: fine-tuning against torch's SGD, and training that is FedAvg's."""

from __future__ import annotations

import pytest
import torch
from by_hand import MODEL, assert_holds, finished, meet, plain_model, recorded_batches, sgd
from toy import toy_config


def test_the_scored_model_is_the_received_one_after_some_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, client, received = meet("fedavg_ft", {"epochs": 2})
    model = plain_model(client, received)
    batches = recorded_batches(client, monkeypatch)
    algorithm.scored(client, received)
    scored = client.net.copy(MODEL)
    sgd(model, batches, client.lr)
    assert len(batches) == 2 * (client.samples // 8)
    assert client.train_loss is None, "fine-tuning is not training"
    assert_holds(client, scored, model)


def test_training_is_that_of_fedavg_whatever_is_fine_tuned() -> None:
    (ours, tuned), (theirs, plain) = (
        finished(toy_config("fedavg_ft", {"epochs": 2})),
        finished(toy_config("fedavg")),
    )
    for part in MODEL:
        assert torch.equal(ours.snapshot.server[part], theirs.snapshot.server[part])
    assert [r.train_loss for r in tuned] == [r.train_loss for r in plain]
    assert [r.bytes_up for r in tuned] == [r.bytes_up for r in plain]
    assert tuned[-1].loss != plain[-1].loss and not ours.snapshot.clients


def test_without_epochs_it_is_fedavg() -> None:
    (_, ours), (_, fedavg) = (
        finished(toy_config("fedavg_ft", {"epochs": 0})),
        finished(toy_config("fedavg")),
    )
    assert [r.loss for r in ours] == [r.loss for r in fedavg]
