"""The shared losses against sums written out and against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pfl_bench.models.losses import MMD_WIDTHS, balanced_softmax, mmd, rows_by_class


def features(rows: int, width: int = 6, seed: int = 0, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)


def naive_mmd(x: Tensor, y: Tensor) -> float:
    """E k(x, x') + E k(y, y') − 2 E k(x, y), a pair at a time."""

    def mean_kernel(left: Tensor, right: Tensor) -> float:
        total = 0.0
        for a in left.tolist():
            for b in right.tolist():
                squared = sum((p - q) ** 2 for p, q in zip(a, b, strict=True))
                total += sum(math.exp(-squared / (2 * width)) for width in (10, 15, 20, 50))
        return total / (len(left) * len(right))

    return mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)


def test_mmd_kernel_widths_are_the_protocols() -> None:
    assert MMD_WIDTHS == (10, 15, 20, 50)


@pytest.mark.parametrize("rows", [(5, 5), (4, 7), (1, 1)])
def test_mmd_equals_the_sum_over_pairs(rows: tuple[int, int]) -> None:
    x, y = features(rows[0], seed=1), features(rows[1], seed=2)
    assert mmd(x, y).item() == pytest.approx(naive_mmd(x, y), rel=1e-10)


def test_mmd_gradient_equals_finite_differences() -> None:
    x, y = features(4, 3, seed=1).requires_grad_(), features(4, 3, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(mmd, (x, y))


def test_mmd_of_a_batch_with_itself_has_no_value_and_no_gradient() -> None:
    x = features(6).requires_grad_()
    value = mmd(x, x.detach())
    (gradient,) = torch.autograd.grad(value, x)
    assert abs(value.item()) < 1e-12
    assert gradient.abs().max().item() < 1e-12


def test_mmd_is_symmetric() -> None:
    x, y = features(5, seed=1), features(3, seed=2)
    assert mmd(x, y).item() == pytest.approx(mmd(y, x).item(), rel=1e-12)


@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e3), rows=st.integers(1, 6))
def test_mmd_is_never_negative(seed: int, scale: float, rows: int) -> None:
    x, y = features(rows, seed=seed, scale=scale), features(rows, seed=seed + 1, scale=scale)
    assert mmd(x, y).item() >= -1e-9


def test_mmd_in_single_precision_survives_features_far_from_the_origin() -> None:
    x, y = features(5, seed=1) + 50, features(5, seed=2) + 50
    assert mmd(x.float(), y.float()).item() == pytest.approx(naive_mmd(x, y), abs=1e-3)


def naive_balanced_softmax(logits: Tensor, y: Tensor, counts: list[int]) -> float:
    """The mean of −log(n_y e^{z_y} / Σ_c n_c e^{z_c})."""
    total = 0.0
    for row, label in zip(logits.tolist(), y.tolist(), strict=True):
        shares = [n * math.exp(z) for n, z in zip(counts, row, strict=True)]
        total -= math.log(shares[label] / sum(shares))
    return total / len(y)


LABELS = torch.tensor([0, 1, 3, 3, 0])


def test_balanced_softmax_equals_the_sum_over_classes() -> None:
    logits, counts = features(5, 4), [7, 2, 30, 1]
    ours = balanced_softmax(logits, LABELS, torch.tensor(counts)).item()
    assert ours == pytest.approx(naive_balanced_softmax(logits, LABELS, counts), rel=1e-10)


def test_balanced_softmax_gradient_equals_finite_differences() -> None:
    counts = torch.tensor([7, 2, 30, 1])
    logits = features(5, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: balanced_softmax(z, LABELS, counts), logits)


def test_balanced_softmax_with_equal_counts_is_cross_entropy() -> None:
    logits = features(5, 4)
    ours = balanced_softmax(logits, LABELS, torch.full((4,), 9)).item()
    assert ours == pytest.approx(F.cross_entropy(logits, LABELS).item(), rel=1e-12)


def test_balanced_softmax_depends_on_the_proportions_of_counts_only() -> None:
    logits, counts = features(5, 4), torch.tensor([7, 2, 30, 1])
    assert balanced_softmax(logits, LABELS, counts).item() == pytest.approx(
        balanced_softmax(logits, LABELS, 100 * counts).item(), rel=1e-12
    )


def test_a_class_without_samples_takes_no_part_in_balanced_softmax() -> None:
    logits, held = features(5, 4), [0, 1, 3]
    ours = balanced_softmax(logits, LABELS, torch.tensor([7, 2, 0, 1])).item()
    renumbered = torch.tensor([0, 1, 2, 2, 0])
    without = naive_balanced_softmax(logits[:, held], renumbered, [7, 2, 1])
    assert ours == pytest.approx(without, rel=1e-6)


def test_a_class_without_samples_gets_a_finite_vanishing_gradient() -> None:
    logits = features(5, 4).float().requires_grad_()
    loss = balanced_softmax(logits, LABELS, torch.tensor([7, 2, 0, 1]))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()
    assert gradient[:, 2].abs().max().item() < 1e-6


def test_a_label_of_a_class_without_samples_gives_a_finite_loss() -> None:
    logits = features(5, 4).float()
    assert balanced_softmax(logits, torch.full((5,), 2), torch.tensor([7, 2, 0, 1])).isfinite()


def test_rows_by_class_are_those_of_the_labels_and_mixtures_of_soft_ones() -> None:
    table = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert rows_by_class(table, torch.tensor([1, 0, 1])).tolist() == [[3, 5], [1, 2], [3, 5]]
    assert rows_by_class(table, torch.tensor([[0.25, 0.75]])).tolist() == [[2.5, 4.25]]
