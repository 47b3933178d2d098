"""FedRoD against a naive loop with two optimisers, and against FedAvg."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy import toy_algorithm, toy_client, toy_config, toy_server, toy_simulator

from pfl_bench.base.errors import UserError
from pfl_bench.engine.batches import Shard
from pfl_bench.engine.client import Client


def modules(client: Client) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Copies of extractor, global head and personal head."""
    names = ("extractor", "head", "personal_head")
    first, second, third = (copy.deepcopy(client.net.module(name)) for name in names)
    return first, second, third


def naive_counts(client: Client) -> list[int]:
    counts = [0] * client.task.classes
    for batch in client.shard.evaluation_batches("train"):
        for label in batch.y.tolist():
            counts[label] += 1
    return counts


def naive_balanced_softmax(logits: Tensor, y: Tensor, counts: list[int]) -> Tensor:
    """−log(n_y e^{z_y} / Σ n_c e^{z_c}), over the classes the client holds."""
    shares = torch.tensor(counts) * logits.exp()
    return -(shares[torch.arange(len(y)), y] / shares.sum(1)).log().mean()


def test_local_training_equals_two_optimisers_side_by_side() -> None:
    algorithm = toy_algorithm(toy_config("fedrod"))
    client, start = toy_client(algorithm)
    extractor, head, personal = modules(client)
    counts = naive_counts(client)
    shared_sgd = torch.optim.SGD([*extractor.parameters(), *head.parameters()], client.lr)
    personal_sgd = torch.optim.SGD(personal.parameters(), client.lr)
    for batch in client.batches():
        shared_sgd.zero_grad()
        personal_sgd.zero_grad()
        features = extractor(batch.x)
        logits = head(features)
        naive_balanced_softmax(logits, batch.y, counts).backward()
        corrected = logits.detach() + personal(features.detach())
        F.cross_entropy(corrected, batch.y).backward()
        shared_sgd.step()
        personal_sgd.step()
    algorithm.local_update(client, algorithm.download(toy_server(algorithm, start), 0))
    for name, naive in zip(
        ("extractor", "head", "personal_head"), (extractor, head, personal), strict=True
    ):
        for ours, theirs in zip(client.net.parameters([name]), naive.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_personal_loss_reaches_neither_extractor_nor_global_head() -> None:
    algorithm = toy_algorithm(toy_config("fedrod"))
    client, _ = toy_client(algorithm)
    batch = next(client.batches())
    shared = ("extractor", "head")
    ours = client.net.gradients(algorithm.loss(client, batch), shared)
    extractor, head, _ = modules(client)
    generic = naive_balanced_softmax(head(extractor(batch.x)), batch.y, naive_counts(client))
    alone = torch.autograd.grad(generic, [*extractor.parameters(), *head.parameters()])
    for a, b in zip(ours, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_the_balanced_softmax_does_not_reach_the_personal_head() -> None:
    algorithm = toy_algorithm(toy_config("fedrod"))
    client, _ = toy_client(algorithm)
    batch = next(client.batches())
    ours = client.net.gradients(algorithm.loss(client, batch), ("personal_head",))
    extractor, head, personal = modules(client)
    features = extractor(batch.x)
    alone = F.cross_entropy(head(features) + personal(features), batch.y)
    expected = torch.autograd.grad(alone, list(personal.parameters()))
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_class_counts_are_those_of_the_clients_training_samples() -> None:
    algorithm = toy_algorithm(toy_config("fedrod"))
    for index in range(algorithm.task.clients):
        client, _ = toy_client(algorithm, index=index)
        assert client.shard.class_counts.tolist() == naive_counts(client)


def test_a_class_the_client_does_not_hold_leaves_the_loss_finite() -> None:
    config = toy_config("fedrod", setting="pathological", beta=None, classes_per_client=2)
    algorithm = toy_algorithm(config)
    client, _ = toy_client(algorithm)
    assert 0 in client.shard.class_counts.tolist()
    loss = algorithm.loss(client, next(client.batches()))
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in client.net.gradients(loss))


def test_with_equal_class_counts_the_shared_model_is_fedavgs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Shard, "class_counts", torch.ones(4))
    ours, fedavg = (toy_simulator(toy_config(name)) for name in ("fedrod", "fedavg"))
    for simulator in (ours, fedavg):
        for _ in simulator.rounds():
            pass
    for part in ("extractor", "head"):
        assert torch.equal(ours.snapshot.server[part], fedavg.snapshot.server[part])


def test_the_personal_head_starts_as_the_global_one() -> None:
    client, start = toy_client(toy_algorithm(toy_config("fedrod")))
    assert torch.equal(start.parts["personal_head"], start.parts["head"])
    assert torch.equal(client.state["personal_head"], start.parts["head"])


def test_the_personal_head_is_kept_and_never_sent() -> None:
    algorithm = toy_algorithm(toy_config("fedrod"))
    client, start = toy_client(algorithm)
    received = algorithm.download(toy_server(algorithm, start), 0)
    sent = algorithm.local_update(client, received)
    assert set(received) == set(sent) == {"extractor", "head"}
    assert torch.equal(client.state["personal_head"], client.net["personal_head"])
    assert not torch.equal(client.state["personal_head"], start.parts["personal_head"])


def test_the_score_is_that_of_the_sum_of_logits_with_shared_parts_as_received() -> None:
    simulator = toy_simulator(toy_config("fedrod", rounds=2))
    *_, record = simulator.rounds()
    assert record.loss is not None
    for index, shard in enumerate(simulator.shards):
        client, _ = toy_client(simulator.algorithm, index=index)
        client.net.load(simulator.snapshot.server)
        client.net.load(simulator.snapshot.clients[index])
        extractor, head, personal = modules(client)
        batch = next(shard.evaluation_batches("test"))
        with torch.no_grad():
            features = extractor(batch.x)
            logits = head(features) + personal(features)
        assert record.loss[index] == pytest.approx(F.cross_entropy(logits, batch.y).item())


def test_without_hyper_parameters_any_is_refused() -> None:
    with pytest.raises(UserError, match="mu"):
        toy_config("fedrod", {"mu": 1})
