"""FedProx + FT: fine-tuning without the proximal term, and training that is FedProx's."""

from __future__ import annotations

import pytest
import torch
from by_hand import MODEL, assert_holds, finished, meet, plain_model, recorded_batches, sgd
from toy import toy_config

MU = {"mu": 0.5}


def test_fine_tuning_has_no_proximal_term(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, client, received = meet("fedprox_ft", {**MU, "epochs": 2})
    model = plain_model(client, received)
    batches = recorded_batches(client, monkeypatch)
    algorithm.scored(client, received)
    scored = client.net.copy(MODEL)
    sgd(model, batches, client.lr)
    assert_holds(client, scored, model)


def test_training_is_that_of_fedprox() -> None:
    (ours, tuned), (theirs, plain), (fedavg, _) = (
        finished(toy_config(algo, hyper))
        for algo, hyper in (("fedprox_ft", MU), ("fedprox", MU), ("fedavg", {}))
    )
    for part in MODEL:
        assert torch.equal(ours.snapshot.server[part], theirs.snapshot.server[part])
    assert not torch.equal(ours.snapshot.server["head"], fedavg.snapshot.server["head"])
    assert tuned[-1].loss != plain[-1].loss


def test_without_epochs_it_is_fedprox() -> None:
    (_, ours), (_, fedprox) = (
        finished(toy_config("fedprox_ft", {**MU, "epochs": 0})),
        finished(toy_config("fedprox", MU)),
    )
    assert [r.loss for r in ours] == [r.loss for r in fedprox]
