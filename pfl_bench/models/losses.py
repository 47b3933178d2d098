"""Losses that several algorithms share."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

MMD_WIDTHS = (10.0, 15.0, 20.0, 50.0)


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """Squared maximum mean discrepancy between two batches of features.

    The kernel is the sum of RBF kernels exp(−d²/(2a)) for a in MMD_WIDTHS; expectations are means
    over all pairs of the batch. With s = (1/n, …, −1/m, …) that is sᵀ K s over both batches.
    """
    z = torch.cat((x, y))
    gram = z @ z.T
    norms = gram.diagonal()
    # Rounding can leave a tiny negative distance between equal rows.
    squared = (norms[:, None] + norms[None, :] - 2 * gram).clamp_min(0)
    kernel = torch.exp(squared / _scales(z.dtype, z.device)).sum(0)
    s = z.new_full((len(z),), 1 / len(x))
    s[len(x) :] = -1 / len(y)
    return s @ kernel @ s


@cache
def _scales(dtype: torch.dtype, device: torch.device) -> Tensor:
    """−2a for each width, to divide a matrix by."""
    return torch.tensor(MMD_WIDTHS, dtype=dtype, device=device).mul_(-2)[:, None, None]


def rows_by_class(table: Tensor, y: Tensor) -> Tensor:
    """The row of each label's class; where labels are probabilities, the mixture of rows."""
    return y @ table if y.is_floating_point() else table[y]


def balanced_softmax(logits: Tensor, y: Tensor, class_counts: Tensor) -> Tensor:
    """Cross-entropy of logits shifted by the log of the class counts (Ren et al., 2020).

    A class without samples gets a vanishing prior instead of log 0, so that no loss is infinite.
    """
    prior = class_counts.to(logits.dtype).clamp_min(1e-9).log()
    return F.cross_entropy(logits + prior, y)
