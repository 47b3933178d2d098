"""Images at a smaller size, by area means.

A pixel of the smaller image is the mean of the area that it covers, pixels at the rim of the area
counted by the share of theirs that lies within; halving gives 2×2 means. Every processor computes
the same pixels: bytes in whole numbers, a half rounded up; real numbers one operation after the
other. Who asks for which size is in `settings`.
"""

from __future__ import annotations

import numpy as np

_CHUNK = 200
"""Images at a time: their sums take eight times the memory of the pixels."""

Shape = tuple[int, int, int]
"""Channels, height, width."""


def reduced_shape(shape: Shape | None, size: int | None) -> Shape | None:
    """The shape of the images of a dataset after `area_means`; None as size leaves it."""
    return shape if shape is None or size is None else (shape[0], size, size)


def area_means(images: np.ndarray, size: int) -> np.ndarray:
    """Images n×h×w×c (uint8 or float32), neither side below `size`, as n×size×size×c."""
    n, height, width, channels = images.shape
    area = height * width
    is_whole = images.dtype == np.uint8
    means = np.empty((n, size, size, channels), images.dtype)
    for start in range(0, n, _CHUNK):
        pixels = images[start : start + _CHUNK].astype(np.int64 if is_whole else np.float64)
        lines = _weighed(pixels, size)
        sums = _weighed(lines.swapaxes(1, 2), size).swapaxes(1, 2)
        means[start : start + _CHUNK] = (2 * sums + area) // (2 * area) if is_whole else sums / area
    return means


def _weighed(pixels: np.ndarray, size: int) -> np.ndarray:
    """Sums along the second axis, of length h, over `size` equal stretches, of weight h each.

    In units of 1/size pixel, stretch k runs from k·h to (k+1)·h and pixel j from j·size to
    (j+1)·size; the weight of a pixel in a stretch is the length that they share.
    """
    length = pixels.shape[1]
    sums = np.zeros((len(pixels), size, *pixels.shape[2:]), pixels.dtype)
    for k in range(size):
        begin, end = k * length, (k + 1) * length
        for j in range(begin // size, -(end // -size)):
            shared = min(end, (j + 1) * size) - max(begin, j * size)
            sums[:, k] += shared * pixels[:, j]
    return sums
