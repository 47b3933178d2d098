"""FedAMP against double loops, closed forms and the methods it degenerates to."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from toy import toy_algorithm, toy_client, toy_config, toy_run, toy_server, toy_simulator

from pfl_bench.algorithms import fedamp
from pfl_bench.algorithms.fedamp import attention, mix, squared_distances
from pfl_bench.base.errors import UserError
from pfl_bench.engine.algorithm import Algorithm, Upload
from pfl_bench.engine.batches import Batch
from pfl_bench.engine.client import Client


def random_models(count: int, seed: int = 0, size: int = 40, spread: float = 0.2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [spread * torch.randn(size, generator=generator) for _ in range(count)]


def naive_squared_distances(models: list[Tensor]) -> list[list[float]]:
    return [[((a.double() - b.double()) ** 2).sum().item() for b in models] for a in models]


def naive_attention(models: list[Tensor], sigma: float, alpha_k: float) -> list[list[float]]:
    """ξ_ij = α_k exp(−‖w_i − w_j‖²/σ)/σ, ξ_ii the rest."""
    squared, n = naive_squared_distances(models), len(models)
    xi = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            if i != j:
                xi[i][j] = alpha_k * math.exp(-squared[i][j] / sigma) / sigma
        xi[i][i] = 1 - sum(xi[i])
    return xi


# --- the server's weights -------------------------------------------------------------------------


@pytest.mark.parametrize(("sigma", "alpha"), [(1.0, 1.0), (0.1, 1.0), (3.0, 0.4)])
def test_weights_equal_double_loops(sigma: float, alpha: float) -> None:
    models = random_models(5)
    ours = attention(squared_distances(models), sigma, alpha)
    naive = naive_attention(models, sigma, alpha_k=alpha * sigma / 4)
    torch.testing.assert_close(ours, torch.tensor(naive, dtype=torch.float64), rtol=1e-5, atol=1e-9)


@given(
    count=st.integers(1, 40),
    seed=st.integers(0, 1000),
    spread=st.sampled_from([0.0, 1e-4, 0.1, 10.0]),
    sigma=st.floats(1e-3, 1e3),
    alpha=st.floats(0, 1),
)
def test_weights_of_a_client_lie_in_0_1_and_sum_to_1(
    count: int, seed: int, spread: float, sigma: float, alpha: float
) -> None:
    models = random_models(count, seed, spread=spread)
    xi = attention(squared_distances(models), sigma, alpha)
    torch.testing.assert_close(xi.sum(1), torch.ones(count, dtype=torch.float64))
    assert xi.min().item() >= -1e-12
    assert xi.max().item() <= 1 + 1e-12


@pytest.mark.parametrize("clients", [2, 14, 20, 27, 100])
def test_own_weight_is_not_negative_even_when_all_models_are_equal(clients: int) -> None:
    xi = attention(squared_distances([torch.ones(3)] * clients), sigma=1.0, alpha=1.0)
    assert xi.diagonal().min().item() >= 0


def test_distances_of_close_models_survive_large_norms() -> None:
    base = random_models(1, size=50_000, spread=10.0)[0]
    models = [base + 1e-3 * noise for noise in random_models(4, seed=1, size=50_000, spread=1.0)]
    naive = torch.tensor(naive_squared_distances(models), dtype=torch.float64)
    torch.testing.assert_close(squared_distances(models), naive, rtol=1e-3, atol=1e-9)


def test_distances_inside_a_cluster_are_small_beside_those_to_a_far_cluster() -> None:
    left, right = random_models(2, size=200_000, spread=0.05)
    noise = random_models(4, seed=1, size=200_000, spread=1e-4)
    models = [left + noise[0], left + noise[1], right + noise[2], right + noise[3]]
    naive = torch.tensor(naive_squared_distances(models), dtype=torch.float64)
    far = float(naive.max())
    # How products in single precision round is the processor's: 1e-8 or 4e-8 of the largest.
    torch.testing.assert_close(squared_distances(models), naive, rtol=1e-6, atol=1e-7 * far)
    assert 1e-6 * far < float(naive[0, 1]) < 1e-5 * far


def test_spreading_the_work_over_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedamp, "CHUNK", 1_000)
    models = random_models(7, size=50_500)
    xi = attention(squared_distances(models), sigma=1.0, alpha=1.0)
    with ThreadPoolExecutor(3) as pool:
        assert torch.equal(squared_distances(models, pool.map), squared_distances(models))
        assert torch.equal(mix(xi, models, pool.map), mix(xi, models))


@pytest.mark.parametrize("chunk", [7, 40, 65_536])
def test_mixtures_equal_weighted_sums_whatever_the_chunk(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fedamp, "CHUNK", chunk)
    models = random_models(4)
    xi = attention(squared_distances(models), sigma=1.0, alpha=1.0)
    rows = [sum(w * model for w, model in zip(row, models, strict=True)) for row in xi.tolist()]
    torch.testing.assert_close(mix(xi, models), torch.stack([torch.as_tensor(r) for r in rows]))


def test_aggregation_replaces_the_models_of_joined_clients_only() -> None:
    algorithm = toy_algorithm(toy_config("fedamp"))
    _, start = toy_client(algorithm)
    server, sent = algorithm.server_state(start), start.model + 1
    uploads = iter([Upload(2, 1.0, {"model": sent})])
    models = algorithm.aggregate(toy_server(algorithm, server), uploads)["models"]
    expected = [start.model, start.model, sent, start.model]
    assert all(torch.equal(a, b) for a, b in zip(models, expected, strict=True))


def test_a_client_receives_its_own_mixture() -> None:
    algorithm = toy_algorithm(toy_config("fedamp"))
    server = {"models": [], "mixtures": random_models(4)}
    for client in range(4):
        received = algorithm.download(toy_server(algorithm, server), client)
        assert torch.equal(received["mixture"], server["mixtures"][client])


# --- the client's step ----------------------------------------------------------------------------


def use_quadratic(
    algorithm: Algorithm, target: Tensor, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace f by ½‖θ − c‖² over all parameters."""
    pieces = client.net.split(target)

    def loss(client: Client, batch: Batch) -> Tensor:
        terms = []
        for part, piece in pieces.items():
            offset = 0
            for p in client.net.parameters([part]):
                c = _like(piece[offset : offset + p.numel()], p)
                terms.append(((p - c) ** 2).sum() / 2)
                offset += p.numel()
        return torch.stack(terms).sum()

    monkeypatch.setattr(algorithm, "loss", loss)


