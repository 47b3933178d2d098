"""GPFL (Zhang et al., ICCV 2023): generic and personal features from one extractor.

A conditional valve (CoV) turns features h into relu((1 + γ) ⊙ h + β) with γ, β from a condition:
the mean of all category embeddings (GCE) for generic features, their mean by the client's own class
shares for personal ones. The head reads the personal features; the generic ones are drawn to the
embedding of their class, in angle and in length. The head stays, everything else is shared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_bench.config import knob
from pfl_bench.engine import Algorithm, Batch, Client, Message
from pfl_bench.models import Model, WideLinear, rows_by_class


@dataclass(frozen=True)
class Hyper:
    lam: float = knob(
        0.01,
        "weight λ of the distance to the embeddings",
        source="authors' code",
        name="lambda",
        by_model={"resnet18": 0.0001, "resnet_small": 0.0001, "fasttext": 0.0001},
        off=0.0,
        low=0,
        search=(0.0001, 0.1, "log"),
        searched="pfl-bench: holds the defaults of all models, and a decade above",
    )
    mu: float = knob(
        0.1,
        "weight decay μ of valve and embeddings",
        source="authors' code",
        by_model={"resnet18": 0.0, "resnet_small": 0.0, "fasttext": 0.0},
        low=0,
    )


class Valve(nn.Module):
    """The CoV: scale and shift of features, each from the condition."""

    def __init__(self, features: int):
        super().__init__()
        self.gamma, self.beta = (
            nn.Sequential(WideLinear(features, features), nn.ReLU(), nn.LayerNorm(features))
            for _ in range(2)
        )

    def forward(self, h: Tensor, condition: Tensor) -> Tensor:
        return F.relu((1 + self.gamma(condition)) * h + self.beta(condition))


class GPFL(Algorithm):
    title = "GPFL"
    summary = (
        "A conditional module makes generic and personal features of the same ones; category "
        "embeddings guide the generic, a personal head reads the personal."
    )
    citation = (
        "Zhang et al., GPFL: Simultaneously Learning Global and Personalized Feature Information "
        "for Personalized Federated Learning, ICCV 2023"
    )
    scored_model = "extractor, valve and embeddings as received with the client's own head"
    shared, personal = ("extractor", "valve", "embeddings"), ("head",)
    Hyper = Hyper

    def parts(self, model: Model) -> dict[str, nn.Module]:
        return {
            **super().parts(model),
            "valve": Valve(model.features),
            "embeddings": nn.Embedding(self.task.classes, model.features),
        }

    def load(self, client: Client, received: Message) -> None:
        super().load(client, received)
        embeddings = client.net.module("embeddings").weight.detach().clone()
        shares = client.shard.class_counts / client.samples
        client.memo["embeddings"] = embeddings
        client.memo["generic"] = embeddings.mean(0, keepdim=True)
        client.memo["personal"] = (shares.to(embeddings) @ embeddings)[None]

    def train(self, client: Client, received: Message) -> None:
        nothing = {p: torch.zeros_like(received[p]) for p in ("valve", "embeddings")}
        client.train(lambda batch: self.loss(client, batch), toward=nothing, strength=self.hyper.mu)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        net, memo = client.net, client.memo
        h, valve = net.module("extractor")(batch.x), net.module("valve")
        generic = valve(h, memo["generic"])
        towards = F.normalize(net.module("embeddings").weight, dim=1)
        angle = F.cross_entropy(F.normalize(generic, dim=1) @ towards.T, batch.y)
        length = (generic - rows_by_class(memo["embeddings"], batch.y)).norm(dim=1).mean()
        logits = net.module("head")(valve(h, memo["personal"]))
        return F.cross_entropy(logits, batch.y) + angle + self.hyper.lam * length

    def predict(self, client: Client, x: Tensor) -> Tensor:
        net = client.net
        h = net.module("extractor")(x)
        return net.module("head")(net.module("valve")(h, client.memo["personal"]))
