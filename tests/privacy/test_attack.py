"""The attacks: they recover what can be recovered, and say how far they got."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_bench.privacy.attack import (
    Recovered,
    deep_leakage,
    inverting_gradients,
    total_variation,
)
from pfl_bench.privacy.similarity import psnr, unit_range

CLASSES, SIDE = 10, 16


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the engine computes: how a sum is split over threads changes its last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def smooth_network(seed: int) -> nn.Module:
    """A small network of sigmoids, as in the paper of the attack."""
    network = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(12 * (SIDE // 2) ** 2, CLASSES),
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
    return network


def image_of_a_cross() -> Tensor:
    image = torch.full((1, 1, SIDE, SIDE), -0.6)
    image[..., SIDE // 2 - 1 : SIDE // 2 + 1, 2:-2] = 0.9
    image[..., 2:-2, SIDE // 2 - 1 : SIDE // 2 + 1] = 0.4
    return image


def gradient_through(network: nn.Module) -> Callable[[Tensor, Tensor], Sequence[Tensor]]:
    parameters = list(network.parameters())

    def gradient(x: Tensor, labels: Tensor) -> Sequence[Tensor]:
        loss = F.cross_entropy(network(x), labels)
        return torch.autograd.grad(loss, parameters, create_graph=True)

    return gradient


def observed(network: nn.Module, x: Tensor, label: int) -> list[Tensor]:
    """What a client would send: the gradient under the true class, not a soft label."""
    loss = F.cross_entropy(network(x), torch.tensor([label]))
    return [g.detach() for g in torch.autograd.grad(loss, list(network.parameters()))]


def attack(network: nn.Module, x: Tensor, label: int, iterations: int, seed: int = 0) -> Recovered:
    generator = torch.Generator().manual_seed(seed)
    start = 2 * torch.rand(x.shape, generator=generator) - 1
    logits = torch.randn(1, CLASSES, generator=generator)
    seen = observed(network, x, label)
    return deep_leakage(gradient_through(network), seen, start, logits, iterations=iterations)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_single_image_is_recovered_from_a_small_smooth_network(seed: int) -> None:
    image, label = image_of_a_cross(), 3 + seed
    found = attack(smooth_network(seed), image, label, iterations=200)
    assert psnr(unit_range(found.x)[0], unit_range(image)[0]) > 20
    assert int(found.labels.argmax()) == label


def test_more_iterations_never_end_at_a_worse_point() -> None:
    network, image = smooth_network(0), image_of_a_cross()
    left = [attack(network, image, 3, iterations=n).mismatch for n in (1, 10, 50, 200)]
    assert left == sorted(left, reverse=True)


def test_mismatch_is_the_relative_squared_distance_of_the_gradients() -> None:
    network, image = smooth_network(0), image_of_a_cross()
    found = attack(network, image, 3, iterations=20)
    seen = torch.cat([g.flatten() for g in observed(network, image, 3)])
    ours = gradient_through(network)(found.x, found.labels)
    distance = (torch.cat([g.detach().flatten() for g in ours]) - seen).square().sum()
    assert found.mismatch == pytest.approx(float(distance / seen.square().sum()), rel=1e-4)


def test_labels_are_probabilities() -> None:
    found = attack(smooth_network(0), image_of_a_cross(), 3, iterations=5)
    assert found.labels.min() >= 0
    assert float(found.labels.sum()) == pytest.approx(1)


def test_the_same_start_gives_the_same_bits() -> None:
    first, second = (attack(smooth_network(0), image_of_a_cross(), 3, 50) for _ in range(2))
    assert torch.equal(first.x, second.x) and first.mismatch == second.mismatch


def test_the_attacked_network_is_not_changed_unless_it_is_unknown() -> None:
    network = smooth_network(0)
    before = [p.detach().clone() for p in network.parameters()]
    attack(network, image_of_a_cross(), 3, iterations=20)
    assert all(map(torch.equal, before, network.parameters()))


def test_fitting_an_unknown_head_leaves_less_mismatch_than_a_wrong_one() -> None:
    network, image = smooth_network(0), image_of_a_cross()
    extractor, head = list(network.parameters())[:-2], list(network.parameters())[-2:]
    seen = observed(network, image, 3)[:-2]

    def gradient(x: Tensor, labels: Tensor) -> Sequence[Tensor]:
        loss = F.cross_entropy(network(x), labels)
        return torch.autograd.grad(loss, extractor, create_graph=True)

    left = {}
    for name in ("guessed", "fitted"):
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in head:
                parameter.uniform_(-0.5, 0.5, generator=generator)
        start = 2 * torch.rand(image.shape, generator=generator) - 1
        logits = torch.randn(1, CLASSES, generator=generator)
        unknown = head if name == "fitted" else []
        found = deep_leakage(gradient, seen, start, logits, iterations=150, unknown=unknown)
        left[name] = found.mismatch
    assert left["fitted"] < 0.5 * left["guessed"]


def test_a_search_that_leaps_into_the_void_keeps_its_best_point() -> None:
    def gradient(x: Tensor, labels: Tensor) -> Sequence[Tensor]:
        # Steep and then not a number: full steps leave where it is defined.
        return [(x - 3).clamp_min(-50).pow(3).sum().log().reshape(1) + 0 * labels.sum()]

    start = torch.full((1, 1, 1, 1), 9.0)
    found = deep_leakage(gradient, [torch.tensor([1.0])], start, torch.zeros(1, 2), iterations=30)
    assert torch.isfinite(found.x).all()
    assert found.mismatch < float((torch.tensor(6.0**3).log() - 1).square())


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_gradient_that_tells_nothing_is_refused(value: float) -> None:
    network = smooth_network(0)
    seen = [torch.full_like(p, value) for p in network.parameters()]
    with pytest.raises(ValueError, match="tells nothing"):
        deep_leakage(
            gradient_through(network), seen, image_of_a_cross(), torch.zeros(1, CLASSES),
            iterations=1,
        )  # fmt: skip


# --- inverting gradients --------------------------------------------------------------------------


def invert(
    network: nn.Module, x: Tensor, label: int, iterations: int, scale: float = 1.0
) -> Recovered:
    generator = torch.Generator().manual_seed(0)
    start = 2 * torch.rand(x.shape, generator=generator) - 1
    logits = torch.randn(1, CLASSES, generator=generator)
    seen = [scale * part for part in observed(network, x, label)]
    return inverting_gradients(
        gradient_through(network), seen, start, logits, iterations=iterations, variation=1e-3
    )


def test_inverting_gradients_recovers_a_single_image_too() -> None:
    found = invert(smooth_network(0), image_of_a_cross(), 3, iterations=600)
    assert psnr(unit_range(found.x)[0], unit_range(image_of_a_cross())[0]) > 20
    assert int(found.labels.argmax()) == 3


def test_inverting_gradients_reads_the_angle_alone() -> None:
    """A server that does not know how long a step was loses nothing."""
    plain, scaled = (invert(smooth_network(0), image_of_a_cross(), 3, 20, s) for s in (1, 1024))
    assert torch.allclose(plain.x, scaled.x, atol=1e-5)
    assert plain.mismatch == pytest.approx(scaled.mismatch, rel=1e-3)


def test_inverting_gradients_says_how_far_the_angle_is_from_none() -> None:
    network, image = smooth_network(0), image_of_a_cross()
    found = invert(network, image, 3, iterations=20)
    seen = torch.cat([g.flatten() for g in observed(network, image, 3)])
    ours = torch.cat(
        [g.detach().flatten() for g in gradient_through(network)(found.x, found.labels)]
    )
    assert found.mismatch == pytest.approx(1 - float(F.cosine_similarity(seen, ours, 0)), abs=1e-5)


def test_inverting_gradients_stays_where_images_are() -> None:
    found = invert(smooth_network(0), image_of_a_cross(), 3, iterations=30)
    assert float(found.x.abs().max()) <= 1


def test_total_variation_is_the_mean_step_between_neighbours() -> None:
    x = torch.rand(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    down = [abs(float(x[n, c, i + 1, j] - x[n, c, i, j])) for n in range(2) for c in range(3)
            for i in range(4) for j in range(4)]  # fmt: skip
    right = [abs(float(x[n, c, i, j + 1] - x[n, c, i, j])) for n in range(2) for c in range(3)
             for i in range(5) for j in range(3)]  # fmt: skip
    expected = sum(down) / len(down) + sum(right) / len(right)
    assert float(total_variation(x)) == pytest.approx(expected, rel=1e-5)
