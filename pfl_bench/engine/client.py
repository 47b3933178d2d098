"""A client during one round: its data, its kept state and a workspace to compute in.

The object lives for one job and is then gone; what must survive is in `state`, under names that
the algorithm declared.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pfl_bench.base import seeds
from pfl_bench.config import RunConfig
from pfl_bench.device import exact, fetched
from pfl_bench.engine.batches import Batch, Shard
from pfl_bench.engine.trees import Tree
from pfl_bench.models import Model, Network

Message = dict[str, Tree]
"""What travels, by name: tensors, or trees of them."""
Loss = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Task:
    """The facts of a run that every algorithm may know."""

    config: RunConfig
    classes: int
    train_sizes: tuple[int, ...]
    build_model: Callable[[], Model]

    @property
    def clients(self) -> int:
        return len(self.train_sizes)


@dataclass(frozen=True)
class Training:
    """What one call of `Client.train` asks for."""

    loss: Loss
    batches: Iterable[Batch]
    parts: Sequence[str] | None
    lr: float
    toward: Mapping[str, Tensor] | None
    strength: float
    correction: Mapping[str, Tensor] | None


class ClientState(UserDict[str, Tree]):
    """What a client keeps between rounds. Only declared names can be written."""

    def __init__(self, declared: Mapping[str, Tree], kept: Mapping[str, Tree]):
        self._declared = frozenset(declared)
        super().__init__({**declared, **kept})

    def __setitem__(self, name: str, value: Tree) -> None:
        if name not in self._declared:
            raise KeyError(
                f"client state {name!r} is not declared; the algorithm's client_state() names "
                f"{sorted(self._declared)}"
            )
        super().__setitem__(name, value)


class Client:
    """What an algorithm's local computation works with.

    `memo` is for what the algorithm computes once and uses again within the job; it does not
    survive it.
    """

    def __init__(
        self,
        index: int,
        round: int,
        task: Task,
        shard: Shard,
        state: ClientState,
        net: Network,
        check_cancelled: Callable[[], None] = lambda: None,
        in_block: Callable[[Training], None] | None = None,
    ):
        self.index = index
        self.round = round
        self.task = task
        self.shard = shard
        self.state = state
        self.net = net
        self.memo: dict[str, Any] = {}
        self.check_cancelled = check_cancelled
        self._in_block = in_block
        self._loss_sum = torch.zeros((), device=net.vector.device)
        self._steps = 0

    def training_for(self, epochs: int) -> Client:
        """The same client, on the same workspace and state, with another number of local epochs."""
        config = replace(self.task.config, local_epochs=epochs)
        twin = copy(self)
        twin.task = replace(self.task, config=config)
        return twin

    @property
    def samples(self) -> int:
        return self.shard.samples

    @property
    def labels(self) -> Tensor:
        """The classes of the training samples, in their order."""
        return self.shard.pool.y[self.shard.train]

    @property
    def lr(self) -> float:
        """The local learning rate of this round."""
        config = self.task.config
        return config.lr * config.lr_decay ** max(0, self.round - 1)

    def generator(self, purpose: str) -> torch.Generator:
        """The client's own random numbers of this round for one purpose."""
        return seeds.torch_generator(self.task.config.seed, purpose, self.round, self.index)

    def batches(
        self,
        epochs: int | None = None,
        *,
        of: Tensor | None = None,
        least: int = 1,
        purpose: str = "batches",
    ) -> Iterator[Batch]:
        """Training batches of the configured size (see `Shard.batches`)."""
        epochs = self.task.config.local_epochs if epochs is None else epochs
        size = self.task.config.batch_size
        for batch in self.shard.batches(size, epochs, self.generator(purpose), of, least):
            self.check_cancelled()
            yield batch

    def train(
        self,
        loss: Loss,
        *,
        batches: Iterable[Batch] | None = None,
        parts: Sequence[str] | None = None,
        lr: float | None = None,
        toward: Mapping[str, Tensor] | None = None,
        strength: float = 0.0,
        correction: Mapping[str, Tensor] | None = None,
    ) -> None:
        """The training loop: SGD on `loss`, over the local epochs unless told otherwise; with the
        configured momentum and weight decay, if any.

        `toward` and `strength` add the proximal term (strength/2)‖θ − w‖² for the parts that
        `toward` names. `correction`, by part too, is added to the gradient of every step. `parts`
        restricts the gradient step to some parts of the network.
        """
        self.net.train()
        drawn = self.batches() if batches is None else batches
        rate = self.lr if lr is None else lr
        training = Training(loss, drawn, parts, rate, toward, strength, correction)
        if self._in_block is None:
            self.take_steps(training)
        else:
            self._in_block(training)

    def take_steps(self, training: Training) -> None:
        """The steps of one call of `train`, by this client alone."""
        push = HeavyBall(self.net, training.parts, self.task.config.momentum)
        for batch in training.batches:
            with push.step():
                value = self.net.step(
                    partial(training.loss, batch),
                    training.lr,
                    training.parts,
                    training.toward,
                    training.strength,
                    training.correction,
                    self.task.config.weight_decay,
                )
            self.report(value)

    def fine_tune(
        self,
        loss: Loss,
        batches: Iterable[Batch],
        *,
        parts: Sequence[str] | None = None,
        lr: float | None = None,
    ) -> None:
        """Plain SGD steps that are no training: their loss is not counted as the round's."""
        self.net.train()
        lr = self.lr if lr is None else lr
        for batch in batches:
            self.net.descend(self.net.gradients(loss(batch), parts), lr, parts)

    def report(self, loss: Tensor, steps: int = 1) -> None:
        """Count the loss of a step, or the sum of several, into the round's mean training loss."""
        self._loss_sum += loss.detach()
        self._steps += steps

    @property
    def steps(self) -> int:
        """How many steps were reported."""
        return self._steps

    @property
    def train_loss(self) -> Tensor | None:
        """The mean of what was reported; None if nothing was. It stays on the device."""
        if not self._steps:
            return None
        return self._loss_sum.to(exact(self._loss_sum.device)) / self._steps

    def wait_for(self, value: Tensor) -> float:
        """The number in a tensor. All work of the device that leads to it is waited for: a method
        that asks in its local update says why (`Algorithm.waits`)."""
        return float(fetched(value))

    @torch.no_grad()
    def collect(
        self, compute: Callable[[Tensor], Tensor], which: str = "train", of: Tensor | None = None
    ) -> Tensor:
        """`compute(x)` for every sample of a set, in order and in large batches."""
        self.net.train(False)
        return torch.cat([compute(batch.x) for batch in self._evaluation_batches(which, of)])

    def _evaluation_batches(self, which: str, of: Tensor | None) -> Iterator[Batch]:
        for batch in self.shard.evaluation_batches(which, of):
            self.check_cancelled()
            yield batch

    def frozen_features(self, part: str) -> Callable[[Batch], Tensor]:
        """Features of training batches under an extractor that does not change meanwhile.

        They are computed once for all training samples, unless batch norm makes a sample's
        features depend on the batch it is in.
        """
        extractor = self.net.module(part)
        if self.net.stats.numel():

            @torch.no_grad()
            def of_batch(batch: Batch) -> Tensor:
                with self.net.unmoved_statistics(part):
                    return extractor(batch.x)

            return of_batch
        features = self.collect(extractor)
        return lambda batch: features[batch.index]

    @torch.no_grad()
    def evaluate(
        self, predict: Callable[[Tensor], Tensor], which: str = "test", of: Tensor | None = None
    ) -> Score:
        """Correct predictions and mean cross-entropy over a set, in inference mode."""
        self.net.train(False)
        device = self.net.vector.device
        correct = torch.zeros((), dtype=torch.int64, device=device)
        loss = torch.zeros((), dtype=exact(device), device=device)
        total = 0
        for batch in self._evaluation_batches(which, of):
            logits = predict(batch.x)
            correct += (logits.argmax(1) == batch.y).sum()
            loss += F.cross_entropy(logits, batch.y, reduction="sum")
            total += len(batch.y)
        return Score(correct, total, loss / total)


class HeavyBall:
    """Momentum m, as θ ← θ − η g + m (θ − θ of the step before).

    The same as a velocity while η is constant, and the gradients of large layers need not be
    written down for it.
    """

    def __init__(self, net: Network, parts: Sequence[str] | None, momentum: float):
        self._net, self._momentum = net, momentum
        self._parts = net.trainable_parts if parts is None else parts
        self._last: dict[str, Tensor] = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a step of plain SGD."""
        if not self._momentum:
            yield
            return
        before = {part: self._net[part].clone() for part in self._parts}
        yield
        for part, last in self._last.items():
            still = last[: len(before[part])]  # of a stack, those that take this step too
            self._net[part].add_(before[part] - still, alpha=self._momentum)
        self._last = before


@dataclass(frozen=True)
class Score:
    """Correct predictions of so many, and the mean loss: tensors on the device until the round has
    ended, then numbers."""

    correct: Any
    total: int
    loss: Any


@dataclass(frozen=True)
class Scores:
    """A client's model on its test set and, where it holds samples back, on those."""

    test: Score
    validation: Score | None = None
