"""A fully connected layer for weights that are large beside the batch.

For a batch of ten the CPU is bound by reading and writing the weight, not by arithmetic. So the
forward product is taken in the order that reads it fastest, and its gradient, a matrix of rank ten,
can be left in its two factors: SGD then adds their product to the weight in one pass instead of
writing the gradient and reading it again. What a gradient step is made of is in `network`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Call = tuple[Tensor, Tensor, Tensor]
"""The weight of a layer, what went in and what came out."""


class WideLinear(nn.Linear):
    """`nn.Linear`, faster for small batches; see `factored` for its gradient."""

    _calls: list[Call] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            return super().forward(x)
        if self._calls is None or not torch.is_grad_enabled():
            return _Product.apply(x, self.weight, self.bias)
        y = _Product.apply(x, self.weight.detach(), self.bias)
        self._calls.append((self.weight, x.detach(), y))
        return y


@contextmanager
def factored(layers: Iterable[WideLinear]) -> Iterator[list[Call]]:
    """The calls of some layers meanwhile, during which no gradient flows to their weights: it is
    the sum of (∂loss/∂y)ᵀ x over the calls."""
    calls: list[Call] = []
    chosen = list(layers)
    for layer in chosen:
        layer._calls = calls
    try:
        yield calls
    finally:
        for layer in chosen:
            layer._calls = None


class _Product(torch.autograd.Function):
    """x Wᵀ + b as (W xᵀ + b)ᵀ: the weight is read along its rows, twice as fast for a few x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.addmm(bias[:, None], weight, x.t()).t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, _ = ctx.needs_input_grad
        return (
            gradient @ weight if needs_x else None,
            gradient.t() @ x if needs_weight else None,
            gradient.sum(0),
        )
