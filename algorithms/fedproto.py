"""FedProto (Tan et al., AAAI 2022): clients share the mean features of each class, no parameters.

Each client trains a model of its own on cross-entropy + λ·(mean squared distance of features to the
global prototype of their class), then sends its mean features by class; the server averages them by
class. A sample belongs to the class whose prototype is nearest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pfl_bench.config import knob
from pfl_bench.device import put
from pfl_bench.engine import Algorithm, Batch, Client, Message, Server, ServerState, Start, Upload
from pfl_bench.models import Network


@dataclass(frozen=True)
class Hyper:
    lam: float = knob(
        1.0,
        "weight λ of the distance to the prototypes (0 is Local)",
        source="FedProto",
        name="lambda",
        off=0.0,
        low=0,
        search=(0.1, 10, "log"),
    )
    predict: str = knob(
        "prototype",
        "what predicts: the nearest prototype, or the head",
        source="FedProto",
        choices=("prototype", "head"),
    )


class FedProto(Algorithm):
    title = "FedProto"
    summary = "Shares the mean features of each class instead of parameters."
    citation = (
        "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022"
    )
    scored_model = (
        "the client's own extractor with the nearest global prototype (predict=head: its head)"
    )
    shared, personal = (), ("extractor", "head")
    one_by_one = "its loss looks up prototypes by label, of which clients have different ones"
    Hyper = Hyper

    def server_state(self, start: Start) -> ServerState:
        return {"prototypes": {}}

    def misfit(self, kept: ServerState, net: Network) -> str | None:
        width = net.module("head").in_features
        for label, prototype in kept["prototypes"].items():
            if label not in range(self.task.classes):
                return f"there is no class {label}"
            if not isinstance(prototype, Tensor) or prototype.shape != (width,):
                return f"the prototype of class {label} is not {width} features"
            if prototype.dtype != torch.float32:
                return f"the prototype of class {label} is of another type"
        return None

    def download(self, server: Server, client: int) -> Message:
        return {"prototypes": server.state["prototypes"]}

    def load(self, client: Client, received: Message) -> None:
        super().load(client, received)
        client.memo["prototypes"] = received["prototypes"]

    def loss(self, client: Client, batch: Batch) -> Tensor:
        features = client.net.module("extractor")(batch.x)
        entropy = F.cross_entropy(client.net.module("head")(features), batch.y)
        targets = [client.memo["prototypes"].get(label) for label in batch.labels.tolist()]
        known = [i for i, target in enumerate(targets) if target is not None]
        if not known:
            return entropy
        there, rows = torch.stack([targets[i] for i in known]), torch.tensor(known)
        here = features[put(rows, features.device)]
        distance = F.mse_loss(here, there, reduction="sum") / features.numel()
        return entropy + self.hyper.lam * distance

    def upload(self, client: Client) -> Message:
        features = client.collect(client.net.module("extractor"))
        labels, device = client.shard.labels, features.device
        held = {int(label): (labels == label).nonzero().flatten() for label in labels.unique()}
        return {
            "prototypes": {k: features[put(rows, device)].mean(0) for k, rows in held.items()},
            "counts": {k: torch.tensor(len(rows)) for k, rows in held.items()},
        }

    @torch.no_grad()
    def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
        sums: dict[int, Tensor] = {}
        counts: dict[int, int] = {}
        for upload in uploads:
            for label, mean in upload.message["prototypes"].items():
                count = int(upload.message["counts"][label])  # on the host, as it was sent
                sums[label] = sums.get(label, torch.zeros_like(mean)) + count * mean
                counts[label] = counts.get(label, 0) + count
        renewed = {label: total / counts[label] for label, total in sums.items()}
        return {"prototypes": {**server.state["prototypes"], **renewed}}

    def predict(self, client: Client, x: Tensor) -> Tensor:
        features = client.net.module("extractor")(x)
        prototypes = client.memo["prototypes"]
        if self.hyper.predict == "head" or not prototypes:
            return client.net.module("head")(features)
        known = sorted(prototypes)
        near = -torch.cdist(features, torch.stack([prototypes[label] for label in known]))
        logits = (near.min(1, keepdim=True).values - 1).repeat(1, self.task.classes)
        logits[:, known] = near  # a class that nobody has told of is farther than any other
        return logits
