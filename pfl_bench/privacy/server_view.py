"""What a semi-honest server sees of a client: the messages of real local updates.

Two rounds of one client are carried out as the engine would: one as usual, then the attacked one.
What went down and what came up is copied for the server; nothing else leaves this module, so that
no declaration of an algorithm can hide what it sends or promise what it does not. What the server
makes of it is in `stand_in`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pfl_bench.engine import Algorithm, Batch, Message, Shard, Simulator, Task


@dataclass(frozen=True)
class Exchange:
    """What one client received in a round and what it sent."""

    received: Message
    sent: Message


@dataclass(frozen=True)
class Public:
    """What everybody knows: the method and its hyper-parameters, the configuration without its seed
    (from which clients draw), the architecture, the shape of an image, how many samples clients
    have (by which the server weighs them)."""

    kind: type[Algorithm]
    hyper: Any
    task: Task
    image: tuple[int, ...]
    device: torch.device

    @classmethod
    def of(cls, simulator: Simulator) -> Public:
        task = replace(simulator.task, config=replace(simulator.config, seed=0))
        algorithm, pool = simulator.algorithm, simulator.shards[0].pool
        height, width, channels = pool.x.shape[1:]
        image = (channels, height, width)
        return cls(type(algorithm), algorithm.hyper, task, image, simulator.device)


@dataclass(frozen=True)
class Observed:
    """Two rounds of one client in a row, the later one attacked."""

    client: int
    round: int
    images: int
    """In the attacked batch."""
    before: Exchange
    now: Exchange
    batches: int = 1
    """So many batches an epoch made what was sent; the server knows their number."""
    kept: Message | None = None
    """What the client had kept: no message, and there for an attacker that is told it."""


class OneBatch(Shard):
    """A client's data as ever, of which one batch is trained on."""

    def __init__(self, shard: Shard, positions: Sequence[int]):
        self.__dict__.update(vars(shard))
        index = torch.tensor(positions, device=self.train.device)
        self.batch = Batch(self.pool, self.train[index], index)

    def batches(
        self,
        size: int,
        epochs: int,
        generator: torch.Generator,
        of: Tensor | None = None,
        least: int = 1,
    ) -> Iterator[Batch]:
        """The batch once an epoch, or as often as a step needs batches."""
        return iter([self.batch] * (epochs * least))


def observe(
    simulator: Simulator, client: int, batch: Sequence[int], *, is_whole: bool, is_told: bool
) -> Observed:
    """The messages of a round of all the client's data, and of the next one: that of one `batch`
    (positions among its training samples), or of all its data again if `is_whole`. With `is_told`
    also what the client kept in between."""
    shard, config = simulator.shards[client], simulator.config
    first = simulator.snapshot.round + 1
    before, kept = _round(simulator, client, first, shard, {})
    attacked = shard if is_whole else OneBatch(shard, batch)
    now, _ = _round(simulator, client, first + 1, attacked, kept)
    size = min(config.batch_size, shard.samples)
    batches = shard.samples // size if is_whole else 1
    told = kept if is_told else None
    return Observed(client, first + 1, len(batch), before, now, batches, told)


def _round(
    simulator: Simulator, index: int, round: int, shard: Shard, kept: Mapping[str, Any]
) -> tuple[Exchange, Message]:
    """A round of one client as the engine carries it out: its messages, and what it keeps."""
    algorithm = simulator.algorithm
    with simulator.client(index, round) as client:
        client.shard = shard
        client.state.update(kept)
        received = simulator.download(index)
        sent = algorithm.local_update(client, received)
        return Exchange(copied(received), copied(sent)), copied(dict(client.state))


def copied(tree: Any) -> Any:
    """A tree of tensors of its own."""
    return mapped(tree, lambda tensor: tensor.detach().clone())


def mapped(tree: Any, change: Any) -> Any:
    """The tree with every tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: mapped(value, change) for name, value in tree.items()}
    return [mapped(value, change) for value in tree]


def leaves(tree: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors of a message by their path, such as `model/extractor`."""
    if isinstance(tree, Tensor):
        return {name: tree}
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    found: dict[str, Tensor] = {}
    for key, value in items:
        found |= leaves(value, f"{name}/{key}" if name else str(key))
    return found
