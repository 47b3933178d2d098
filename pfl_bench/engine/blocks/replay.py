"""A recorded loss, done again for all clients of a block at once.

Every value now has a first dimension for the clients, unless it is the same for all. Operations
with a rule (`models.RULES`) follow it; those between two of them go through `torch.vmap` together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from pfl_bench.engine.blocks.recording import (
    Operation,
    Recording,
    Unstackable,
    Value,
    found,
    replaced,
)
from pfl_bench.models import RULES, StackedNetwork

TOLERANCE = 1e-3
"""By which a loss in a block may differ from the same alone, relative to the larger of it and 1."""


class Replay:
    """The loss of `recording` for the clients whose networks are those of `net`."""

    def __init__(self, recording: Recording, net: StackedNetwork):
        self._recording, self._net = recording, net
        self._tables = _tables(recording)
        self._own = {
            number: _stacked(each)
            for number, each in recording.outside.items()
            if number not in self._tables and net.of_all(each[0]) is None
        }
        self._is_common = {n: len(set(map(id, each))) == 1 for n, each in recording.outside.items()}
        self._pieces = list(_pieces(recording, self._tables))

    def losses(self, batch: Callable[[str], Tensor]) -> Tensor:
        """Those of the active clients, given what their batches are made of, by name."""
        net, recording = self._net, self._recording
        values: dict[int, Tensor] = {n: batch(name) for n, name in recording.batch.items()}
        common: set[int] = set()
        for number, each in recording.outside.items():
            of_all = net.of_all(each[0])
            if of_all is not None:
                values[number] = of_all
            elif number in self._own and not self._is_common[number]:
                values[number] = self._own[number][: net.active]
            elif number in self._own:
                values[number] = each[0]
                common.add(number)
        for piece in self._pieces:
            piece.run(values, common, net)
        return values[recording.result.number]

    def check(self, losses: Tensor) -> None:
        """Refuse first losses that are not those of the clients alone."""
        alone = self._recording.losses
        scale = alone.abs().clamp_min(1)
        agree = torch.isclose(losses / scale, alone / scale, rtol=0, atol=TOLERANCE, equal_nan=True)
        if not bool(agree.all()):
            raise Unstackable("is another when it is computed for several clients at once")


@dataclass
class _Ruled:
    """An operation with a rule."""

    operation: Operation
    rule: Callable[..., Any]

    def run(self, values: dict[int, Tensor], common: set[int], net: StackedNetwork) -> None:
        operation = self.operation

        def given(value: Value) -> Tensor:
            tensor = values[value.number]
            return tensor.expand(net.active, *tensor.shape) if value.number in common else tensor

        args, options = replaced((operation.args, operation.options), Value, given)
        with torch.set_grad_enabled(operation.has_gradient):
            result = self.rule(net.calls, *args, **options)
            if result is NotImplemented:
                _Mapped([operation], [operation.result.number]).run(values, common, net)
                return
        values[operation.result.number] = result


@dataclass
class _Picked:
    """Rows of the clients' tables, which lie below each other."""

    operation: Operation
    table: Tensor
    begins: Tensor

    def run(self, values: dict[int, Tensor], common: set[int], net: StackedNetwork) -> None:
        index = values[self.operation.args[1].number]
        begins = self.begins[: net.active].view(-1, *[1] * (index.dim() - 1))
        values[self.operation.result.number] = self.table[index + begins]


@dataclass
class _Mapped:
    """Operations without a rule."""

    operations: Sequence[Operation]
    wanted: Sequence[int]
    """The values that are used later."""

    def run(self, values: dict[int, Tensor], common: set[int], net: StackedNetwork) -> None:
        needed = sorted({v.number for o in self.operations for v in _used(o)} & values.keys())

        def one(*given: Tensor) -> list[Tensor]:
            own = dict(zip(needed, given, strict=True))
            for operation in self.operations:
                args, options = replaced(
                    (operation.args, operation.options), Value, lambda v: own[v.number]
                )
                with torch.set_grad_enabled(operation.has_gradient):
                    result = operation.compute(*args, **options)
                own.update(_matched(operation.result, result))
            return [own[number] for number in self.wanted]

        dims = tuple(None if number in common else 0 for number in needed)
        if all(dim is None for dim in dims):
            made = one(*(values[number] for number in needed))
            common.update(self.wanted)
        else:
            made = torch.vmap(one, dims)(*(values[number] for number in needed))
            common.difference_update(self.wanted)
        values.update(zip(self.wanted, made, strict=True))


_Piece = _Ruled | _Picked | _Mapped


def _pieces(recording: Recording, tables: Mapping[int, tuple[Tensor, Tensor]]) -> Iterator[_Piece]:
    """The operations, in order; those without a rule that follow each other as one."""
    operations, start = recording.operations, 0
    for is_mapped, group in groupby(operations, lambda o: not _has_rule(o, tables)):
        some = list(group)
        start += len(some)
        if is_mapped:
            later = {v.number for o in operations[start:] for v in _used(o)}
            later.add(recording.result.number)
            made = {v.number for o in some for v in (*found(o.result, Value), *_used(o))}
            new = made - recording.outside.keys() - recording.batch.keys()
            yield _Mapped(some, sorted(later & new))
            continue
        for operation in some:
            table = _table(operation)
            if table in tables:
                yield _Picked(operation, *tables[table])
            else:
                yield _Ruled(operation, RULES[operation.compute])


def _has_rule(operation: Operation, tables: Mapping[int, tuple[Tensor, Tensor]]) -> bool:
    return operation.compute in RULES or _table(operation) in tables


def _used(operation: Operation) -> Iterator[Value]:
    return found((operation.args, operation.options), Value)


def _matched(values: Any, tensors: Any) -> Iterator[tuple[int, Tensor]]:
    made = found(values, Value), found(tensors, Tensor)
    return ((value.number, tensor) for value, tensor in zip(*made, strict=True))


def _table(operation: Operation) -> int:
    """The number of the value of which an operation picks rows; -1 where it does not."""
    is_pick = operation.compute is Tensor.__getitem__ and isinstance(operation.args[1], Value)
    return operation.args[0].number if is_pick else -1


def _tables(recording: Recording) -> dict[int, tuple[Tensor, Tensor]]:
    """What comes from outside only for rows to be picked by their numbers in the batch: of all
    clients, below each other, and where those of each begin."""
    picked = {_table(o) for o in recording.operations}
    uses = [v.number for o in recording.operations for v in _used(o)]
    indexed = [o.args[1].number for o in recording.operations if _table(o) >= 0]
    tables = {}
    for number, each in recording.outside.items():
        picks = [o for o in recording.operations if _table(o) == number]
        is_table = (
            number in picked
            and uses.count(number) == len(picks)
            and all(o.args[1].number in recording.batch for o in picks)
            and number not in indexed
            and len({(t.shape[1:], t.dtype) for t in each}) == 1
            and len(set(map(id, each))) > 1
        )
        if is_table:
            lengths = torch.tensor([0, *(len(t) for t in each[:-1])], device=each[0].device)
            tables[number] = (torch.cat(each), lengths.cumsum(0))
    return tables


def _stacked(each: tuple[Tensor, ...]) -> Tensor:
    if len(set(map(id, each))) == 1:
        return each[0]
    if len({(t.shape, t.dtype) for t in each}) > 1:
        raise Unstackable("takes tensors of other shapes on other clients")
    return torch.stack(each)
