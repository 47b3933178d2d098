"""FedFomo (Zhang et al., ICLR 2021): each client picks from other clients' models what helps it.

The server sends client i up to M other clients' models, those with the highest affinity, which is
the sum of the weights i gave them before. The client weighs model n by
max(0, (L(θ_i) − L(θ_n)) / ‖θ_n − θ_i‖) on data it holds back, normalised to sum 1, moves to that
combination of the models, and trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from pfl_bench.base import seeds
from pfl_bench.config import knob
from pfl_bench.engine import Client, Message, PersonalModelSent, Server, ServerState, Start, Upload


@dataclass(frozen=True)
class Hyper:
    others: int = knob(
        5,
        "models M sent to a client (0 is Local on the data not held back)",
        source="FedFomo",
        name="M",
        off=0,
        low=0,
    )
    validation: float = knob(
        0.2,
        "share of the training data held back to weigh models",
        source="FedFomo",
        low=0.01,
        high=0.9,
        search=(0.1, 0.4, "linear"),
        searched="pfl-bench: half to twice the default",
    )


class FedFomo(PersonalModelSent):
    title = "FedFomo"
    group = "paper"
    summary = (
        "Sends clients one another's models; each weighs them by how much they lower its own "
        "validation loss and combines them."
    )
    citation = (
        "Zhang et al., Personalized Federated Learning with First Order Model Optimization, "
        "ICLR 2021"
    )
    scored_model = "the client's personal model after local training"
    Hyper = Hyper

    def impossible(self) -> str | None:
        if min(self.task.train_sizes) >= 2:
            return None
        client = self.task.train_sizes.index(min(self.task.train_sizes))
        return f"FedFomo holds back validation data and client {client} has one training sample"

    def trained_sizes(self) -> list[int]:
        return [samples - self._held(samples) for samples in self.task.train_sizes]

    def _held(self, samples: int) -> int:
        """How many of a client's training samples it holds back, and trains on at least one."""
        return min(max(1, round(self.hyper.validation * samples)), samples - 1)

    def server_state(self, start: Start) -> ServerState:
        n = self.task.clients
        return {
            "models": [start.model] * n,
            "has_sent": torch.zeros(n, dtype=torch.bool),
            "affinity": torch.zeros(n, n),
        }

    def download(self, server: Server, client: int) -> Message:
        ids = self._choose(server, client)
        models = [server.state["models"][n] for n in ids]
        return {"ids": torch.tensor(ids, dtype=torch.int64), "models": models}

    def _choose(self, server: Server, client: int) -> list[int]:
        """The M models with the highest affinity among those ever sent; ties are drawn."""
        has_sent = server.state["has_sent"].tolist()
        affinity = np.zeros(len(has_sent))  # of a client that never joined: all are drawn
        if client < len(has_sent):
            affinity = server.state["affinity"][client].cpu().numpy()
        draw = server.numpy_generator("affinity ties", client).random(len(has_sent))
        nearest_first = np.lexsort((draw, -affinity)).tolist()
        known = (n for n in nearest_first if has_sent[n] and n != client)
        return sorted(islice(known, self.hyper.others))

    def train(self, client: Client, received: Message) -> None:
        validation, rest = self._hold_back(client)
        models = received["models"]
        weights = self._weigh(client, models, validation)
        self._combine(client, received, weights)
        client.train(lambda batch: self.loss(client, batch), batches=client.batches(of=rest))

    def _combine(self, client: Client, received: Message, weights: Tensor) -> None:
        models = received["models"]
        own = client.net.trainable
        own.add_(sum(w * (model - own) for w, model in zip(weights, models, strict=True)))
        client.memo["weights"], client.memo["ids"] = weights, received["ids"]

    def replay(self, client: Client, received: Message, sent: Message) -> Message:
        """With the weights that the client sent: they are not the server's to work out."""
        self.load(client, received)
        self._combine(client, received, sent["weights"])
        client.train(lambda batch: self.loss(client, batch))
        return self.upload(client)

    def _hold_back(self, client: Client) -> tuple[Tensor, Tensor]:
        """Positions of the validation samples and of the others; the same in every round."""
        path = ("validation", client.index)
        generator = seeds.torch_generator(self.task.config.seed, *path)
        order = torch.randperm(client.samples, generator=generator)
        held = self._held(client.samples)
        return order[:held].sort().values, order[held:].sort().values

    def _weigh(self, client: Client, models: list[Tensor], validation: Tensor) -> Tensor:
        """The normalised weights of the received models; zeros where none helps."""
        net, own = client.net, client.net.trainable.clone()

        def loss_of(model: Tensor) -> Tensor:
            net.trainable.copy_(model)
            return client.evaluate(lambda x: self.predict(client, x), "train", validation).loss

        if not models:
            return own[:0]
        own_loss = loss_of(own)
        gains = torch.stack([own_loss - loss_of(model) for model in models]).to(own)
        distances = torch.stack([(model - own).norm() for model in models])
        net.trainable.copy_(own)
        return first_order_weights(gains, distances)

    def upload(self, client: Client) -> Message:
        chosen = {"ids": client.memo["ids"], "weights": client.memo["weights"]}
        return super().upload(client) | chosen

    def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
        models, has_sent = list(server.state["models"]), server.state["has_sent"].clone()
        affinity, given = server.state["affinity"].clone(), {}
        for upload in uploads:
            models[upload.client] = upload.message["model"]
            has_sent[upload.client] = True
            given[upload.client] = upload.message["ids"], upload.message["weights"]
        # Whose models are sent is decided on the host, so that the affinity is there.
        for client, (ids, weights) in server.wait_for(given).items():
            affinity[client, ids] += torch.tensor(weights)
        return {"models": models, "has_sent": has_sent, "affinity": affinity}


def first_order_weights(gains: Tensor, distances: Tensor) -> Tensor:
    """max(0, gain / distance), normalised to sum 1; an equal model has nothing to give."""
    raw = torch.where(distances > 0, gains / distances.clamp_min(1e-30), 0).clamp_min(0)
    total = raw.sum()
    return torch.where(total > 0, raw / total, 0)
