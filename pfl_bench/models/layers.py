"""Layers for weights that are large beside the batch.

For a batch of ten the CPU is bound by reading and writing such a weight, not by arithmetic. So
products are taken in the order that reads it fastest, and its gradient can be left in two small
factors: the gradient of the layer's output, and what went in. SGD then changes the weight in one
pass, or only the rows it must, instead of writing the gradient and reading it again. What a step is
made of is in `network`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from pfl_bench.store import machine


def reads_by_rows(vendor: str, instructions: str) -> bool:
    """Whether W xᵀ, for a few x, is faster than x Wᵀ on a processor: the rule, which `pfl-bench
    doctor` holds against a timing.

    Twice as fast on Intel's with AVX-512, for which the matrix library has kernels of its own; half
    as fast on AMD's, with AVX2 and with AVX-512 (docs/performance.md). Others were not measured and
    have torch's own order. No timing at the start decides, because the two round differently: runs
    have the same bits on all machines of a kind, however busy they were.
    """
    return vendor == "GenuineIntel" and instructions == "AVX512"


READS_BY_ROWS = reads_by_rows(machine()["vendor"], torch.backends.cpu.get_cpu_capability())


def wide_order(device: str = "cpu") -> str:
    """The order in which wide layers take their product on a device, for the records."""
    return "W xᵀ" if READS_BY_ROWS and device == "cpu" else "x Wᵀ"


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a layer: what came out, and how the gradient of that changes the weight."""

    y: Tensor
    add: Callable[[Tensor, float], None]
    """Adds the weight's gradient, given that of `y`, to the weight, times a factor."""


def wide_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What a `WideLinear` computes, as one operation for those who watch."""
    if has_torch_function((x,)):
        return handle_torch_function(wide_product, (x,), x, weight, bias)
    return F.linear(x, weight, bias)


def word_mean(tokens: Tensor, weight: Tensor, length: int) -> Tensor:
    """What a `WordMean` computes, as one operation for those who watch."""
    if has_torch_function((tokens,)):
        return handle_torch_function(word_mean, (tokens,), tokens, weight, length)
    return F.embedding_bag(tokens, weight, mode="sum", padding_idx=0) / length


class WideLinear(nn.Linear):
    """`nn.Linear`, faster for small batches; see `factored` for its gradient."""

    _calls: list[Call] | None = None
    _is_watched = False

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            return super().forward(x)
        if self._is_watched:
            return wide_product(x, self.weight, self.bias)
        if self._calls is None or not torch.is_grad_enabled():
            return _Product.apply(x, self.weight, self.bias)
        y = _Product.apply(x, self.weight.detach(), self.bias)
        inputs = x.detach()
        self._calls.append(Call(y, lambda g, factor: self._add(g, inputs, factor)))
        return y

    def _add(self, gradient: Tensor, x: Tensor, factor: float) -> None:
        self.weight.addmm_(gradient.t(), x, alpha=factor)


class WordMean(nn.EmbeddingBag):
    """The mean of word vectors over the `length` positions of a text, however many are given.

    Word 0 is the padding, whose vector counts for nothing and never changes. The gradient is
    sparse: a batch names a few hundred rows, and plain SGD changes no other. On a card a gradient
    that is written down is dense, because adding a sparse one there has no fixed order.
    """

    _calls: list[Call] | None = None
    _is_watched = False

    def __init__(self, words: int, width: int, length: int):
        super().__init__(words, width, mode="sum", sparse=True, padding_idx=0)
        self.length = length

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        if self._is_watched:
            return word_mean(tokens, self.weight, self.length)
        if self._calls is None or not torch.is_grad_enabled():
            is_sparse = self.weight.device.type == "cpu"
            y = F.embedding_bag(tokens, self.weight, mode="sum", sparse=is_sparse, padding_idx=0)
            return y / self.length
        weight = self.weight.detach()
        y = F.embedding_bag(tokens, weight, mode="sum", padding_idx=0).div_(self.length)
        y.requires_grad_()
        self._calls.append(Call(y, lambda g, factor: self._add(g, tokens, factor)))
        return y

    def _add(self, gradient: Tensor, tokens: Tensor, factor: float) -> None:
        rows = gradient[:, None].expand(*tokens.shape, -1).reshape(tokens.numel(), -1)
        padding = self.weight[0].clone()
        if self.weight.device.type == "cpu":
            sparse = torch.sparse_coo_tensor(
                tokens.reshape(1, -1), rows, self.weight.shape, check_invariants=False
            )
            self.weight.add_(sparse, alpha=factor / self.length)
        else:
            self.weight.index_add_(0, tokens.reshape(-1), rows, alpha=factor / self.length)
        self.weight[0] = padding


@contextmanager
def watched(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Meanwhile large layers are one operation each, which a `TorchFunctionMode` can see."""
    layers = [m for module in modules for m in module.modules()]
    chosen = [layer for layer in layers if isinstance(layer, WideLinear | WordMean)]
    for layer in chosen:
        layer._is_watched = True
    try:
        yield
    finally:
        for layer in chosen:
            layer._is_watched = False


@contextmanager
def factored(layers: Iterable[WideLinear | WordMean]) -> Iterator[list[Call]]:
    """The calls of some layers meanwhile, during which no gradient flows to their weights."""
    calls: list[Call] = []
    chosen = list(layers)
    for layer in chosen:
        layer._calls = calls
    try:
        yield calls
    finally:
        for layer in chosen:
            layer._calls = None


def product_by_rows(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`F.linear`, in the order that reads the weight row by row."""
    return torch.addmm(bias[:, None], weight, x.t()).t()


class _Product(torch.autograd.Function):
    """x Wᵀ + b, taken as (W xᵀ + b)ᵀ where that reads the weight faster."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        by_rows = READS_BY_ROWS and weight.device.type == "cpu"
        return product_by_rows(x, weight, bias) if by_rows else F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, _ = ctx.needs_input_grad
        return (
            gradient @ weight if needs_x else None,
            gradient.t() @ x if needs_weight else None,
            gradient.sum(0),
        )
