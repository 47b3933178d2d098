"""The flat vector behind a network: every operation against the same done tensor by tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_bench.models.network import Network


def modules() -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return {
            "extractor": nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten()),
            "head": nn.Linear(12, 4),
            "teacher": nn.Linear(12, 4),
        }


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def plain() -> dict[str, Any]:
    return modules()


@pytest.fixture
def net(plain: dict[str, Any]) -> Network:
    return Network(copy.deepcopy(plain), frozen=("teacher",))


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return normal(8, 2, 4, 4), torch.arange(8) % 4


def loss_of(module: Callable[[str], nn.Module], batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return F.cross_entropy(module("head")(module("extractor")(x)), y)


def assert_parameters(net: Network, plain: dict[str, Any], parts: list[str]) -> None:
    for part in parts:
        pairs = zip(net.module(part).parameters(), plain[part].parameters(), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours.detach(), theirs.detach())


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# --- layout ---------------------------------------------------------------------------------------


def test_parameters_keep_their_values(net: Network, plain: dict[str, Any]) -> None:
    assert_parameters(net, plain, ["extractor", "head", "teacher"])


def test_network_computes_what_the_modules_compute(
    net: Network, plain: dict[str, Any], batch: tuple[Tensor, Tensor]
) -> None:
    torch.testing.assert_close(loss_of(net.module, batch), loss_of(plain.__getitem__, batch))


def test_every_parameter_is_a_view_of_the_vector(net: Network) -> None:
    net.vector.fill_(0.25)
    assert all(bool((p == 0.25).all()) for part in net.parts.values() for p in part.parameters())
    assert len(net.vector) == sum(size(module) for module in net.parts.values())


def test_parts_lie_side_by_side_with_the_frozen_ones_last() -> None:
    net = Network(modules(), frozen=("extractor",))
    assert list(net.parts) == ["head", "teacher", "extractor"]
    assert torch.equal(net.vector, torch.cat([net[part] for part in net.parts]))
    assert torch.equal(net.trainable, torch.cat([net["head"], net["teacher"]]))


def test_convolution_kernels_lie_channels_last(net: Network) -> None:
    kernel = net.module("extractor")[0].weight
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(
        net["extractor"][: kernel.numel()], kernel.detach().permute(0, 2, 3, 1).flatten()
    )


def test_membership_is_by_name_of_the_part(net: Network) -> None:
    assert "head" in net
    assert "body" not in net


# --- copying --------------------------------------------------------------------------------------


def test_load_of_a_copy_restores_the_network(net: Network, plain: dict[str, Any]) -> None:
    saved = net.copy(net.parts)
    net.vector.zero_()
    net.load(saved)
    assert_parameters(net, plain, ["extractor", "head", "teacher"])


def test_load_touches_only_the_parts_it_names(net: Network, plain: dict[str, Any]) -> None:
    net.load({"head": torch.zeros(size(plain["head"]))})
    assert not net["head"].any()
    assert_parameters(net, plain, ["extractor", "teacher"])


def test_copy_is_no_alias(net: Network) -> None:
    copied = net.copy(["head"])["head"]
    before = copied.clone()
    net["head"].zero_()
    assert torch.equal(copied, before)


def test_split_of_the_trainable_vector_names_its_parts(net: Network) -> None:
    parts = net.split(net.trainable.clone())
    assert list(parts) == ["extractor", "head"]
    assert all(torch.equal(value, net[part]) for part, value in parts.items())


def test_load_of_a_wrong_size_is_refused(net: Network) -> None:
    with pytest.raises(RuntimeError):
        net.load({"head": torch.zeros(3)})


# --- steps ----------------------------------------------------------------------------------------


def test_descend_is_a_step_of_torchs_sgd(
    net: Network, plain: dict[str, Any], batch: tuple[Tensor, Tensor]
) -> None:
    net.descend(net.gradients(loss_of(net.module, batch)), lr=0.3)
    optimiser = torch.optim.SGD(
        [*plain["extractor"].parameters(), *plain["head"].parameters()], 0.3
    )
    loss_of(plain.__getitem__, batch).backward()
    optimiser.step()
    assert_parameters(net, plain, ["extractor", "head", "teacher"])


def test_descend_on_some_parts_leaves_the_others(
    net: Network, plain: dict[str, Any], batch: tuple[Tensor, Tensor]
) -> None:
    net.descend(net.gradients(loss_of(net.module, batch), ["head"]), 0.3, ["head"])
    optimiser = torch.optim.SGD(plain["head"].parameters(), 0.3)
    loss_of(plain.__getitem__, batch).backward()
    optimiser.step()
    assert_parameters(net, plain, ["extractor", "head", "teacher"])


def test_descend_takes_sparse_gradients_and_leaves_unnamed_rows_alone() -> None:
    net = Network({"words": nn.EmbeddingBag(10, 4, mode="sum", sparse=True)})
    before = net.vector.clone().view(10, 4)
    gradients = net.gradients(net.module("words")(torch.tensor([[2, 7]])).sum())
    net.descend(gradients, lr=0.5)
    expected = before.clone()
    expected[[2, 7]] -= 0.5
    torch.testing.assert_close(net.vector.view(10, 4), expected)


def test_pull_is_the_step_of_the_proximal_term(net: Network) -> None:
    before, anchor = net["head"].clone(), normal(len(net["head"]))
    theta = before.clone().requires_grad_()
    term = 0.5 * ((theta - anchor) ** 2).sum()
    (gradient,) = torch.autograd.grad(term, theta)
    extractor = net["extractor"].clone()
    net.pull({"head": anchor}, strength=0.2)
    torch.testing.assert_close(net["head"], before - 0.2 * gradient)
    assert torch.equal(net["extractor"], extractor)


def test_no_gradient_reaches_a_frozen_part(net: Network) -> None:
    assert not any(p.requires_grad for p in net.module("teacher").parameters())
    assert len(net.parameters()) == 6  # weight and bias of convolution, batch norm and head


# --- batch-norm statistics ------------------------------------------------------------------------


def test_statistics_follow_training_as_torchs_do(
    net: Network, plain: dict[str, Any], batch: tuple[Tensor, Tensor]
) -> None:
    net.module("extractor")(batch[0])
    plain["extractor"](batch[0])
    norm = plain["extractor"][1]
    torch.testing.assert_close(net.stats, torch.cat([norm.running_mean, norm.running_var]))


def test_statistics_are_not_in_the_vector_that_is_sent(net: Network) -> None:
    net.vector.zero_()
    assert torch.equal(net.stats, torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]))


def test_writing_statistics_changes_inference(net: Network, batch: tuple[Tensor, Tensor]) -> None:
    net.train(False)
    before = net.module("extractor")(batch[0])
    mean, variance = net.stats[:3], net.stats[3:]
    mean.fill_(1.0)
    variance.fill_(4.0)
    convolution, norm, flatten = net.module("extractor")
    scaled = (convolution(batch[0]) - 1.0) / (4.0 + norm.eps) ** 0.5
    torch.testing.assert_close(net.module("extractor")(batch[0]), flatten(scaled))
    assert not torch.equal(before, flatten(scaled))


def test_statistics_of_a_part_are_views(net: Network) -> None:
    for view in net.statistics("extractor"):
        view.fill_(9.0)
    assert bool((net.stats == 9.0).all())
    assert net.statistics("head") == []


def test_train_switches_every_part(net: Network) -> None:
    net.train(False)
    assert not any(module.training for module in net.parts.values())
    net.train()
    assert all(module.training for module in net.parts.values())


def test_network_without_parameters_has_an_empty_vector() -> None:
    assert len(Network({"nothing": nn.Flatten()}).vector) == 0
