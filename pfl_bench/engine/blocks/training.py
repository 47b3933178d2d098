"""Local training of a block: the steps of several clients as one, whatever their losses are.

Clients are in the order of their number of steps; one that has taken all of its own is left out of
those that follow. What cannot be computed for all at once is done one by one, and the reason kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pfl_bench.engine.batches import Batch
from pfl_bench.engine.blocks.recording import Unstackable, record
from pfl_bench.engine.blocks.replay import Replay
from pfl_bench.engine.client import Client, HeavyBall, Training
from pfl_bench.models import Stack, StackedNetwork

Asked = tuple[Client, Training]

Found = dict[str, None]
"""Reasons why clients were trained one by one, in the order in which they were found."""


class Block:
    """Trains clients whose networks are the members of a stack."""

    def __init__(self, stack: Stack, found: Found):
        self._stack, self._found = stack, found

    def train(self, asked: Sequence[tuple[int, Asked]]) -> None:
        """What some clients ask for, each given with the number of its network."""
        for run in _runs([(row, client, _listed(training)) for row, (client, training) in asked]):
            if len(run) > 1 and self._train_together(run):
                continue
            for _, client, training in run:
                client.take_steps(training)

    def _train_together(self, run: Sequence[Row]) -> bool:
        first, last = run[0][0], run[-1][0] + 1
        clients, trainings = [c for _, c, _ in run], [t for *_, t in run]
        try:
            _Steps(clients, trainings, self._stack.rows(first, last)).take()
        except Unstackable as reason:
            self._found[f"its loss {reason}"] = None
            return False
        return True


Row = tuple[int, Client, Training]


def _listed(training: Training) -> Training:
    """With its batches in a list, where they are known beforehand."""
    batches = training.batches
    is_drawn = inspect.isgenerator(batches) and batches.gi_code is Client.batches.__code__
    return replace(training, batches=list(batches)) if is_drawn else training


def _runs(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Neighbours that can be trained together: they take the same kind of steps on batches of the
    same size, and none takes more of them than the one before."""
    run = [rows[0]]
    for before, row in pairwise(rows):
        if row[0] != before[0] + 1 or not _alike(before[2], row[2]):
            yield run
            run = []
        run.append(row)
    yield run


def _alike(one: Training, other: Training) -> bool:
    sizes = {len(b.rows) for t in (one, other) for b in _known(t)}
    return (
        len(_known(one)) >= len(_known(other)) > 0
        and len(sizes) == 1
        and (one.parts, one.lr, one.strength) == (other.parts, other.lr, other.strength)
        and (one.toward or {}).keys() == (other.toward or {}).keys()
        and (one.correction or {}).keys() == (other.correction or {}).keys()
    )


def _known(training: Training) -> Sequence[Batch]:
    """The batches, unless they are made while the client is trained."""
    return training.batches if isinstance(training.batches, list | tuple) else ()


class _Steps:
    """The steps of one call of `Client.train` by several clients."""

    def __init__(
        self, clients: Sequence[Client], trainings: Sequence[Training], net: StackedNetwork
    ):
        self._clients, self._net, self._how = clients, net, trainings[0]
        self._batches = [_known(training) for training in trainings]
        self._steps = [len(own) for own in self._batches]
        self._rows, self._index = (
            pad_sequence([torch.stack([getattr(b, k) for b in own]) for own in self._batches])
            for k in ("rows", "index")
        )
        starts = [[_undrawn(b) for b in own[:2]] for own in self._batches]
        self._replay = Replay(record(clients, [t.loss for t in trainings], starts), net)
        self._toward = _stacked([t.toward for t in trainings])
        self._correction = _stacked([t.correction for t in trainings])

    def take(self) -> None:
        how, net, config = self._how, self._net, self._clients[0].task.config
        push = HeavyBall(net, how.parts, config.momentum)
        sums = torch.zeros(len(self._clients), device=net.vector.device)
        for number in range(self._steps[0]):
            self._clients[0].check_cancelled()
            active = sum(steps > number for steps in self._steps)
            if active != net.active:
                net.active = active
            with push.step():
                value = net.step(
                    partial(self._values if number else self._first_values, number),
                    how.lr,
                    how.parts,
                    {p: v[:active] for p, v in self._toward.items()} or None,
                    how.strength,
                    {p: v[:active] for p, v in self._correction.items()},
                    config.weight_decay,
                )
            sums[:active] += value
        net.keep_statistics()
        for client, total, steps in zip(self._clients, sums, self._steps, strict=True):
            client.report(total, steps)

    def _first_values(self, number: int) -> Tensor:
        """Nothing has changed yet: what goes wrong here can still be done one by one."""
        try:
            found = self._values(number)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            told = str(error).partition("\n")[0]
            raise Unstackable(f"cannot be computed for several at once ({told})") from error
        self._replay.check(found.detach())
        return found

    def _values(self, number: int) -> Tensor:
        return self._replay.losses(partial(self._input, number))

    def _input(self, number: int, name: str) -> Tensor:
        """One of the things that the batches of a step are made of, drawn if the loss asks."""
        pool, active = self._clients[0].shard.pool, self._net.active
        rows = self._rows[number, :active]
        match name:
            case "rows":
                return rows
            case "index":
                return self._index[number, :active]
        batches = [own[number] for own in self._batches[:active]]
        if any(name in vars(batch) for batch in batches):  # which may not be the pool's
            return _padded([getattr(batch, name) for batch in batches])
        if name == "y":
            return pool.y[rows]
        return pool.inputs(rows.flatten()).unflatten(0, rows.shape)


def _undrawn(batch: Batch) -> Batch:
    """The same batch apart from those around it, so that none of them is drawn."""
    return batch if "x" in vars(batch) else Batch(batch.pool, batch.rows, batch.index)


def _padded(inputs: Sequence[Tensor]) -> Tensor:
    """Samples or labels of all clients; texts as long as the longest."""
    if inputs[0].dim() != 2 or inputs[0].is_floating_point():
        return torch.stack(list(inputs))
    longest = max(x.shape[1] for x in inputs)
    return torch.stack([F.pad(x, (0, longest - x.shape[1])) for x in inputs])


def _stacked(each: Sequence[Mapping[str, Tensor] | None]) -> dict[str, Tensor]:
    """Vectors by part, one row a client; a vector that all share is not copied."""
    stacked = {}
    for part, first in (each[0] or {}).items():
        values = [own[part] for own in each if own is not None]
        is_shared = all(value is first for value in values)
        stacked[part] = first.expand(len(values), -1) if is_shared else torch.stack(values)
    return stacked
