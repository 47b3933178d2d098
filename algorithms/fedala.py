"""FedALA (Zhang et al., AAAI 2023): each client learns what to take from the global model.

Before local training, client i mixes its last model θ_i with the received w, element by element:
θ_i + (w − θ_i) ⊙ W for the upper layers, w for the lower ones. W starts at 1, learns by gradient
steps W ← clip(W − η_W ∇f ⊙ (w − θ_i), 0, 1) on a share of the local data, and is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pfl_bench.config import knob
from pfl_bench.engine import Algorithm, Client, Loss, Message, Start, Task

STEADY, WINDOW = 0.1, 10
"""W has converged when the losses of its last ten epochs have a standard deviation below 0.1."""
MOST_EPOCHS = 50
"""Convergence is not waited for without end."""


@dataclass(frozen=True)
class Hyper:
    weight_lr: float = knob(
        1.0,
        "learning rate η_W of the weights (0 is FedAvg)",
        source="FedALA",
        off=0.0,
        low=0,
        search=(0.1, 10, "log"),
    )
    share: float = knob(
        0.8, "share s of the training data that W learns on", source="FedALA", low=0.01, high=1
    )
    layers: str = knob(
        "head", "what W mixes: head (p = 1) or model", source="FedALA", choices=("head", "model")
    )


class FedALA(Algorithm):
    title = "FedALA"
    summary = (
        "FedAvg in which each client learns, element by element, how much of the global head to "
        "take over its own."
    )
    citation = (
        "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, "
        "AAAI 2023"
    )
    scored_model = "the client's mixture of its last model and the global model as received"
    Hyper = Hyper
    waits = "W learns until its losses are steady, which is asked after each epoch"

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        self.mixed = ("head",) if hyper.layers == "head" else self.shared

    def client_state(self, start: Start) -> Message:
        return {
            "last": {part: start.parts[part] for part in self.mixed},
            "weights": {part: torch.ones_like(start.parts[part]) for part in self.mixed},
            "has_learnt": torch.tensor(False),  # on the host
        }

    def load(self, client: Client, received: Message) -> None:
        super().load(client, received)
        last, weights = client.state["last"], client.state["weights"]
        change = {part: received[part] - last[part] for part in self.mixed}
        is_other = any(client.wait_for(value.any()) for value in change.values())
        if is_other:
            weights = self._learn(client, last, change, weights)
        client.net.load(_mixture(last, change, weights))
        client.memo["weights"], client.memo["has_learnt"] = weights, is_other

    def _learn(
        self, client: Client, last: Message, change: Message, weights: Message
    ) -> dict[str, Tensor]:
        """W after one epoch, and the first time after as many as it needs."""
        net, loss = client.net, self._mixed_loss(client)
        count = max(1, round(self.hyper.share * client.samples))
        some = torch.randperm(client.samples, generator=client.generator("share"))[:count]
        net.train(False)
        losses: list[float] = []
        for epoch in range(1 if client.state["has_learnt"] else MOST_EPOCHS):
            for batch in client.batches(1, of=some, purpose=f"weights, epoch {epoch}"):
                mixture = _mixture(last, change, weights)
                net.load(mixture)
                value = net.step(partial(loss, batch), 1.0, self.mixed)  # moves by −∇f
                moved = {p: (net[p] - mixture[p]) * change[p] for p in self.mixed}
                rate = self.hyper.weight_lr
                weights = {p: (w + rate * moved[p]).clamp_(0, 1) for p, w in weights.items()}
            losses.append(client.wait_for(value))
            if len(losses) > WINDOW and torch.tensor(losses[-WINDOW:]).std() < STEADY:
                break
        return weights

    def _mixed_loss(self, client: Client) -> Loss:
        """The loss under the mixture; below a head that is mixed alone, features stay the same."""
        if self.mixed != ("head",):
            return lambda batch: self.loss(client, batch)
        features, head = client.frozen_features("extractor"), client.net.module("head")
        return lambda batch: F.cross_entropy(head(features(batch)), batch.y)

    def train(self, client: Client, received: Message) -> None:
        super().train(client, received)
        client.state["last"] = client.net.copy(self.mixed)
        client.state["weights"] = client.memo["weights"]
        if client.memo["has_learnt"]:
            client.state["has_learnt"] = torch.tensor(True)


def _mixture(last: Message, change: Message, weights: Message) -> dict[str, Tensor]:
    """θ_i + (w − θ_i) ⊙ W."""
    return {part: torch.addcmul(last[part], change[part], w) for part, w in weights.items()}
