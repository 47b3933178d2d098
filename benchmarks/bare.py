"""The bare loop: forward, backward and update on resident batches, and nothing else.

The same model, the same number of steps and the same number of workers as a round of ours, and the
features of an extractor that a method freezes, without clients, messages, shuffling, aggregation or
evaluation: the physical limit of this design.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_bench.engine import EVALUATION_BATCH, Batch, Client, Message, Simulator
from pfl_bench.models import Network


@dataclass(frozen=True)
class Phase:
    """Steps over all batches, `epochs` times; `toward` is what the method's update is tied to."""

    net: Network
    loss: Callable[[Batch], Tensor]
    parts: tuple[str, ...]
    epochs: int = 1
    toward: Message | None = None
    strength: float = 0.0
    frozen: nn.Module | None = None
    """An extractor whose features of all samples are computed first, in large batches."""


class BareLoop:
    def __init__(self, ours: Simulator):
        self.lr = ours.config.lr
        size = ours.config.batch_size
        steps = sum(shard.samples // size for shard in ours.shards)
        share = -(-steps // ours.workers)
        largest = max(range(len(ours.shards)), key=lambda i: ours.shards[i].samples)
        self.work = []
        for worker in range(ours.workers):
            with ours.client(largest, 1) as client:
                received = ours.download(largest)
                ours.algorithm.load(client, received)
                batches = list(client.batches())
                for batch in batches:
                    _ = batch.x, batch.y  # drawn now, kept with the batch
                count = min(share, steps - worker * share)
                rows = [batches[k % len(batches)] for k in range(count)]
                large = [batch.x for batch in client.shard.evaluation_batches("train")]
                passes = -(-count * size // EVALUATION_BATCH)
                images = [large[k % len(large)] for k in range(passes)]
                self.work.append((_phases(client, ours), rows, images))

    def run_round(self) -> None:
        threads = [threading.Thread(target=self._run, args=work) for work in self.work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run(self, phases: list[Phase], batches: list[Batch], images: list[Tensor]) -> None:
        for phase in phases:
            if phase.frozen is not None:
                with torch.no_grad():
                    for x in images:
                        phase.frozen(x)
            for _ in range(phase.epochs):
                for batch in batches:
                    phase.net.step(
                        partial(phase.loss, batch),
                        self.lr,
                        phase.parts,
                        phase.toward,
                        phase.strength,
                    )


def _phases(client: Client, ours: Simulator) -> list[Phase]:
    """What a method steps on."""
    net, algorithm = client.net, ours.algorithm

    def loss(batch: Batch) -> Tensor:
        return algorithm.loss(client, batch)

    match ours.config.algo:
        case "fedrep":
            features, head = client.frozen_features("extractor"), net.module("head")
            return [
                Phase(
                    net,
                    lambda batch: F.cross_entropy(head(features(batch)), batch.y),
                    ("head",),
                    algorithm.hyper.head_epochs,
                    frozen=net.module("extractor"),
                ),
                Phase(net, loss, ("extractor",)),
            ]
        case "ditto":
            global_loss = partial(algorithm.global_loss, client)  # type: ignore[attr-defined]
            return [
                Phase(net, global_loss, algorithm.shared),
                Phase(
                    net,
                    loss,
                    algorithm.personal,
                    toward=dict(
                        zip(algorithm.personal, net.copy(algorithm.shared).values(), strict=True)
                    ),
                    strength=algorithm.hyper.mu,
                ),
            ]
        case "fedcp":
            client.memo["aligned"] = client.frozen_features("global_extractor")
            frozen = net.module("global_extractor")
            return [Phase(net, loss, net.trainable_parts, frozen=frozen)]
    return [Phase(net, loss, net.trainable_parts)]
