"""Operations for several networks at once, where there is a faster way than `torch.vmap`.

A rule gets the arguments of one network's operation, its tensors with a first dimension for the
networks, and returns the same for all. It refuses (`NotImplemented`) what it was not written for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pfl_bench.models.layers import Call, wide_product, word_mean

Rule = Callable[..., Any]


def groups_convolutions(device: torch.device) -> bool:
    """Whether convolutions of all networks are one with groups, or one each: a CPU's library is
    slower with groups, a GPU waits for every single call."""
    return device.type != "cpu"


def add_rows(table: Tensor, rows: Tensor, changes: Tensor) -> None:
    """Add to rows of a table, of which some may be named more than once, in a fixed order.

    The tables of a block are far larger than a cache. On a CPU this sorts the rows first and takes
    half the time of adding them as they come; on a card the order is fixed only of the other."""
    if table.device.type == "cpu":
        table.scatter_add_(0, rows[:, None].expand_as(changes), changes)
    else:
        table.index_add_(0, rows, changes)


# --- rules ----------------------------------------------------------------------------------------


def _linear(calls: list[Call], x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if x.dim() != 3:
        return NotImplemented
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))


def _wide_product(calls: list[Call], x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if not (weight.requires_grad and torch.is_grad_enabled()):
        return _linear(calls, x, weight, bias)
    used, inputs = weight.detach(), x.detach()
    y = torch.baddbmm(bias[:, None], x, used.transpose(1, 2))

    def add(gradient: Tensor, factor: float) -> None:
        used.baddbmm_(gradient.transpose(1, 2), inputs, alpha=factor)

    calls.append(Call(y, add))
    return y


def _word_mean(calls: list[Call], tokens: Tensor, weight: Tensor, length: int) -> Tensor:
    """All embeddings are read as one table: that of a later network lies further down in it."""
    (networks, words, width), apart = weight.shape, weight.stride(0) // weight.shape[2]
    table = weight.detach().as_strided(((networks - 1) * apart + words, width), (width, 1))
    is_word = tokens != 0
    below = apart * torch.arange(networks, device=tokens.device)[:, None, None]
    rows, counts = (tokens + below)[is_word], is_word.sum(2).flatten()
    ends = counts.cumsum(0)
    mean = F.embedding_bag(rows, table, ends - counts, mode="sum").div_(length)
    y = mean.unflatten(0, (networks, -1))
    if weight.requires_grad and torch.is_grad_enabled():
        y.requires_grad_()

        def add(gradient: Tensor, factor: float) -> None:
            change = gradient.flatten(0, 1) * (factor / length)
            add_rows(table, rows, change.repeat_interleave(counts, 0, output_size=len(rows)))

        calls.append(Call(y, add))
    return y


def _conv2d(
    calls: list[Call],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if x.dim() != 5 or groups != 1:
        return NotImplemented
    networks, samples = x.shape[:2]
    if not groups_convolutions(x.device):
        biases: Sequence[Any] = [None] * networks if bias is None else bias.unbind()
        each = zip(x.unbind(), weight.unbind(), biases, strict=True)
        found = [F.conv2d(*one, stride, padding, dilation) for one in each]
        return torch.cat(found).unflatten(0, (networks, samples))
    wide = x.transpose(0, 1).flatten(1, 2)
    kernels, shifts = weight.flatten(0, 1), None if bias is None else bias.flatten()
    y = F.conv2d(wide, kernels, shifts, stride, padding, dilation, networks)
    return y.unflatten(1, (networks, -1)).transpose(0, 1)


def _max_pool2d(calls: list[Call], x: Tensor, *how: Any, **options: Any) -> Any:
    if x.dim() != 5 or options.get("return_indices"):
        return NotImplemented
    return F.max_pool2d(x.flatten(0, 1), *how, **options).unflatten(0, x.shape[:2])


def _batch_norm(
    calls: list[Call],
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Over the channels of all networks, side by side."""
    moving = [None if value is None else value.flatten().clone() for value in (mean, variance)]
    scale, shift = (None if value is None else value.flatten() for value in (weight, bias))
    wide = x.transpose(0, 1).flatten(1, 2)
    y = F.batch_norm(wide, moving[0], moving[1], scale, shift, training, momentum, eps)
    for kept, moved in zip((mean, variance), moving, strict=True):
        if training and kept is not None and moved is not None:
            kept.copy_(moved.view(kept.shape))
    return y.unflatten(1, (len(x), -1)).transpose(0, 1)


def _cross_entropy(calls: list[Call], logits: Tensor, y: Tensor, **options: Any) -> Any:
    usual = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}
    is_usual = all(options[k] == usual.get(k) for k in options)
    if not is_usual or logits.dim() != 3 or y.dim() != 2:
        return NotImplemented
    each = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return each.view(y.shape).mean(1)


def _flatten(calls: list[Call], x: Tensor, first: int = 0, last: int = -1) -> Any:
    return x.flatten(first + 1, last) if first >= 0 and last == -1 else NotImplemented


def _relu(calls: list[Call], x: Tensor, inplace: bool = False) -> Tensor:
    return F.relu(x, inplace)


def _relu_(calls: list[Call], x: Tensor) -> Tensor:
    return x.relu_()


def _detach(calls: list[Call], x: Tensor) -> Tensor:
    return x.detach()


RULES: dict[Any, Rule] = {
    F.linear: _linear,
    wide_product: _wide_product,
    word_mean: _word_mean,
    F.conv2d: _conv2d,
    F.max_pool2d: _max_pool2d,
    F.batch_norm: _batch_norm,
    F.cross_entropy: _cross_entropy,
    torch.flatten: _flatten,
    Tensor.flatten: _flatten,
    F.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    Tensor.relu_: _relu_,
    Tensor.detach: _detach,
}
