"""How close recovered images are to the true ones: PSNR, on one scale for all."""

from __future__ import annotations

import math

import torch
from torch import Tensor

PERFECT = 100.0
"""The PSNR, in dB, given to images that agree better than this, whose true one may be infinite."""


def unit_range(x: Tensor) -> Tensor:
    """Images of a model's input, [-1, 1], on the scale of comparison, [0, 1]; the rest is cut."""
    return ((x.detach().cpu() + 1) / 2).clamp(0, 1)


def psnr(image: Tensor, other: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of two images in [0, 1]."""
    error = float((image.double() - other.double()).square().mean())
    return -10 * math.log10(max(error, 10 ** (-PERFECT / 10)))


def matched(truth: Tensor, found: Tensor) -> tuple[list[int], list[float]]:
    """Which of `found` stands for each of `truth`, and its PSNR. A gradient does not tell the order
    of a batch: the closest pair is taken first, then the closest of the rest."""
    scores = torch.tensor([[psnr(a, b) for b in found] for a in truth], dtype=torch.float64)
    partner, value = [0] * len(truth), [0.0] * len(truth)
    for _ in truth:
        i, j = divmod(int(scores.argmax()), len(found))
        partner[i], value[i] = j, float(scores[i, j])
        scores[i, :] = scores[:, j] = -math.inf
    return partner, value
