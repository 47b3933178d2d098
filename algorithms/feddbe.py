"""FedDBE (Zhang et al., NeurIPS 2023): FedAvg with the domain bias of features taken out.

Before the first round clients train once and tell the mean of their features; the average is the
consensus z. Then each client adds a vector of its own, the memory of its bias, to its features
before the head reads them, and κ/2·MSE(mean features of a batch, z) keeps the bias out of the
shared extractor. Extractor and head are averaged, the memory stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_bench.config import knob
from pfl_bench.engine import (
    Algorithm,
    Batch,
    Client,
    Message,
    Server,
    ServerState,
    Start,
    Upload,
    weighted_mean,
)
from pfl_bench.models import Model


@dataclass(frozen=True)
class Hyper:
    kappa: float = knob(
        50.0,
        "weight κ of the tie to the consensus",
        source="authors' code",
        by_model={"cnn_small": 0.6, "resnet18": 2.5, "resnet_small": 0.3, "fasttext": 0.15},
        off=0.0,
        low=0,
        search=(0.05, 100, "log"),
        searched="pfl-bench: around the defaults of all models",
    )
    momentum: float = knob(
        1.0,
        "weight of the batch in the running mean of the features (1: the batch alone)",
        source="authors' code",
        low=0.001,
        high=1,
    )


class Memory(nn.Module):
    """Adds a vector to features; nothing at first."""

    def __init__(self, features: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.bias


class FedDBE(Algorithm):
    title = "FedDBE"
    summary = (
        "FedAvg whose clients keep the bias of their features to themselves and tie the rest to a "
        "consensus."
    )
    citation = (
        "Zhang et al., Eliminating Domain Bias for Federated Learning in Representation Space, "
        "NeurIPS 2023"
    )
    scored_model = "the global model as received with the client's own memory of its bias"
    personal = ("memory",)
    Hyper = Hyper

    def parts(self, model: Model) -> dict[str, nn.Module]:
        return {**super().parts(model), "memory": Memory(model.features)}

    def server_state(self, start: Start) -> ServerState:
        return {**super().server_state(start), "consensus": start.parts["memory"]}

    def introduction(self, client: Client, received: Message) -> Message:
        self.load(client, received)
        client.train(lambda batch: super(FedDBE, self).loss(client, batch), parts=self.shared)
        return {"mean": client.collect(client.net.module("extractor")).mean(0)}

    def begin(self, server: Server, told: Iterator[Upload]) -> ServerState:
        return {**server.state, "consensus": weighted_mean(told)["mean"]}

    def download(self, server: Server, client: int) -> Message:
        return {**super().download(server, client), "consensus": server.state["consensus"]}

    def load(self, client: Client, received: Message) -> None:
        super().load(client, received)
        client.memo["consensus"] = received["consensus"]

    def loss(self, client: Client, batch: Batch) -> Tensor:
        h = client.net.module("extractor")(batch.x)
        logits = client.net.module("head")(client.net.module("memory")(h))
        mean, share = h.mean(0), self.hyper.momentum
        if share < 1:
            past = client.memo.get("running", mean)
            mean = (1 - share) * past + share * mean
            client.memo["running"] = mean.detach()
        tie = F.mse_loss(mean, client.memo["consensus"]) / 2
        return F.cross_entropy(logits, batch.y) + self.hyper.kappa * tie

    def predict(self, client: Client, x: Tensor) -> Tensor:
        h = client.net.module("extractor")(x)
        return client.net.module("head")(client.net.module("memory")(h))