def _like(flat: Tensor, parameter: Tensor) -> Tensor:
    """A slice of the network's vector in the parameter's shape (kernels lie channels-last)."""
    if parameter.ndim != 4:
        return flat.view(parameter.shape)
    out, channels, height, width = parameter.shape
    return flat.view(out, height, width, channels).permute(0, 3, 1, 2)


def test_local_training_on_a_quadratic_follows_the_closed_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """θ_n = θ* + (1 − η(1 + λ))ⁿ (θ_0 − θ*) with θ* = (c + λu)/(1 + λ), starting from w_i."""
    lam, algorithm = 0.7, toy_algorithm(toy_config("fedamp", {"lambda": 0.7}))
    client, start = toy_client(algorithm)
    target, mixture = random_models(2, size=len(start.model))
    use_quadratic(algorithm, target, client, monkeypatch)
    sent = algorithm.local_update(client, {"mixture": mixture})["model"]
    steps = client.samples // client.task.config.batch_size
    best = (target + lam * mixture) / (1 + lam)
    expected = best + (1 - client.lr * (1 + lam)) ** steps * (start.model - best)
    torch.testing.assert_close(sent, expected, rtol=1e-4, atol=1e-5)


# --- degenerate values ----------------------------------------------------------------------------


def test_without_the_tie_it_is_local_training_bit_for_bit() -> None:
    ours, local = toy_run(toy_config("fedamp", {"lambda": 0})), toy_run(toy_config("local"))
    for a, b in zip(ours, local, strict=True):
        assert (a.correct, a.loss, a.train_loss) == (b.correct, b.loss, b.train_loss)


def test_with_alpha_0_each_client_is_sent_its_own_model_back() -> None:
    simulator = toy_simulator(toy_config("fedamp", {"alpha": 0}))
    for _ in simulator.rounds():
        pass
    server = simulator.snapshot.server
    for model, mixture in zip(server["models"], server["mixtures"], strict=True):
        assert torch.equal(model, mixture)


def test_with_alpha_0_a_single_step_per_round_is_local_training() -> None:
    """The tie pulls towards the model a round starts from, so it acts from the second step on."""
    ours = toy_run(toy_config("fedamp", {"alpha": 0}, batch_size=200))
    local = toy_run(toy_config("local", batch_size=200))
    assert [r.train_loss for r in ours] == [r.train_loss for r in local]


# --- scoring and validation -----------------------------------------------------------------------


def test_the_scored_model_is_the_clients_own_after_local_training() -> None:
    simulator = toy_simulator(toy_config("fedamp", rounds=2))
    *_, record = simulator.rounds()
    for index, shard in enumerate(simulator.shards):
        client, _ = toy_client(simulator.algorithm, index=index)
        client.net.load(simulator.snapshot.clients[index])
        batch = next(shard.evaluation_batches("test"))
        with torch.no_grad():
            logits = client.net.module("head")(client.net.module("extractor")(batch.x))
        assert record.loss is not None
        assert record.loss[index] == pytest.approx(F.cross_entropy(logits, batch.y).item())


@pytest.mark.parametrize(
    ("name", "value"), [("alpha", 1.5), ("alpha", -1), ("sigma", 0), ("lambda", -1), ("lam", 1)]
)
def test_a_value_outside_the_allowed_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(UserError, match=name):
        toy_config("fedamp", {name: value})


@pytest.mark.parametrize("algo", ["fedamp", "fedfomo"])
def test_client_and_server_keep_one_copy_of_a_personal_model(algo: str) -> None:
    simulator = toy_simulator(toy_config(algo))
    next(simulator.rounds())
    model = simulator.snapshot.server["models"][1].untyped_storage().data_ptr()
    for kept in simulator.snapshot.clients[1].values():
        assert kept.untyped_storage().data_ptr() == model
