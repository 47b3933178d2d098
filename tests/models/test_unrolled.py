"""The network whose steps can be differentiated computes what the other one does."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pfl_bench.models.backbones import Inputs, build_model, seeded
from pfl_bench.models.network import Network
from pfl_bench.models.unrolled import UnrolledNetwork

CLASSES = 4


def network(frozen: tuple[str, ...] = ()) -> Network:
    model = seeded(0, lambda: build_model("cnn", Inputs(CLASSES, (1, 16, 16))))
    return Network({"extractor": model.extractor, "head": model.head}, frozen)


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(3, 1, 16, 16, generator=generator), torch.tensor([0, 1, 3])


def loss(net: Network, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.module("head")(net.module("extractor")(x)), y)


@pytest.mark.parametrize("parts", [None, ("head",), ("extractor",)])
@pytest.mark.parametrize("strength", [0.0, 0.7])
def test_steps_end_where_those_of_a_network_do(
    parts: tuple[str, ...] | None, strength: float
) -> None:
    plain, unrolled = network(), UnrolledNetwork(network())
    toward = {"head": torch.ones_like(plain["head"])} if strength else None
    correction = {"extractor": torch.full_like(plain["extractor"], 1e-3)} if strength else None
    with unrolled.remembering():
        for seed in range(3):
            for net in (plain, unrolled):
                take = partial(lambda net, s: loss(net, *batch(s)), net, seed)
                net.step(take, 0.1, parts, toward, strength, correction, strength / 10)
    assert torch.allclose(plain.vector, unrolled.vector, atol=1e-6)
    assert not torch.equal(plain.vector, network().vector)


def test_frozen_parts_do_not_move() -> None:
    unrolled = UnrolledNetwork(network(("head",)))
    head = unrolled["head"].detach().clone()
    with unrolled.remembering():
        unrolled.step(lambda: loss(unrolled, *batch()), 0.1)
    assert torch.equal(unrolled["head"], head)


def test_the_end_of_two_steps_has_the_slope_of_steps_written_out_as_functions() -> None:
    unrolled = UnrolledNetwork(network())
    x, y = batch()
    x.requires_grad_()
    with unrolled.remembering():
        for _ in range(2):
            unrolled.step(lambda: loss(unrolled, x, y), 0.5)
    end = torch.stack([p.square().sum() for p in unrolled.parameters()]).sum()
    plain = torch.nn.Sequential(*network().parts.values())
    theta = {name: value.detach().requires_grad_() for name, value in plain.named_parameters()}
    for _ in range(2):
        value = F.cross_entropy(torch.func.functional_call(plain, theta, (x,)), y)
        slopes = torch.autograd.grad(value, list(theta.values()), create_graph=True)
        theta = {n: p - 0.5 * g for (n, p), g in zip(theta.items(), slopes, strict=True)}
    expected = torch.stack([p.square().sum() for p in theta.values()]).sum()
    ours, theirs = (torch.autograd.grad(value, x)[0] for value in (end, expected))
    assert torch.allclose(ours, theirs, atol=1e-6, rtol=1e-3)
    assert theirs.abs().max() > 1e-4


def test_values_put_back_in_place_leave_earlier_steps_in_the_graph() -> None:
    """As Per-FedAvg does: a gradient is taken elsewhere and applied here."""
    unrolled = UnrolledNetwork(network())
    x, y = batch()
    x.requires_grad_()
    with unrolled.remembering():
        theta = unrolled.trainable.clone()
        unrolled.descend(unrolled.gradients(loss(unrolled, x, y)), 0.1)
        gradients = unrolled.gradients(loss(unrolled, x, y))
        unrolled.trainable.copy_(theta)
        unrolled.descend(gradients, 0.1)
    plain = network()
    plain.descend(plain.gradients(loss(plain, x, y)), 0.1)
    second = plain.gradients(loss(plain, x, y))
    plain = network()
    plain.descend(second, 0.1)
    assert torch.allclose(unrolled.vector, plain.vector, atol=1e-6)
    (slope,) = torch.autograd.grad(unrolled.vector.square().sum(), x)
    assert slope.abs().sum() > 0


def test_standing_still_moves_nothing_but_towards_others() -> None:
    unrolled = UnrolledNetwork(network())
    start = unrolled.vector.detach().clone()
    unrolled.is_still = True
    with unrolled.remembering():
        unrolled.step(lambda: loss(unrolled, *batch()), 0.1)
        assert torch.equal(unrolled.vector, start)
        unrolled.step(
            lambda: loss(unrolled, *batch()),
            0.1,
            None,
            {"head": torch.zeros(unrolled["head"].shape)},
            1.0,
        )
    head = unrolled["head"].detach()
    assert torch.allclose(head, 0.9 * start[-len(head) :], atol=1e-7)


def test_restarting_forgets_all_steps() -> None:
    unrolled = UnrolledNetwork(network())
    with unrolled.remembering():
        unrolled.step(lambda: loss(unrolled, *batch()), 0.1)
    unrolled.restart()
    assert torch.equal(unrolled.vector, network().vector)
