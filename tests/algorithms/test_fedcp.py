"""FedCP against its equations written out, and its variants against what they must be."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy import toy_algorithm, toy_client, toy_config, toy_run, toy_server, toy_simulator, toy_text

from pfl_bench.algorithms.fedcp import FedCP, PolicyNetwork
from pfl_bench.base.errors import UserError
from pfl_bench.config.hyper import resolve
from pfl_bench.engine.algorithm import Start, Upload
from pfl_bench.engine.client import Client, Message
from pfl_bench.store.records import same_result

Values = Mapping[str, Any]

ABLATIONS: dict[str, Values] = {
    "w.o. cs": {"cs": False},
    "w.o. ss": {"ss": False},
    "w.o. cs & ss": {"cs": False, "ss": False},
    "w.o. GFM": {"gfm": False},
    "w.o. CPN": {"cpn": False},
    "w.o. CPN & GFM": {"cpn": False, "gfm": False},
    "w.o. CPN & GH": {"cpn": False, "gh": False},
    "w.o. CPN & GFM & GH": {"cpn": False, "gfm": False, "gh": False},
}


def make(
    hyper: Values | None = None, index: int = 0, round: int = 1, **changes: Any
) -> tuple[FedCP, Client, Message]:
    """A client that has received a global model unlike its own head, and what it received."""
    algorithm = toy_algorithm(toy_config("fedcp", hyper, **changes))
    assert isinstance(algorithm, FedCP)
    client, start = toy_client(algorithm, index=index, round=round)
    received = algorithm.download(toy_server(algorithm, start), index)
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(len(start.parts["head"]), generator=generator)
    client.state["head"] = start.parts["head"] + 0.05 * noise
    algorithm.load(client, received)
    return algorithm, client, received


def linear(client: Client, part: str) -> nn.Linear:
    module = client.net.module(part)
    assert isinstance(module, nn.Linear)
    return module


def some_features(client: Client, rows: int = 5) -> Tensor:
    x = next(client.shard.evaluation_batches("train")).x[:rows]
    with torch.no_grad():
        return client.net.module("extractor")(x)


def client_vector(client: Client) -> Tensor:
    """v/‖v‖ with v the sum of the personal head's rows."""
    v = sum((row for row in linear(client, "head").weight.detach()), torch.zeros(512))
    return v / math.sqrt(sum(x * x for x in v.tolist()))


def naive_policy(cpn: nn.Module, condition: Tensor) -> tuple[Tensor, Tensor]:
    """FC, layer norm over all 2K, ReLU, then a softmax over each pair: a sample at a time."""
    fc, norm = list(cpn.children())[:2]
    assert isinstance(fc, nn.Linear)
    assert isinstance(norm, nn.LayerNorm)
    r, s = [], []
    for c in condition:
        z = fc.weight @ c + fc.bias
        z = (z - z.mean()) / torch.sqrt(((z - z.mean()) ** 2).mean() + norm.eps)
        a = torch.clamp(norm.weight * z + norm.bias, min=0)
        k = len(a) // 2
        first, second = a[:k].exp(), a[k:].exp()
        r.append(first / (first + second))
        s.append(second / (first + second))
    return torch.stack(r), torch.stack(s)


def naive_mmd(x: Tensor, y: Tensor) -> Tensor:
    """The MMD from differences of all pairs of rows."""

    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        squared = ((a[:, None] - b[None, :]) ** 2).sum(2)
        return sum((torch.exp(-squared / (2 * w)) for w in (10, 15, 20, 50)), squared * 0).mean()

    return mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)


