"""What a loss does, written down operation by operation.

A loss is a function of a batch that may use anything else of its client: a vector in the memo,
features of its samples, its class counts. Written down, it is a list of operations on values with
numbers, some of which come from outside; it can then be done again for other values in their place
(`replay`). A loss that is not the same from step to step, or that needs to look at values, is found
out here: `Unstackable`, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pfl_bench.engine.batches import Batch
from pfl_bench.engine.client import Client, Loss
from pfl_bench.models import watched

DRAWS = frozenset(
    {
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
        *("bernoulli", "bernoulli_", "multinomial", "normal", "normal_", "uniform_", "random_"),
        *("exponential_", "poisson", "dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d"),
        *("alpha_dropout", "feature_alpha_dropout", "gumbel_softmax"),
    }
)
READS = frozenset(
    {"item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__array__"}
)


class Unstackable(Exception):
    """Why clients are trained one by one: the rest of "its loss …"."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor, by its number in the order of first use."""

    number: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One call; where it had tensors there are `Value`s."""

    compute: Any
    args: Sequence[Any]
    options: Mapping[str, Any]
    result: Any
    has_gradient: bool
    """Whether autograd followed it."""


class Recorder(TorchFunctionMode):
    """Writes down the operations meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.outside: dict[int, Tensor] = {}
        """The tensors that no operation made, by number."""
        self._values: dict[int, Value] = {}
        self._held: list[Tensor] = []  # so that no other tensor gets the identity of one

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options, name = kwargs or {}, getattr(func, "__name__", "")
        if name in DRAWS or options.get("generator") is not None:
            raise Unstackable("draws random numbers")
        if name in READS:
            raise Unstackable(f"reads the values of a tensor ({name})")
        known = len(self._held)
        given, how = replaced((args, options), Tensor, self._value)
        self.outside |= {n: self._held[n] for n in range(known, len(self._held))}
        changed = next(tensors(args), None) if _is_in_place(name) else None
        if changed is not None and self._values[id(changed)].number in self.outside:
            raise Unstackable(f"changes a tensor in place that is not its own ({name})")
        has_gradient = torch.is_grad_enabled()
        result = func(*args, **options)
        made = replaced(result, Tensor, self._value)
        if changed is not None or next(tensors(result), None) is not None:
            self.operations.append(Operation(func, given, how, made, has_gradient))
        return result

    def _value(self, tensor: Tensor) -> Value:
        if id(tensor) not in self._values:
            self._values[id(tensor)] = Value(len(self._held))
            self._held.append(tensor)
        return self._values[id(tensor)]


def _is_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"


def tensors(tree: Any) -> Iterator[Tensor]:
    return found(tree, Tensor)


def found(tree: Any, kind: type) -> Iterator[Any]:
    """All of a kind in the arguments of an operation."""
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from found(value, kind)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from found(value, kind)


def replaced(tree: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """The arguments of an operation with something else for all of a kind."""
    if isinstance(tree, kind):
        return by(tree)
    if isinstance(tree, Mapping):
        return {key: replaced(value, kind, by) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        inner = [replaced(value, kind, by) for value in tree]
        return inner if isinstance(tree, list) else tuple(inner)
    return tree


@dataclass(frozen=True)
class Recording:
    """The loss of some clients, the same operations for all."""

    operations: Sequence[Operation]
    result: Value
    batch: dict[int, str]
    """The numbers of what belongs to the batch, and what it is called there."""
    outside: dict[int, tuple[Tensor, ...]]
    """What else comes from outside: a tensor of each client, by number."""
    losses: Tensor
    """Of each client's first batch, one by one."""


def record(
    clients: Sequence[Client], losses: Sequence[Loss], batches: Sequence[Sequence[Batch]]
) -> Recording:
    """The losses of clients on their first batches; the first client's on a second one too."""
    found = []
    for client, loss, own in zip(clients, losses, batches, strict=True):
        _ = client.shard.class_counts  # counted when first asked for, which is no part of a loss
        with _undone(client), watched(client.net.parts.values()):
            found.append(_written(loss, own[0]))
            if len(found) == 1:
                again = _written(loss, own[min(1, len(own) - 1)])
                if not _is_same(found[0], again) or _others(found[0]) != _others(again):
                    raise Unstackable("changes from step to step")
    first = found[0]
    if not all(_is_same(first, other) for other in found[1:]):
        raise Unstackable("takes another way on other clients")
    return Recording(
        first.recorder.operations,
        first.result,
        first.batch,
        {n: tuple(one.recorder.outside[n] for one in found) for n in _others(first)},
        torch.stack([one.loss for one in found]),
    )


@dataclass(frozen=True)
class _Written:
    recorder: Recorder
    result: Value
    batch: dict[int, str]
    loss: Tensor


def _written(loss: Loss, batch: Batch) -> _Written:
    _ = batch.x, batch.y  # drawn now: that is no part of the loss
    with torch.enable_grad(), Recorder() as recorder:
        value = loss(batch)
    of_batch = {id(getattr(batch, name)): name for name in ("x", "y", "index", "rows")}
    numbers = {n: of_batch[id(t)] for n, t in recorder.outside.items() if id(t) in of_batch}
    return _Written(recorder, recorder._value(value), numbers, value.detach())


def _others(written: _Written) -> dict[int, int]:
    """What comes from outside and not from the batch, by its identity."""
    outside = written.recorder.outside
    return {n: id(tensor) for n, tensor in outside.items() if n not in written.batch}


def _is_same(one: _Written, other: _Written) -> bool:
    """Whether two losses are the same operations, whatever the values."""
    try:
        are_same = one.recorder.operations == other.recorder.operations
    except ValueError:  # arguments that have no truth, such as arrays
        return False
    return (
        are_same
        and one.recorder.outside.keys() == other.recorder.outside.keys()
        and (one.result, one.batch) == (other.result, other.batch)
    )


@contextmanager
def _undone(client: Client) -> Iterator[None]:
    """Afterwards the client is as it was; a loss that left something in its memo is found out."""
    memo, stats = {k: _copied(v) for k, v in client.memo.items()}, client.net.stats.clone()
    names = {key: id(value) for key, value in client.memo.items()}
    try:
        yield
        if {key: id(value) for key, value in client.memo.items()} != names:
            raise Unstackable("keeps something for the next step")
    finally:
        client.memo.clear()
        client.memo.update(memo)
        client.net.stats.copy_(stats)


def _copied(value: Any) -> Any:
    return type(value)(value) if type(value) in (list, dict, set) else value
