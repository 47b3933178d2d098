"""How close recovered images are to the true ones: PSNR and SSIM, on one scale for all.

`published_psnr` is the exception: the arithmetic of the public code that the paper's figures come
from, kept to show what it makes of noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

PERFECT = 100.0
"""The PSNR, in dB, given to images that agree better than this, whose true one may be infinite."""

WINDOW, WIDTH = 11, 1.5
"""Side and standard deviation of SSIM's Gaussian window, and its constants (Wang et al., 2004)."""
C1, C2 = 0.01**2, 0.03**2


def unit_range(x: Tensor) -> Tensor:
    """Images of a model's input, [-1, 1], on the scale of comparison, [0, 1]; the rest is cut."""
    return ((x.detach().cpu() + 1) / 2).clamp(0, 1)


def psnr(image: Tensor, other: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of two images in [0, 1]."""
    return _decibels(float((image.double() - other.double()).square().mean()))


def published_psnr(image: Tensor, other: Tensor) -> float:
    """What the public code of the paper's authors calls PSNR, of two images in [0, 1].

    It compares the true image on [-1, 1] with the recovered one on [0, 1] (there the output of a
    sigmoid), and divides the mean squared error, already a mean over the channels, by three.
    """
    error = (2 * image.double() - 1 - other.double()).square().mean()
    return _decibels(float(error) / 3)


def _decibels(error: float) -> float:
    return -10 * math.log10(max(error, 10 ** (-PERFECT / 10)))


def ssim(image: Tensor, other: Tensor) -> float:
    """Structural similarity of two images in [0, 1], channels × height × width: the mean over
    channels and over all places where the window fits. A small image gets a small window."""
    a, b = (value.double()[:, None] for value in (image, other))
    window = _window(min(WINDOW, (min(image.shape[-2:]) - 1) // 2 * 2 + 1))

    def local(values: Tensor) -> Tensor:
        return F.conv2d(values, window)

    mean_a, mean_b = local(a), local(b)
    variance_a = local(a * a) - mean_a**2
    variance_b = local(b * b) - mean_b**2
    covariance = local(a * b) - mean_a * mean_b
    brightness = (2 * mean_a * mean_b + C1) / (mean_a**2 + mean_b**2 + C1)
    structure = (2 * covariance + C2) / (variance_a + variance_b + C2)
    return float((brightness * structure).mean())


def _window(side: int) -> Tensor:
    """Gaussian weights that sum to 1."""
    steps = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    line = torch.exp(-(steps**2) / (2 * WIDTH**2))
    line = line / line.sum()
    return (line[:, None] * line)[None, None]


def matched(truth: Tensor, found: Tensor) -> list[int]:
    """Which of `found` stands for each of `truth`, by PSNR. A message does not tell the order of a
    batch: the closest pair is taken first, then the closest of the rest."""
    scores = torch.tensor([[psnr(a, b) for b in found] for a in truth], dtype=torch.float64)
    partner = [0] * len(truth)
    for _ in truth:
        i, j = divmod(int(scores.argmax()), len(found))
        partner[i] = j
        scores[i, :] = scores[:, j] = -math.inf
    return partner


SIMILARITIES: Mapping[str, Callable[[Tensor, Tensor], float]] = {
    "psnr": psnr,
    "ssim": ssim,
    "published_psnr": published_psnr,
}
"""By the names under which an attack stores them."""
