"""A round's jobs added up: traffic, losses, kept states, defects.

Each client's result passes through here on its way to the aggregation and is then gone. Values that
only the device knows are told at the round's end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pfl_bench.engine.algorithm import Upload
from pfl_bench.engine.client import Message, Score, Scores
from pfl_bench.engine.server import ServerState
from pfl_bench.engine.snapshot import Snapshot
from pfl_bench.engine.trees import Tree, leaves

CONVERGENCE = "convergence"
RECORDABLE = {CONVERGENCE: "training loss and test accuracy before and after local learning"}


@dataclass(frozen=True)
class Trained:
    """What one client's job gives back."""

    upload: Upload
    state: dict[str, Tree]
    stats: Tensor | None
    """Batch-norm statistics that the client keeps."""
    sent_stats: Tensor | None
    """Those that are averaged; as many came down with the message."""
    received: Message
    train_loss: Tensor | None
    scores: Scores | None
    convergence: dict[str, tuple[Tensor, Score]] | None

    @property
    def sent(self) -> Message:
        """All that went up, as large as it is on the wire."""
        return self.upload.message | self._stats_sent

    @property
    def got(self) -> Message:
        """All that came down."""
        return self.received | self._stats_sent

    @property
    def _stats_sent(self) -> Message:
        return {} if self.sent_stats is None else {"batch-norm statistics": self.sent_stats}


@dataclass(frozen=True)
class Heard:
    """What the device knows of one client's part in the round; numbers once it has told."""

    client: int
    weight: float
    loss: Any
    is_finite: list[Any]
    """Of each tensor sent."""
    is_introduction: bool = False
    convergence: Any = None

    @property
    def defect(self) -> str | None:
        if self.loss is not None and not math.isfinite(self.loss):
            return f"the training loss of client {self.client} is {self.loss}"
        if all(self.is_finite):
            return None
        if self.is_introduction:
            return f"the introduction of client {self.client} is not finite"
        return f"the upload of client {self.client} holds values that are not finite"


@dataclass(frozen=True)
class Rated:
    """What a round's evaluation gives."""

    scores: list[Scores]
    series: dict[str, list[Any]]
    newcomers: list[Score]


class RoundTotals:
    """Gathers a round's uploads as they pass by on their way to the aggregation.

    `heard` waits for the device; when its values are known, `settle` makes the rest of them.
    """

    def __init__(self, before: Snapshot):
        self._before = before
        self.clients = dict(before.clients)
        self.stats = dict(before.stats)
        self.scores: dict[int, Scores] = {}
        self.defect: str | None = None
        self.train_loss: float | None = None
        self.bytes_up = self.bytes_down = self.parameters_up = self.parameters_down = 0
        self.heard: list[Heard] = []
        self._mean_stats: Tensor | None = None

    def uploads(self, trained: Iterator[Trained]) -> Iterator[Upload]:
        for one in trained:
            self._count(one)
            yield one.upload

    def introductions(self, told: Iterator[tuple[Upload, Message]]) -> Iterator[Upload]:
        """What clients say before the first round, and what they received for it."""
        for upload, received in told:
            self._count_traffic(upload.message, received)
            finite = _finite(upload.message)
            self.heard.append(Heard(upload.client, upload.weight, None, finite, True))
            yield upload

    def _count_traffic(self, sent: Message, got: Message) -> None:
        self.bytes_up += _bytes(sent)
        self.bytes_down += _bytes(got)
        self.parameters_up += _parameters(sent)
        self.parameters_down += _parameters(got)

    def _count(self, one: Trained) -> None:
        index, weight = one.upload.client, one.upload.weight
        self._count_traffic(one.sent, one.got)
        self.heard.append(
            Heard(index, weight, one.train_loss, _finite(one.sent), convergence=one.convergence)
        )
        if one.state:
            self.clients[index] = one.state
        if one.scores is not None:
            self.scores[index] = one.scores
        if one.stats is not None:
            self.stats[index] = one.stats
        if one.sent_stats is not None:
            if self._mean_stats is None:
                self._mean_stats = torch.zeros_like(one.sent_stats)
            self._mean_stats.add_(one.sent_stats, alpha=weight)

    def snapshot(self, round: int, server: ServerState) -> Snapshot:
        """The state after the round, given what the aggregation made of the server's."""
        stats = self._before.server_stats if self._mean_stats is None else self._mean_stats
        return Snapshot(round, server, self.clients, self.stats, stats)

    def settle(self, heard: Sequence[Heard]) -> None:
        """Add up what the device has told, in the order of the clients."""
        self.heard = list(heard)
        for one in heard:
            if one.loss is not None:
                self.train_loss = (self.train_loss or 0.0) + one.weight * one.loss
            self.defect = self.defect or one.defect

    def extras(self) -> dict[str, Any]:
        """The convergence series: losses weighted by samples, accuracy over the joined clients."""
        known = [one for one in self.heard if one.convergence is not None]
        if not known:
            return {}
        series = {}
        for when in ("before", "after"):
            rows = [(one.weight, *one.convergence[when]) for one in known]
            series[when] = {
                "train_loss": sum(weight * loss for weight, loss, _ in rows),
                "accuracy": sum(s.correct for *_, s in rows) / sum(s.total for *_, s in rows),
            }
        return {CONVERGENCE: series}


def _finite(message: Message) -> list[Tensor]:
    """Whether each tensor of a message is finite, as the device knows it."""
    return [torch.isfinite(value.sum()) for value in leaves(message) if value.is_floating_point()]


def _bytes(message: Message) -> int:
    return sum(value.numel() * value.element_size() for value in leaves(message))


def _parameters(message: Message) -> int:
    return sum(value.numel() for value in leaves(message) if value.is_floating_point())
