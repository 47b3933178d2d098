"""Losses that several algorithms share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MMD_WIDTHS = (10.0, 15.0, 20.0, 50.0)


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """Squared maximum mean discrepancy between two batches of features.

    The kernel is the sum of RBF kernels exp(−d²/(2a)) for a in MMD_WIDTHS; expectations are means
    over all pairs of the batch.
    """
    return _mean_kernel(x, x) + _mean_kernel(y, y) - 2 * _mean_kernel(x, y)


def _mean_kernel(x: Tensor, y: Tensor) -> Tensor:
    squared = (x * x).sum(1)[:, None] + (y * y).sum(1)[None, :] - 2 * x @ y.T
    # Rounding can leave a tiny negative distance between equal rows.
    squared = squared.clamp_min(0)
    return torch.stack([torch.exp(squared / (-2 * a)) for a in MMD_WIDTHS]).sum(0).mean()


def balanced_softmax(logits: Tensor, y: Tensor, class_counts: Tensor) -> Tensor:
    """Cross-entropy of logits shifted by the log of the class counts (Ren et al., 2020).

    A class without samples gets a vanishing prior instead of log 0, so that no loss is infinite.
    """
    prior = class_counts.to(logits.dtype).clamp_min(1e-9).log()
    return F.cross_entropy(logits + prior, y)
