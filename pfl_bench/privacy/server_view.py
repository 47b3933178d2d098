"""What a semi-honest server sees of a client, and how it stands in for one.

Everything is read off the algorithm's own hooks, so that no algorithm needs code to be attacked: a
client is loaded with what it receives, and the loss that its local training would step on is looked
at instead of being stepped on. What the server makes of it is in `privacy`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from pfl_bench.base import UserError
from pfl_bench.engine import (
    Batch,
    Client,
    ClientState,
    Loss,
    Simulator,
    build_network,
    initial_values,
)
from pfl_bench.models import Network, seeded

_INITIALISING = threading.Lock()
"""Layers draw from torch's global generator, which threads cannot borrow at the same time."""


class Watched(Client):
    """A client whose training is looked at: `losses` are those that it would step on, each with the
    parts that the step would move (None: all)."""

    losses: list[tuple[Loss, Sequence[str] | None]]

    def train(self, loss: Loss, *, parts: Sequence[str] | None = None, **_: Any) -> None:
        self.net.train()
        self.losses.append((loss, parts))

    def frozen_features(self, part: str) -> Callable[[Batch], Tensor]:
        """Of any images, not of this client's alone, and differentiable with respect to them."""
        return lambda batch: self.net.module(part)(batch.x)

    def gradient(
        self, parts: Sequence[str], batch: Batch, differentiable: bool = False
    ) -> Sequence[Tensor]:
        """That of the first step of local training that moves one of `parts`, on any batch."""
        moving = (loss for loss, some in self.losses if some is None or set(some) & set(parts))
        loss = next(moving, None)
        if loss is None:
            raise UserError(
                f"{self.task.config.algo} cannot be attacked: its local training takes no step on "
                "the loss of one batch"
            )
        return torch.autograd.grad(
            loss(batch),
            self.net.parameters(parts),
            create_graph=differentiable,
            materialize_grads=True,
        )


@dataclass(frozen=True)
class _SoftBatch:
    """Images with soft labels, which are nobody's."""

    x: Tensor
    y: Tensor
    index: Tensor


def soft_batch(x: Tensor, labels: Tensor) -> Batch:
    """A batch for a loss to read: cross-entropy takes probabilities as it takes classes."""
    return cast(Batch, _SoftBatch(x, labels, torch.arange(len(x))))


@contextmanager
def watched(
    simulator: Simulator, index: int, state: ClientState | None = None
) -> Iterator[Watched]:
    """The client in the round to come, loaded with what it receives: as it is, or with another
    `state` in the place of its own, which is how the server stands in for it."""
    algorithm, snapshot = simulator.algorithm, simulator.snapshot
    with simulator.client(index, snapshot.round + 1) as own:
        kept = own.state if state is None else state
        client = Watched(index, own.round, own.task, own.shard, kept, own.net)
        client.losses = []
        received = simulator.download(index)
        algorithm.load(client, received)
        algorithm.train(client, received)
        yield client


def sent_parts(simulator: Simulator, net: Network) -> list[str]:
    """The parts that local training changes and the client sends."""
    sent = [name for name in net.trainable_parts if name in simulator.algorithm.shared]
    if not sent:
        raise UserError(
            f"{simulator.config.algo} cannot be attacked: it sends no part that local training "
            "changes"
        )
    return sent


def update(simulator: Simulator, index: int, parts: Sequence[str]) -> list[Tensor]:
    """How a whole round of the client changes `parts`, over the learning rate and the number of
    steps, all of which the server knows: the mean gradient of the round."""
    algorithm, config = simulator.algorithm, simulator.config
    with simulator.client(index, simulator.snapshot.round + 1) as client:
        received = simulator.download(index)
        before = _shaped(client.net, parts, {**client.state, **received})
        sent = algorithm.local_update(client, received)
        after = _shaped(client.net, parts, {**client.state, **sent})
        steps = config.local_epochs * (client.samples // min(config.batch_size, client.samples))
    return [(b - a) / (config.lr * steps) for b, a in zip(before, after, strict=True)]


def _shaped(net: Network, parts: Sequence[str], values: Mapping[str, Tensor]) -> list[Tensor]:
    """The values of the parts, in the shapes of the network's parameters."""
    net.load({part: values[part] for part in parts})
    return [parameter.detach().clone() for parameter in net.parameters(parts)]


def guess(simulator: Simulator, seed: int) -> ClientState:
    """What a client keeps, as the server guesses it: a fresh initialisation of its own."""
    with _INITIALISING:
        net = seeded(seed, lambda: build_network(simulator.algorithm))
    net = net.to(simulator.device)
    start = initial_values(simulator.algorithm, net)
    return ClientState(simulator.algorithm.client_state(start), {})
