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

from pfl_bench.device import put

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
    host: Tensor | None = None
    """The rows as they were drawn, before they went to the device."""

    @cached_property
    def x(self) -> Tensor:
        if self.within is None:
            return self.pool.inputs(self.rows, self.host_rows)
        whole, here = self.within
        return whole.x[here]

    @cached_property
    def y(self) -> Tensor:
        if self.within is None:
            return self.pool.y[self.rows]
        whole, here = self.within
        return whole.y[here]

    @cached_property
    def host_rows(self) -> Tensor:
        """`rows` where no device is waited for."""
        if self.host is not None:
            return self.host
        if self.within is None:
            return self.rows.cpu()
        whole, here = self.within
        return whole.host_rows[here]

    @property
    def labels(self) -> Tensor:
        """`y` on the host, for what Python decides by it."""
        return self.pool.labels[self.host_rows]

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
        self.labels = torch.from_numpy(y)
        """`y` on the host."""
        self.x, self.y = torch.from_numpy(x).to(device), self.labels.to(device)
        self.is_text = x.ndim == 2
        self.is_raw = self.x.dtype == torch.uint8
        self._lengths = torch.from_numpy(_lengths(x)) if self.is_text else None

    def inputs(self, rows: Tensor, host_rows: Tensor | None = None) -> Tensor:
        """Token ids up to the end of the longest text; images scaled to [-1, 1], channels-last."""
        x = self.x.index_select(0, rows)
        if self._lengths is not None:
            lengths = self._lengths[rows.cpu() if host_rows is None else host_rows]
            longest = int(lengths.max()) if len(rows) else 0
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
        held = test[:0] if validation is None else validation
        rows = {"train": train, "test": test, "validation": held}
        self.on_host = {which: torch.from_numpy(values) for which, values in rows.items()}
        """The rows of each set where no device is waited for."""
        self.train, self.test, self.validation = (
            values.to(pool.y.device) for values in self.on_host.values()
        )
        self.classes = classes

    @property
    def samples(self) -> int:
        """The number of training samples, by which averages are weighted."""
        return len(self.train)

    @property
    def labels(self) -> Tensor:
        """The classes of the training samples in their order, on the host."""
        return self.pool.labels[self.on_host["train"]]

    @cached_property
    def class_counts(self) -> Tensor:
        counts = torch.bincount(self.labels, minlength=self.classes)
        return put(counts, self.train.device)

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

        `of` restricts the draw to some of the training samples (positions, on the host). `least`
        lets a method that takes several batches a step name how many it needs at a time.
        """
        positions = torch.arange(self.samples) if of is None else of
        size = min(size, len(positions))
        count = len(positions) // size // least * least
        for _ in range(epochs):
            order = positions[torch.randperm(len(positions), generator=generator)]
            order = order[: count * size]
            together = max(1, DRAWN_TOGETHER // size) * size
            rows = self.on_host["train"][order].split(together)
            for index, host in zip(
                put(order, self.train.device).split(together), rows, strict=True
            ):
                yield from Batch(self.pool, self.train[index], index, host=host).split(size)

    def evaluation_batches(self, which: str, of: Tensor | None = None) -> Iterator[Batch]:
        """Every sample of the `train`, `test` or `validation` set once, in order, in large
        batches; or those at some positions, on the host."""
        rows, host = self.part(which), self.on_host[which]
        positions = torch.arange(len(rows)) if of is None else of
        drawn = (host[positions], put(positions, rows.device))
        for known, index in zip(*(each.split(EVALUATION_BATCH) for each in drawn), strict=True):
            yield Batch(self.pool, rows[index], index, host=known)
