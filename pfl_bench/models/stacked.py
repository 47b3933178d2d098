"""Several networks of one layout, computed as one: their vectors are the rows of a matrix.

A layer of all of them is then one batched product instead of many small ones. Here are the matrix
and a gradient step on it; what the operations of a loss are for many is in `rules`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from pfl_bench.models.layers import Call, WordMean
from pfl_bench.models.network import Network

ALIGNED = 16
"""Rows of the matrix begin at multiples of so many numbers."""


class Stack:
    """So many networks like `first`, each as usable as any other, and all of them as one."""

    def __init__(self, first: Network, count: int):
        layers = [m for part in first.parts.values() for m in part.modules()]
        widths = [m.embedding_dim for m in layers if isinstance(m, WordMean)]
        unit, size = math.lcm(ALIGNED, *widths), first.vector.numel()
        self._matrix = torch.zeros(count, -(-size // unit) * unit, device=first.vector.device)
        frozen = [name for name in first.parts if name not in first.trainable_parts]
        self.members = [
            Network(copy.deepcopy(first.parts), frozen, row[:size]) for row in self._matrix
        ]
        for member in self.members:
            _forget_counters(member)

    def rows(self, first: int, last: int) -> StackedNetwork:
        """The networks from `first` up to `last`, excluded, as one."""
        members = self.members[first:last]
        return StackedNetwork(members, self._matrix[first:last, : members[0].vector.numel()])


def _forget_counters(net: Network) -> None:
    """Batch norm counts batches for a mean over all of them, which nobody here takes."""
    for module in net.parts.values():
        for layer in module.modules():
            if isinstance(layer, _BatchNorm) and layer.momentum is not None:
                layer.num_batches_tracked = None


class StackedNetwork(Network):
    """Networks whose vectors are the rows of a matrix.

    `active` of them take part in a step, the first ones; the others stay as they are. Values by
    part, and losses, have a first dimension for the networks.
    """

    def __init__(self, members: Sequence[Network], matrix: Tensor):
        first = members[0]
        self.parts, self.trainable_parts = first.parts, first.trainable_parts
        self._slices, self._parameters = first._slices, first._parameters
        self._members, self._matrix = members, matrix
        self._stats = torch.stack([member.stats for member in members])
        self.calls: list[Call] = []
        """Uses of large layers in the loss at hand, whose gradients are not written down."""
        self.active = len(members)

    @property
    def active(self) -> int:
        """How many networks take part."""
        return self._active

    @active.setter
    def active(self, count: int) -> None:
        self._active = count
        self.vector = self._matrix[:count]
        self._views: dict[int, Tensor] = {}

    def __getitem__(self, part: str) -> Tensor:
        return self.vector[:, self._slices[part]]

    def of_all(self, value: Tensor) -> Tensor | None:
        """What of all active networks a tensor is of the first: a parameter, a part of the vector,
        batch-norm statistics; None where it belongs to no network."""
        first = self._members[0]
        if id(value) not in self._views:
            if _within(value, first.vector):
                view = _rows(self._matrix, value)[: self._active]
            elif _within(value, first.stats):
                view = _rows(self._stats, value)[: self._active]
            else:
                return None
            self._views[id(value)] = view
        return self._views[id(value)]

    def _slope(
        self, loss: Callable[[], Tensor], names: Sequence[str]
    ) -> tuple[Tensor, Callable[[float], None]]:
        """As for one network; `loss` has a value for each."""
        found = [self.of_all(p) for p in self.parameters(names)]
        chosen = [view.requires_grad_() for view in found if view is not None]
        calls: list[Call] = []
        self.calls = calls
        try:
            values = loss()
            outputs = [call.y for call in calls]
            gradients = torch.autograd.grad(
                values, [*chosen, *outputs], torch.ones_like(values), allow_unused=True
            )
        finally:
            for view in chosen:
                view.requires_grad_(False)
        return values, self._descent(chosen, calls, gradients)

    def keep_statistics(self) -> None:
        """Give the networks the batch-norm statistics that training moved."""
        for member, stats in zip(self._members, self._stats, strict=True):
            member.stats.copy_(stats)


def _within(value: Tensor, vector: Tensor) -> bool:
    if value.untyped_storage().data_ptr() != vector.untyped_storage().data_ptr():
        return False
    return bool(0 <= value.storage_offset() - vector.storage_offset() < vector.numel())


def _rows(matrix: Tensor, view: Tensor) -> Tensor:
    """A view of the first row as one of all rows."""
    shape, strides = (len(matrix), *view.shape), (matrix.stride(0), *view.stride())
    return matrix.as_strided(shape, strides, view.storage_offset())
