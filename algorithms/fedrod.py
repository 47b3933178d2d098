"""FedRoD (Chen and Chao, ICLR 2022): one extractor, two heads.

Extractor and global head learn with the balanced softmax and are shared; a personal head learns, on
detached features, what must be added to the global logits for the client's own distribution.
"""

from __future__ import annotations

import copy

import torch.nn.functional as F
from torch import Tensor, nn

from pfl_bench.engine import Algorithm, Batch, Client
from pfl_bench.models import Model, balanced_softmax


class FedRoD(Algorithm):
    title = "FedRoD"
    group = "paper"
    summary = (
        "Learns a shared model with the balanced softmax and a personal head that corrects its "
        "logits for the client's own distribution."
    )
    citation = (
        "Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image "
        "Classification, ICLR 2022"
    )
    scored_model = "the sum of both heads' logits: shared parts as received, own personal head"
    personal = ("personal_head",)

    def parts(self, model: Model) -> dict[str, nn.Module]:
        return super().parts(model) | {"personal_head": copy.deepcopy(model.head)}

    def loss(self, client: Client, batch: Batch) -> Tensor:
        features = client.net.module("extractor")(batch.x)
        logits = client.net.module("head")(features)
        correction = client.net.module("personal_head")(features.detach())
        generic = balanced_softmax(logits, batch.y, client.shard.class_counts)
        return generic + F.cross_entropy(logits.detach() + correction, batch.y)

    def predict(self, client: Client, x: Tensor) -> Tensor:
        features = client.net.module("extractor")(x)
        return client.net.module("head")(features) + client.net.module("personal_head")(features)
