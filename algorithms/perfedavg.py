"""Per-FedAvg (Fallah et al., NeurIPS 2020), first-order: the server learns an initialisation that
one gradient step adapts to a client.

Each local step takes two batches: θ' = θ − α∇f(θ; B1), then θ ← θ − β∇f(θ'; B2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from pfl_bench.config import knob
from pfl_bench.engine import Algorithm, Batch, Client, Message


@dataclass(frozen=True)
class Hyper:
    alpha: float | None = knob(
        None,
        "step size α of the adaptation; by default the learning rate η (0 is FedAvg on every "
        "second batch)",
        source="this benchmark: α = β = η",
        off=0.0,
        low=0,
        search=(0.002, 0.5, "log"),
        searched="pfl-bench: that of the learning rate",
    )
    beta: float | None = knob(
        None,
        "step size β of the meta-update; by default the learning rate η (0 never learns)",
        source="this benchmark: α = β = η",
        off=0.0,
        low=0,
    )


class PerFedAvg(Algorithm):
    title = "Per-FedAvg"
    group = "paper"
    summary = "Learns a global initialisation that one local gradient step adapts to each client."
    citation = (
        "Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A "
        "Model-Agnostic Meta-Learning Approach, NeurIPS 2020"
    )
    scored_model = "the global model after one SGD step on one batch of the client's training data"
    Hyper = Hyper
    steps_are_plain = True
    one_by_one = "it takes its steps itself, two batches at a time"

    def impossible(self) -> str | None:
        needed = 2 * self.task.config.batch_size
        smallest = min(self.task.train_sizes)
        if smallest >= needed:
            return None
        client = self.task.train_sizes.index(smallest)
        return (
            f"Per-FedAvg needs two batches ({needed} training samples) on every client and client "
            f"{client} has {smallest}"
        )

    def train(self, client: Client, received: Message) -> None:
        net, beta = client.net, client.lr if self.hyper.beta is None else self.hyper.beta
        batches = client.batches(least=2)
        for first, second in zip(batches, batches, strict=True):
            theta = net.trainable.clone()
            self._adapt(client, [first])
            loss = self.loss(client, second)
            gradients = net.gradients(loss)
            net.trainable.copy_(theta)
            net.descend(gradients, beta)
            client.report(loss)

    def scored(self, client: Client, received: Message) -> None:
        self.load(client, received)
        self._adapt(client, islice(client.batches(1, purpose="adapt"), 1))

    def _adapt(self, client: Client, batches: Iterable[Batch]) -> None:
        """θ' = θ − α∇f(θ; B)."""
        client.fine_tune(lambda batch: self.loss(client, batch), batches, lr=self.hyper.alpha)
