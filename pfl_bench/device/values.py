"""Values on their way to a device and back.

A card computes while Python goes on; whoever asks for a value waits until all before it is done.
So a round asks once, at its end, for everything it wants to know (`fetched`), and what goes to the
card goes without waiting (`put`).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def put(value: Tensor, device: torch.device) -> Tensor:
    """`value` on the device, which is not waited for."""
    if device.type != "cuda" or value.device.type != "cpu":
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)


def exact(device: torch.device) -> torch.dtype:
    """The type in which sums of many values are kept: double, but for devices that have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def fetched(tree: Any) -> Any:
    """`tree` with numbers in the place of its tensors (lists of them, where a tensor has
    dimensions), all of which are waited for once."""
    groups: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors_in(tree):
        groups[tensor.device, tensor.dtype].append(tensor)
    values: dict[int, Any] = {}
    for group in groups.values():
        flat = _on_host(torch.cat([tensor.detach().reshape(-1) for tensor in group]))
        for tensor, value in zip(group, flat.split([t.numel() for t in group]), strict=True):
            values[id(tensor)] = value.reshape(tensor.shape).tolist()
    return _mapped(tree, lambda tensor: values[id(tensor)])


def _on_host(flat: Tensor) -> Tensor:
    """The meta device has shapes and no values, for tests: it tells ones."""
    return torch.ones(flat.shape, dtype=flat.dtype) if flat.is_meta else flat.cpu()


def tensors_in(tree: Any) -> list[Tensor]:
    """Every tensor of a tree."""
    found: list[Tensor] = []
    _mapped(tree, found.append)
    return found


def _mapped(tree: Any, change: Callable[[Tensor], Any]) -> Any:
    """`tree` with every tensor changed: in lists, tuples, dictionaries and dataclasses."""
    match tree:
        case Tensor():
            return change(tree)
        case Mapping():
            return {name: _mapped(value, change) for name, value in tree.items()}
        case list() | tuple():
            return type(tree)(_mapped(value, change) for value in tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        values = {f.name: _mapped(getattr(tree, f.name), change) for f in dataclasses.fields(tree)}
        return type(tree)(**values)
    return tree