def assert_same_parameters(client: Client, part: str, naive: nn.Module) -> None:
    for ours, theirs in zip(client.net.module(part).parameters(), naive.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


# --- the forward pass -----------------------------------------------------------------------------


def test_the_policy_equals_the_equations() -> None:
    algorithm, client, _ = make()
    h = some_features(client)
    r, s = algorithm.policy(client, h)
    naive_r, naive_s = naive_policy(client.net.module("cpn"), client_vector(client) * h)
    torch.testing.assert_close(r, naive_r, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(s, naive_s, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["layer", "batch", "group"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
@pytest.mark.parametrize("gumbel", [False, True])
def test_r_and_s_lie_between_0_and_1_and_sum_to_1(norm: str, activation: str, gumbel: bool) -> None:
    algorithm, client, _ = make({"norm": norm, "activation": activation, "gumbel": gumbel})
    r, s = algorithm.policy(client, some_features(client))
    assert 0 < min(r.min(), s.min()) <= max(r.max(), s.max()) < 1
    torch.testing.assert_close(r + s, torch.ones_like(r))


def test_the_global_head_reads_r_h_and_the_personal_head_s_h() -> None:
    algorithm, client, _ = make()
    x = next(client.shard.evaluation_batches("test")).x
    h = client.net.module("extractor")(x)
    r, s = naive_policy(client.net.module("cpn"), client_vector(client) * h)
    shared, own = linear(client, "global_head"), linear(client, "head")
    expected = (r * h) @ shared.weight.T + shared.bias + (s * h) @ own.weight.T + own.bias
    torch.testing.assert_close(algorithm.predict(client, x), expected, rtol=1e-4, atol=1e-4)


# --- local learning -------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.5, 5.0])
def test_local_learning_equals_sgd_on_the_papers_loss(lam: float) -> None:
    algorithm, client, received = make({"lambda": lam}, lr=0.005)
    v = client_vector(client)
    names = ("extractor", "head", "cpn")
    extractor, head, cpn = (copy.deepcopy(client.net.module(name)) for name in names)
    shared_extractor, shared_head = copy.deepcopy(extractor), linear(client, "global_head")
    weights = [p for module in (extractor, head, cpn) for p in module.parameters()]
    sgd = torch.optim.SGD(weights, client.lr)
    for batch in client.batches():
        sgd.zero_grad()
        h = extractor(batch.x)
        r, s = naive_policy(cpn, v * h)
        entropy = F.cross_entropy(shared_head(r * h) + head(s * h), batch.y)
        (entropy + lam * naive_mmd(h, shared_extractor(batch.x).detach())).backward()
        sgd.step()
    algorithm.local_update(client, received)
    for name, naive in zip(names, (extractor, head, cpn), strict=True):
        assert_same_parameters(client, name, naive)


def test_v_is_taken_once_before_local_learning() -> None:
    algorithm, client, _ = make()
    h = some_features(client)
    before = algorithm.policy(client, h)[1]
    client.net["head"].uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(algorithm.policy(client, h)[1], before)


def test_v_is_taken_anew_in_every_round_from_the_head_the_client_kept() -> None:
    algorithm, client, received = make()
    head = torch.rand(len(client.state["head"]), generator=torch.Generator().manual_seed(0))
    client.state["head"] = head
    algorithm.load(client, received)
    v = head[: 4 * 512].view(4, 512).sum(0)
    torch.testing.assert_close(client.memo["v"], v / v.norm(), rtol=1e-5, atol=1e-7)


def test_local_learning_cannot_change_v() -> None:
    """Gradients of cross-entropy sum to zero over the classes, hence over the head's rows."""
    algorithm, client, received = make()
    before = client.net["head"].clone()
    v = client_vector(client)
    algorithm.local_update(client, received)
    assert (client.net["head"] - before).abs().max().item() > 1e-3
    torch.testing.assert_close(client_vector(client), v, rtol=1e-4, atol=1e-6)


def test_no_gradient_flows_through_v() -> None:
    _, client, _ = make()
    assert not client.memo["v"].requires_grad


def test_nothing_reaches_the_frozen_parts() -> None:
    algorithm, client, _ = make()
    client.memo["aligned"] = client.frozen_features("global_extractor")
    algorithm.loss(client, next(client.batches())).backward()
    for part in ("global_head", "global_extractor"):
        assert all(p.grad is None for p in client.net.module(part).parameters())
    for part in ("extractor", "head", "cpn"):
        gradients = [p.grad for p in client.net.module(part).parameters()]
        assert all(g is not None and bool(g.any()) for g in gradients)


def test_local_learning_leaves_the_frozen_parts_as_received() -> None:
    algorithm, client, received = make()
    algorithm.local_update(client, received)
    assert torch.equal(client.net["global_head"], received["global_head"])
    assert torch.equal(client.net["global_extractor"], received["extractor"])


# --- what is sent ---------------------------------------------------------------------------------


def test_the_upload_is_extractor_cpn_and_the_mean_of_both_heads() -> None:
    algorithm, client, received = make()
    sent = algorithm.local_update(client, received)
    assert set(sent) == {"extractor", "global_head", "cpn"}
    torch.testing.assert_close(
        sent["global_head"], 0.5 * received["global_head"] + 0.5 * client.state["head"]
    )
    assert torch.equal(sent["extractor"], client.net["extractor"])
    assert torch.equal(sent["cpn"], client.net["cpn"])


def test_the_personal_head_is_kept_as_trained() -> None:
    algorithm, client, received = make()
    before = client.state["head"].clone()
    algorithm.local_update(client, received)
    assert torch.equal(client.state["head"], client.net["head"])
    assert not torch.equal(client.state["head"], before)


def test_upload_and_download_count_one_extractor_one_head_and_the_cpn() -> None:
    algorithm, client, received = make()
    extractor = 32 * 25 + 32 + 64 * 32 * 25 + 64 + 64 * 512 + 512
    expected = extractor + 512 * 4 + 4 + 527_360
    sent = algorithm.local_update(client, received)
    for message in (received, sent):
        assert sum(value.numel() for value in message.values()) == expected


def test_the_server_averages_every_part_by_training_samples() -> None:
    algorithm, _, received = make()
    shares = (0.2, 0.3, 0.5)
    uploads = [
        Upload(i, share, {name: value * (i + 1) for name, value in received.items()})
        for i, share in enumerate(shares)
    ]
    after = algorithm.aggregate(toy_server(algorithm, received), iter(uploads))
    for name, value in received.items():
        torch.testing.assert_close(after[name], (0.2 * 1 + 0.3 * 2 + 0.5 * 3) * value)


def test_all_heads_start_from_one_value() -> None:
    algorithm = toy_algorithm(toy_config("fedcp"))
    _, start = toy_client(algorithm)
    assert torch.equal(start.parts["global_head"], start.parts["head"])
    assert torch.equal(start.parts["global_extractor"], start.parts["extractor"])


# --- designs of the CPN ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "expected"), [(1, 527_360), (2, 790_016), (3, 1_052_672), (4, 1_315_328)]
)
@pytest.mark.parametrize("norm", ["layer", "batch", "group"])
def test_the_cpn_has_the_papers_parameters_at_width_512(
    layers: int, expected: int, norm: str
) -> None:
    cpn = PolicyNetwork(512, layers, norm, "relu")
    assert sum(p.numel() for p in cpn.parameters()) == expected


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_deeper_cpns_put_layers_of_k_to_k_in_front(layers: int) -> None:
    cpn = PolicyNetwork(6, layers, "layer", "relu")
    shapes = [(m.in_features, m.out_features) for m in cpn if isinstance(m, nn.Linear)]
    assert shapes == [(6, 6)] * (layers - 1) + [(6, 12)]


def test_deeper_cpns_are_not_one_linear_map() -> None:
    deeper = nn.Sequential(*list(PolicyNetwork(6, 3, "layer", "relu"))[:-2])
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    chord = deeper(x).mean(0)
    assert not torch.allclose(deeper(x.mean(0)), chord, atol=1e-4)


def intermediate(norm: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the fully connected layer gives and what normalisation makes of it."""
    cpn = PolicyNetwork(x.shape[1], 1, norm, "relu")
    with torch.no_grad():
        z = cpn[0](x)
        return z, cpn[1](z)


def standardised(z: Tensor, dim: int) -> Tensor:
    centred = z - z.mean(dim, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(dim, keepdim=True) + 1e-5)


def test_norms_are_taken_over_what_the_paper_says() -> None:
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    z, layer = intermediate("layer", x)
    torch.testing.assert_close(layer, standardised(z, 1))
    z, batch = intermediate("batch", x)
    torch.testing.assert_close(batch, standardised(z, 0))
    z, group = intermediate("group", x)
    halves = [standardised(half, 1) for half in z.split(6, dim=1)]
    torch.testing.assert_close(group, torch.cat(halves, 1))


@pytest.mark.parametrize(
    ("name", "function"),
    [("relu", lambda z: z.clamp(min=0)), ("tanh", torch.tanh), ("sigmoid", torch.sigmoid)],
)
def test_the_activation_is_applied_last(name: str, function: Any) -> None:
    cpn = PolicyNetwork(6, 1, "layer", name)
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cpn(x), function(cpn[1](cpn[0](x))))


def test_group_norm_normalises_the_values_for_r_and_those_for_s_apart() -> None:
    """Shifting all intermediates of s must not change the policy under group norm."""
    algorithm, client, _ = make({"norm": "group"})
    h = some_features(client)
    before = algorithm.policy(client, h)[1]
    fc = next(client.net.module("cpn").children())
    assert isinstance(fc, nn.Linear)
    with torch.no_grad():
        fc.bias[512:] += 3.0
    torch.testing.assert_close(algorithm.policy(client, h)[1], before, rtol=1e-3, atol=1e-4)


def test_batch_norm_with_batches_of_one_sample_is_impossible_with_the_reason() -> None:
    algorithm, _, _ = make({"norm": "batch"}, batch_size=1)
    reason = algorithm.impossible()
    assert reason is not None
    assert "batch" in reason


# --- ablations ------------------------------------------------------------------------------------


def test_without_cs_the_cpn_reads_the_features_alone() -> None:
    algorithm, client, _ = make(ABLATIONS["w.o. cs"])
    h = some_features(client)
    naive_s = naive_policy(client.net.module("cpn"), h)[1]
    torch.testing.assert_close(algorithm.policy(client, h)[1], naive_s, rtol=1e-4, atol=1e-5)


def test_without_ss_the_cpn_reads_the_client_vector_alone() -> None:
    algorithm, client, _ = make(ABLATIONS["w.o. ss"])
    h = some_features(client)
    naive_s = naive_policy(client.net.module("cpn"), client_vector(client).expand_as(h))[1]
    torch.testing.assert_close(algorithm.policy(client, h)[1], naive_s, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["w.o. ss", "w.o. cs & ss"])
def test_without_ss_all_samples_share_one_policy(variant: str) -> None:
    algorithm, client, _ = make(ABLATIONS[variant])
    s = algorithm.policy(client, some_features(client))[1]
    torch.testing.assert_close(s, s[:1].expand_as(s))


def test_with_ss_samples_have_policies_of_their_own() -> None:
    algorithm, client, _ = make()
    s = algorithm.policy(client, some_features(client))[1]
    assert not torch.allclose(s, s[:1].expand_as(s), atol=1e-3)


def test_without_cs_and_ss_one_random_vector_serves_all_clients_and_rounds() -> None:
    variant = ABLATIONS["w.o. cs & ss"]
    vectors = [make(variant, index=i, round=t)[1].memo["v"] for i, t in ((0, 1), (2, 1), (0, 3))]
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[0], vectors[2])
    assert not torch.equal(vectors[0], make(variant, seed=1)[1].memo["v"])


def test_without_gfm_the_loss_is_cross_entropy_and_no_extractor_is_frozen() -> None:
    algorithm, client, _ = make(ABLATIONS["w.o. GFM"])
    batch = next(client.batches())
    expected = F.cross_entropy(algorithm.predict(client, batch.x), batch.y)
    assert torch.equal(algorithm.loss(client, batch), expected)
    assert "global_extractor" not in client.net


@pytest.mark.parametrize("variant", ["w.o. CPN", "w.o. CPN & GFM"])
def test_without_cpn_both_heads_read_all_features(variant: str) -> None:
    algorithm, client, _ = make(ABLATIONS[variant])
    x = next(client.batches()).x
    h = client.net.module("extractor")(x)
    expected = linear(client, "global_head")(h) + linear(client, "head")(h)
    torch.testing.assert_close(algorithm.predict(client, x), expected)
    assert "cpn" not in client.net


def test_without_cpn_and_gh_the_own_head_predicts_and_features_are_aligned() -> None:
    algorithm, client, _ = make(ABLATIONS["w.o. CPN & GH"])
    with torch.no_grad():
        client.net["global_extractor"].add_(0.01)
    client.memo["aligned"] = client.frozen_features("global_extractor")
    batch = next(client.batches())
    h = client.net.module("extractor")(batch.x)
    entropy = F.cross_entropy(linear(client, "head")(h), batch.y)
    distance = naive_mmd(h, client.net.module("global_extractor")(batch.x))
    expected = entropy + 5 * distance
    torch.testing.assert_close(algorithm.loss(client, batch), expected, rtol=1e-5, atol=1e-5)


def test_without_everything_it_is_fedper_bit_for_bit() -> None:
    ours = toy_run(toy_config("fedcp", ABLATIONS["w.o. CPN & GFM & GH"]))
    assert all(map(same_result, ours, toy_run(toy_config("fedper"))))


def test_with_lambda_0_it_is_without_gfm_bit_for_bit() -> None:
    ours = toy_run(toy_config("fedcp", {"lambda": 0}))
    assert all(map(same_result, ours, toy_run(toy_config("fedcp", {"gfm": False}))))


def test_every_ablation_gives_a_training_loss_of_its_own() -> None:
    """Guards against an option that is accepted and then ignored."""
    losses = {
        name: toy_run(toy_config("fedcp", hyper, rounds=1, lr=0.01))[0].train_loss
        for name, hyper in {"FedCP": {}, **ABLATIONS}.items()
    }
    assert len(set(losses.values())) == 9


def test_the_cpn_without_the_global_head_is_refused() -> None:
    with pytest.raises(UserError, match="gh=false"):
        toy_algorithm(toy_config("fedcp", {"gh": False}))


# --- Gumbel noise ---------------------------------------------------------------------------------


def test_gumbel_noise_is_the_same_under_one_seed_and_any_number_of_workers() -> None:
    config = toy_config("fedcp", {"gumbel": True}, rounds=2)
    first, again, two = toy_run(config), toy_run(config), toy_run(config, workers=2)
    assert all(map(same_result, first, again))
    assert all(map(same_result, first, two))


def test_gumbel_noise_prefers_r_as_often_as_the_plain_policy_says() -> None:
    """Gumbel-max: with noise, r exceeds s with probability r of the plain softmax."""
    plain, client, _ = make()
    h = some_features(client, rows=1)
    expected = plain.policy(client, h)[0][0]
    noisy, client, _ = make({"gumbel": True})
    draws = 2_000
    with torch.no_grad():
        r, s = noisy.policy(client, h.expand(draws, -1))
    share = (r > s).float().mean(0)
    error = torch.sqrt(expected * (1 - expected) / draws)
    assert ((share - expected).abs() / error).max().item() < 5


def test_gumbel_noise_differs_between_clients_rounds_and_from_training_to_scoring() -> None:
    drawn = []
    for index, round in ((0, 1), (1, 1), (0, 2)):
        _, client, _ = make({"gumbel": True}, index=index, round=round)
        drawn.append(torch.rand(3, generator=client.memo["noise"]).tolist())
    algorithm, client, received = make({"gumbel": True})
    algorithm.scored(client, received)
    drawn.append(torch.rand(3, generator=client.memo["noise"]).tolist())
    assert all(drawn[0] != other for other in drawn[1:])


# --- scoring and series ---------------------------------------------------------------------------


def naive_loss(client: Client, which: str) -> float:
    """Mean cross-entropy of the model in the workspace, with v as in `client.memo`."""
    batch = next(client.shard.evaluation_batches(which))
    with torch.no_grad():
        h = client.net.module("extractor")(batch.x)
        r, s = naive_policy(client.net.module("cpn"), client.memo["v"] * h)
        logits = linear(client, "global_head")(r * h) + linear(client, "head")(s * h)
    return F.cross_entropy(logits, batch.y).item()


def test_by_default_the_model_as_received_with_the_own_head_is_scored() -> None:
    simulator = toy_simulator(toy_config("fedcp", rounds=2))
    *_, record = simulator.rounds()
    assert record.loss is not None
    for index in range(4):
        client, _ = toy_client(simulator.algorithm, index=index)
        client.net.load(simulator.snapshot.server)
        client.net.load(simulator.snapshot.clients[index])
        client.memo["v"] = client_vector(client)
        assert record.loss[index] == pytest.approx(naive_loss(client, "test"), rel=1e-4)


def test_score_after_is_that_of_the_model_local_learning_leaves() -> None:
    simulator = toy_simulator(toy_config("fedcp", {"score": "after"}, rounds=1))
    (record,) = simulator.rounds()
    assert record.loss is not None
    for index in range(4):
        algorithm = simulator.algorithm
        client, start = toy_client(algorithm, index=index)
        v = client_vector(client)
        algorithm.local_update(client, algorithm.download(toy_server(algorithm, start), index))
        client.memo["v"] = v
        assert record.loss[index] == pytest.approx(naive_loss(client, "test"), rel=1e-4)


def test_when_the_score_is_taken_does_not_change_training() -> None:
    before, after = (toy_run(toy_config("fedcp", {"score": when})) for when in ("before", "after"))
    assert [r.train_loss for r in before] == [r.train_loss for r in after]


def recorded_policies(which: str) -> tuple[dict[str, Any], list[Tensor]]:
    """The series of a run, and s of every client's samples by the equations."""
    simulator = toy_simulator(toy_config("fedcp", rounds=1, record=("pir", "policy")))
    (record,) = simulator.rounds()
    policies = []
    for index in range(4):
        client, _ = toy_client(simulator.algorithm, index=index)
        client.net.load(simulator.snapshot.server)
        client.net.load(simulator.snapshot.clients[index])
        x = next(client.shard.evaluation_batches(which)).x
        with torch.no_grad():
            h = client.net.module("extractor")(x)
            condition = client_vector(client) * h
            policies.append(naive_policy(client.net.module("cpn"), condition)[1])
    return record.extras, policies


def test_pir_is_the_mean_of_s_over_training_samples_and_features() -> None:
    extras, policies = recorded_policies("train")
    naive = [sum(s.mean(0).tolist()) / s.shape[1] for s in policies]
    assert extras["pir"] == pytest.approx(naive, rel=1e-4)


def test_policy_holds_quantiles_of_s_over_test_samples() -> None:
    extras, policies = recorded_policies("test")
    for ours, s in zip(extras["policy"], policies, strict=True):
        naive = np.quantile(s.double().numpy(), [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1])
        assert ours == pytest.approx(naive.tolist(), rel=1e-3)


@pytest.mark.parametrize("hyper", [{"gumbel": True}, {"gumbel": True, "score": "after"}])
def test_recording_changes_nothing_else(hyper: Values) -> None:
    plain = toy_run(toy_config("fedcp", hyper, rounds=2))
    recorded = toy_run(toy_config("fedcp", hyper, rounds=2, record=("pir", "policy")))
    assert all(
        same_result(a, dataclasses.replace(b, extras={}))
        for a, b in zip(plain, recorded, strict=True)
    )


def test_without_cpn_the_series_are_empty() -> None:
    config = toy_config("fedcp", {"cpn": False}, rounds=1, record=("pir", "policy"))
    (record,) = toy_run(config)
    assert record.extras == {"pir": [None] * 4, "policy": [None] * 4}


# --- hyper-parameters -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "expected"),
    [("cnn", 5.0), ("resnet18", 1.0), ("fasttext", 1), ("cnn_small", 5), ("resnet_small", 1)],
)
def test_lambda_follows_the_model(model: str, expected: float) -> None:
    assert resolve(FedCP.Hyper, model, {}, "fedcp").lam == expected


def test_the_cpn_of_fasttext_is_as_wide_as_its_features() -> None:
    text = toy_text()
    algorithm = toy_algorithm(toy_config("fedcp", model="fasttext"), text)
    start: Start = toy_client(algorithm, text)[1]
    assert start.parts["cpn"].numel() == 32 * 64 + 64 + 2 * 64


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lambda", -1),
        ("layers", 0),
        ("layers", 5),
        ("norm", "instance"),
        ("activation", "gelu"),
        ("score", "during"),
        ("gfm", "maybe"),
        ("lamda", 5),
    ],
)
def test_a_value_outside_the_allowed_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=name):
        toy_config("fedcp", {name: value})
