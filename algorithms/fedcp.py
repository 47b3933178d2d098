"""FedCP (Zhang et al., KDD 2023): a conditional policy separates each sample's features.

For features h of a sample, the conditional policy network (CPN) gives r and s with r + s = 1, from
the input C = (v/‖v‖) ⊙ h where v is the sum of the rows of the personal head. The frozen global
head reads r ⊙ h, the personal head s ⊙ h, and their logits are added. A frozen copy of the global
extractor keeps the features where the global head understands them, through the MMD (GFM). What is
sent: extractor, the mean of both heads, CPN; what stays: the personal head.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_bench.algorithms.metrics import fedcp as own
from pfl_bench.base import UserError, seeds
from pfl_bench.config import knob
from pfl_bench.device import exact, put
from pfl_bench.engine import Algorithm, Batch, Client, Message, Task
from pfl_bench.models import Model, Network, WideLinear, mmd

PAPER = "FedCP"
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "batch": nn.BatchNorm1d,
    "group": lambda width: nn.GroupNorm(2, width),
}
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Hyper:
    lam: float = knob(
        5.0,
        "weight λ of the MMD (0 is 'w.o. GFM')",
        source=PAPER,
        name="lambda",
        by_model={"resnet18": 1.0, "resnet_small": 1.0, "fasttext": 1.0},
        off=0.0,
        low=0,
        search=(0.1, 10, "log"),
        searched="FedCP's grid without its 0: 0.1, 1, 5, 10",
    )
    cs: bool = knob(True, "client-specific vector v in the CPN's input", source=PAPER, off=False)
    ss: bool = knob(True, "sample-specific vector h in the CPN's input", source=PAPER, off=False)
    gfm: bool = knob(True, "frozen global extractor and MMD", source=PAPER, off=False)
    cpn: bool = knob(True, "conditional policy network", source=PAPER, off=False)
    gh: bool = knob(True, "frozen global head; the CPN needs it", source=PAPER, off=False)
    layers: int = knob(1, "fully connected layers of the CPN", source=PAPER, low=1, high=4)
    norm: str = knob("layer", "normalisation in the CPN", source=PAPER, choices=tuple(NORMS))
    activation: str = knob(
        "relu", "activation of the CPN", source=PAPER, choices=tuple(ACTIVATIONS)
    )
    gumbel: bool = knob(False, "draw the policy with Gumbel noise (τ = 1)", source="authors' code")
    score: str = knob(
        "before", "score before or after local learning", source=PAPER, choices=("before", "after")
    )


class PolicyNetwork(nn.Sequential):
    """The CPN: K→K layers if asked for, then K→2K, normalisation, activation."""

    def __init__(self, features: int, layers: int, norm: str, activation: str):
        deeper = [
            layer
            for _ in range(layers - 1)
            for layer in (WideLinear(features, features), nn.ReLU())
        ]
        super().__init__(
            *deeper,
            WideLinear(features, 2 * features),
            NORMS[norm](2 * features),
            ACTIVATIONS[activation](),
        )


class FedCP(Algorithm):
    title = "FedCP"
    group = "paper"
    summary = (
        "A small network decides for every sample how much of each feature goes to a frozen global "
        "head and how much to a personal one."
    )
    citation = (
        "Zhang et al., FedCP: Separating Feature Information for Personalized Federated Learning "
        "via Conditional Policy, KDD 2023"
    )
    scored_model = (
        "extractor, global head and CPN as received, with the client's own head, before local "
        "learning (score=after: the same after it)"
    )
    Hyper = Hyper
    personal = ("head",)
    recordable = {
        "pir": "personalization identification ratio of each client's training samples",
        "policy": "quantiles of s over the test samples of each client",
    }
    metrics = own.METRICS

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        if hyper.cpn and not hyper.gh:
            raise UserError(
                "FedCP cannot take gh=false with cpn=true: the CPN needs the global head"
            )
        self.aligns = hyper.gfm and hyper.lam > 0
        self.shared = _present(extractor=True, global_head=hyper.gh, cpn=hyper.cpn)
        self.frozen = _present(global_head=hyper.gh, global_extractor=self.aligns)

    def impossible(self) -> str | None:
        smallest = min(self.task.config.batch_size, *self.task.train_sizes)
        if self.hyper.cpn and self.hyper.norm == "batch" and smallest < 2:
            return "FedCP with norm=batch needs batches of at least two samples on every client"
        return None

    def parts(self, model: Model) -> dict[str, nn.Module]:
        hyper, parts = self.hyper, super().parts(model)
        if hyper.gh:
            parts["global_head"] = copy.deepcopy(model.head)
        if self.aligns:
            parts["global_extractor"] = copy.deepcopy(model.extractor)
        if hyper.cpn:
            parts["cpn"] = PolicyNetwork(model.features, hyper.layers, hyper.norm, hyper.activation)
        return parts

    def load(self, client: Client, received: Message) -> None:
        super().load(client, received)
        if self.aligns:
            client.net.load({"global_extractor": received["extractor"]})
        client.memo["v"] = self._client_vector(client)
        client.memo["noise"] = client.generator("gumbel")

    def _client_vector(self, client: Client) -> Tensor:
        """v/‖v‖ for v the sum of the personal head's rows; constant during local learning."""
        v = client.net.module("head").weight.detach().sum(0)
        if not self.hyper.cs and not self.hyper.ss:
            generator = seeds.torch_generator(self.task.config.seed, "w.o. cs & ss")
            v = put(torch.randn(len(v), generator=generator), v.device)
        return F.normalize(v, dim=0)

    def policy(self, client: Client, h: Tensor) -> tuple[Tensor, Tensor]:
        """r and s for a batch of features."""
        hyper, v = self.hyper, client.memo["v"]
        condition = v.expand_as(h) if not hyper.ss else v * h if hyper.cs else h
        a = client.net.module("cpn")(condition).unflatten(1, (2, -1))
        if hyper.gumbel:
            uniform = put(torch.rand(a.shape, generator=client.memo["noise"]), a.device)
            a = a - torch.log(-torch.log(uniform.clamp(1e-10, 1 - 1e-7)))
        r, s = torch.softmax(a, dim=1).unbind(1)
        return r, s

    def classify(self, client: Client, h: Tensor) -> Tensor:
        """The logits for features h."""
        net = client.net
        if not self.hyper.gh:
            return net.module("head")(h)
        r, s = self.policy(client, h) if self.hyper.cpn else (1.0, 1.0)
        return net.module("global_head")(r * h) + net.module("head")(s * h)

    def predict(self, client: Client, x: Tensor) -> Tensor:
        return self.classify(client, client.net.module("extractor")(x))

    def train(self, client: Client, received: Message) -> None:
        if self.aligns:
            client.memo["aligned"] = client.frozen_features("global_extractor")
        super().train(client, received)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        h = client.net.module("extractor")(batch.x)
        loss = F.cross_entropy(self.classify(client, h), batch.y)
        if self.aligns:
            loss = loss + self.hyper.lam * mmd(h, client.memo["aligned"](batch))
        return loss

    def upload(self, client: Client) -> Message:
        sent = super().upload(client)
        if self.hyper.gh:
            sent["global_head"] = (client.net["global_head"] + client.net["head"]) / 2
        return sent

    def newcomer_state(self, kept: Message, received: Message) -> Message:
        """The personal head starts from the global one."""
        return {**kept, "head": received["global_head"]} if self.hyper.gh else kept

    def inferred(self, net: Network, received: Message, sent: Message) -> Message:
        """The personal head, and with it v: the mean that is sent has the global head in it, which
        the server sent itself."""
        if not self.hyper.gh:
            return {}
        return {"head": 2 * sent["global_head"] - received["global_head"]}

    def scored(self, client: Client, received: Message) -> None:
        super().scored(client, received)
        client.memo["noise"] = client.generator("gumbel, scoring")

    @property
    def scores_after_training(self) -> bool:
        return self.hyper.score == "after"

    def record(self, client: Client, series: str) -> Any:
        if not self.hyper.cpn:
            return None
        which = {"pir": "train", "policy": "test"}[series]
        extractor = client.net.module("extractor")
        s = client.collect(lambda x: self.policy(client, extractor(x))[1], which)
        if series == "pir":
            return s.mean()
        points = torch.tensor(QUANTILES, dtype=exact(s.device), device=s.device)
        return torch.quantile(s.flatten().to(points), points)


def _present(**parts: bool) -> tuple[str, ...]:
    """The names of the parts that a variant has."""
    return tuple(name for name, is_there in parts.items() if is_there)
