"""The clients' data, resident on the device, and batches drawn from it.

The one batch source: training batches (shuffled, tail dropped), evaluation batches (large, whole).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

EVALUATION_BATCH = 50
"""Few enough that the activations of a convolution stay in the cache."""


DRAWN_TOGETHER = 160
"""Samples that are gathered and scaled at once: as many as stay in the cache until their use."""


@dataclass(frozen=True)
class Batch:
    """Some samples of one client; `index` says which of its training samples they are.

    They are drawn when first asked for, with those of the batches around it.
    """

    pool: Pool
    rows: Tensor
    index: Tensor
    within: tuple[Batch, slice] | None = None

    @cached_property
    def x(self) -> Tensor:
        if self.within is None:
            return self.pool.inputs(self.rows)
        whole, here = self.within
        return whole.x[here]

    @cached_property
    def y(self) -> Tensor:
        if self.within is None:
            return self.pool.y[self.rows]
        whole, here = self.within
        return whole.y[here]

    def __iter__(self) -> Iterator[Tensor]:
        """So that `for x, y in client.batches()` reads as elsewhere."""
        return iter((self.x, self.y))

    def split(self, size: int) -> Iterator[Batch]:
        for start in range(0, len(self.rows), size):
            here = slice(start, start + size)
            yield Batch(self.pool, self.rows[here], self.index[here], (self, here))


class Pool:
    """A whole dataset as tensors; samples are scaled when they are drawn."""

    def __init__(self, x: np.ndarray, y: np.ndarray, device: torch.device):
        self.x = torch.from_numpy(x).to(device)
        self.y = torch.from_numpy(y).to(device)
        self.is_text = x.ndim == 2
        self.is_raw = self.x.dtype == torch.uint8
        self._lengths = torch.from_numpy(_lengths(x)) if self.is_text else None

    def inputs(self, rows: Tensor) -> Tensor:
        """Token ids up to the end of the longest text; images scaled to [-1, 1], channels-last."""
        x = self.x.index_select(0, rows)
        if self._lengths is not None:
            longest = int(self._lengths[rows.cpu()].max()) if len(rows) else 0
            return x[:, : max(1, longest)].long()
        if self.is_raw:
            x = x.float().div_(127.5).sub_(1.0)
        return x.permute(0, 3, 1, 2)


def _lengths(tokens: np.ndarray) -> np.ndarray:
    """Where the padding of each text begins."""
    is_word = tokens != 0
    return np.where(is_word.any(1), tokens.shape[1] - is_word[:, ::-1].argmax(1), 0)


class Shard:
    """One client's train and test set, and what it holds back for validation, if anything."""

    def __init__(
        self,
        pool: Pool,
        train: np.ndarray,
        test: np.ndarray,
        classes: int,
        validation: np.ndarray | None = None,
    ):
        self.pool = pool
        self.train = torch.from_numpy(train).to(pool.y.device)
        self.test = torch.from_numpy(test).to(pool.y.device)
        self.validation = self.test[:0]
        if validation is not None:
            self.validation = torch.from_numpy(validation).to(pool.y.device)
        self.classes = classes

    @property
    def samples(self) -> int:
        """The number of training samples, by which averages are weighted."""
        return len(self.train)

    @cached_property
    def class_counts(self) -> Tensor:
        return torch.bincount(self.pool.y[self.train], minlength=self.classes)

    def part(self, which: str) -> Tensor:
        return {"train": self.train, "test": self.test, "validation": self.validation}[which]

    def batches(
        self,
        size: int,
        epochs: int,
        generator: torch.Generator,
        of: Tensor | None = None,
        least: int = 1,
    ) -> Iterator[Batch]:
        """Shuffled batches; an incomplete last one is dropped unless it is the only one.

        `of` restricts the draw to some of the training samples (positions). `least` lets a method
        that takes several batches a step name how many it needs at a time.
        """
        positions = torch.arange(self.samples) if of is None else of
        size = min(size, len(positions))
        count = len(positions) // size // least * least
        for _ in range(epochs):
            order = positions[torch.randperm(len(positions), generator=generator)]
            order = order[: count * size].to(self.train.device)
            for index in order.split(max(1, DRAWN_TOGETHER // size) * size):
                yield from Batch(self.pool, self.train[index], index).split(size)

    def evaluation_batches(self, which: str, of: Tensor | None = None) -> Iterator[Batch]:
        """Every sample of the `train`, `test` or `validation` set once, in order, in large
        batches."""
        rows = self.part(which)
        positions = torch.arange(len(rows), device=rows.device) if of is None else of
        for index in positions.split(EVALUATION_BATCH):
            yield Batch(self.pool, rows[index], index)
