"""FedPHP (Li et al., ECML PKDD 2021): a personal model that remembers its history.

After local training the personal model moves towards the trained one, p ← μ_t p + (1 − μ_t) θ with
μ_t = μ·t/T, and during it teaches through its features:
loss = (1 − λ)·cross-entropy + λ·MMD(features, features of p).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from pfl_bench.config import knob
from pfl_bench.engine import Batch, Client, Message, PersonalModelBeside
from pfl_bench.models import mmd


@dataclass(frozen=True)
class Hyper:
    mu: float = knob(
        0.9,
        "final memory μ of the personal model (0 forgets at once)",
        source="advice of FedCP's first author; also FedPHP",
        off=0.0,
        low=0,
        high=1,
        search=(0.1, 0.99, "linear"),
    )
    lam: float = knob(
        0.01,
        "weight λ of the MMD (1 switches cross-entropy off, 0 the MMD)",
        source="advice of FedCP's first author",
        name="lambda",
        off=1.0,
        low=0,
        high=1,
        search=(0.001, 0.5, "log"),
    )


class FedPHP(PersonalModelBeside):
    title = "FedPHP"
    group = "paper"
    summary = (
        "FedAvg with a personal model per client, a moving average of the local ones, that guides "
        "local training through its features."
    )
    citation = (
        "Li et al., FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021"
    )
    scored_model = "the personal model p after local training"
    Hyper = Hyper
    frozen = PersonalModelBeside.personal
    plans_rounds = True

    def train(self, client: Client, received: Message) -> None:
        client.memo["inherited"] = client.frozen_features("personal_extractor")
        super().train(client, received)
        self._inherit(client)

    def _inherit(self, client: Client) -> None:
        """p ← μ_t p + (1 − μ_t) θ, batch-norm statistics included, with t counted from 0."""
        mu_t = self.hyper.mu * (client.round - 1) / self.task.config.rounds
        for p, theta in zip(self.personal, self.shared, strict=True):
            client.net[p].lerp_(client.net[theta], 1 - mu_t)
            for old, new in zip(
                client.net.statistics(p), client.net.statistics(theta), strict=True
            ):
                old.lerp_(new, 1 - mu_t)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        features = client.net.module("extractor")(batch.x)
        entropy = F.cross_entropy(client.net.module("head")(features), batch.y)
        distance = mmd(features, client.memo["inherited"](batch))
        return (1 - self.hyper.lam) * entropy + self.hyper.lam * distance
