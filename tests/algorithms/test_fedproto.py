"""FedProto: prototypes, loss and prediction against loops over samples, and Local."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from by_hand import finished, meet, plain_model, recorded_batches
from torch import Tensor
from toy import toy_algorithm, toy_config, toy_server, toy_simulator

from pfl_bench.engine.algorithm import Upload
from pfl_bench.engine.client import Client
from pfl_bench.store.records import DamagedError


def prototypes(client: Client, labels: list[int]) -> dict[int, Tensor]:
    width = client.net.module("head").in_features
    return {label: torch.linspace(-1, 1, width) * (label + 1) for label in labels}


def test_a_round_is_torchs_sgd_on_the_loss_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a class that has no prototype yet, which counts for nothing."""
    algorithm, client, _ = meet("fedproto", {"lambda": 2.0})
    held = client.shard.pool.y[client.shard.train].unique().tolist()
    assert len(held) > 1
    known = prototypes(client, held[1:])
    model = plain_model(client, client.state)
    batches = recorded_batches(client, monkeypatch)
    algorithm.local_update(client, {"prototypes": known})

    optimiser = torch.optim.SGD(model.parameters(), client.lr)
    for batch in batches:
        features = model[0](batch.x)
        distances = [
            ((row - known[label]) ** 2).mean()
            for row, label in zip(features, batch.y.tolist(), strict=True)
            if label in known
        ]
        loss = F.cross_entropy(model[1](features), batch.y)
        if distances:
            loss = loss + 2.0 * torch.stack(distances).sum() / len(batch.y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    trained = {part: value.clone() for part, value in client.state.items()}
    client.net.load(trained)
    for part, module in zip(trained, model, strict=True):
        pairs = zip(client.net.module(part).parameters(), module.parameters(), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-3, atol=1e-4)


def test_what_is_sent_are_the_mean_features_of_each_class() -> None:
    algorithm, client, _ = meet("fedproto")
    sent = algorithm.local_update(client, {"prototypes": {}})
    by_class: dict[int, list[Tensor]] = {}
    for position in range(client.samples):
        batch = next(client.shard.evaluation_batches("train", torch.tensor([position])))
        with torch.no_grad():
            feature = client.net.module("extractor")(batch.x)[0]
        by_class.setdefault(int(batch.y), []).append(feature)
    assert sent["prototypes"].keys() == sent["counts"].keys() == by_class.keys()
    for label, features in by_class.items():
        assert int(sent["counts"][label]) == len(features)
        expected = torch.stack(features).mean(0)
        torch.testing.assert_close(sent["prototypes"][label], expected, rtol=1e-4, atol=1e-5)


def test_the_server_averages_by_class_over_those_who_hold_it() -> None:
    algorithm = toy_algorithm(toy_config("fedproto"))

    def upload(client: int, held: dict[int, tuple[int, float]]) -> Upload:
        means = {label: torch.tensor([value]) for label, (_, value) in held.items()}
        counts = {label: torch.tensor(count) for label, (count, _) in held.items()}
        return Upload(client, 0.5, {"prototypes": means, "counts": counts})

    before = {"prototypes": {0: torch.tensor([9.0]), 3: torch.tensor([7.0])}}
    uploads = iter([upload(0, {0: (1, 2.0), 1: (5, 1.0)}), upload(1, {0: (3, 6.0)})])
    after = algorithm.aggregate(toy_server(algorithm, before), uploads)["prototypes"]
    assert {label: float(value) for label, value in after.items()} == {0: 5.0, 1: 1.0, 3: 7.0}


def test_the_nearest_prototype_predicts() -> None:
    algorithm, client, _ = meet("fedproto")
    known = prototypes(client, [0, 2, 3])
    algorithm.scored(client, {"prototypes": known})
    batch = next(client.shard.evaluation_batches("test"))
    with torch.no_grad():
        logits = algorithm.predict(client, batch.x)
        features = client.net.module("extractor")(batch.x)
    for row, feature in zip(logits, features, strict=True):
        distances = {label: float((feature - mean).norm()) for label, mean in known.items()}
        assert int(row.argmax()) == min(distances, key=distances.__getitem__)
    assert bool(torch.isfinite(logits).all()) and not (logits.argmax(1) == 1).any()


def test_without_the_tie_and_with_its_head_it_is_local() -> None:
    hyper = {"lambda": 0, "predict": "head"}
    (_, ours), (_, local) = finished(toy_config("fedproto", hyper)), finished(toy_config("local"))
    assert ours[-1].loss == pytest.approx(local[-1].loss, rel=1e-5)


def test_prototypes_travel_and_no_parameters() -> None:
    simulator, (first, second) = finished(toy_config("fedproto", rounds=2))
    width = simulator.task.build_model().features
    held = sum(int((shard.class_counts > 0).sum()) for shard in simulator.shards)
    assert first.parameters_down == 0
    assert first.parameters_up == second.parameters_up == held * width
    assert first.bytes_up == held * (4 * width + 8)
    assert second.parameters_down == 4 * 4 * width


@pytest.mark.parametrize(
    ("label", "value", "problem"),
    [
        ("#0", torch.zeros(9999), "class 0 is not"),
        ("#0", torch.zeros(2, 2), "class 0 is not"),
        ("#0/0", torch.zeros(3), "class 0 is not"),
        ("#99999", torch.zeros(3), "no class 99999"),
        ("#-1", torch.zeros(3), "no class -1"),
        ("name", torch.zeros(3), "no class name"),
        ("#0", None, "of another type"),
    ],
)
def test_prototypes_out_of_a_checkpoint_are_vectors_of_features_by_class(
    label: str, value: Tensor | None, problem: str
) -> None:
    simulator = toy_simulator(toy_config("fedproto"))
    width = simulator.algorithm.task.build_model().features
    sound = {"server/prototypes/#0": torch.zeros(width)}
    other = torch.zeros(width).double() if value is None else value
    with pytest.raises(DamagedError, match=problem):
        simulator.resume(1, {f"server/prototypes/{label}": other})
    simulator.resume(1, sound)
