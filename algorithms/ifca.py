"""IFCA (Ghosh et al., NeurIPS 2020): the server sends k models; a client trains the one with the
lowest loss on its training data and says which; each becomes the average of what its clients sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_bench.config import knob
from pfl_bench.device import exact
from pfl_bench.engine import Algorithm, Client, Message, Server, ServerState, Start, Upload


@dataclass(frozen=True)
class Hyper:
    clusters: int = knob(
        2, "number of models k (1 is FedAvg)", source="IFCA", name="k", off=1, low=1, high=100
    )


class IFCA(Algorithm):
    title = "IFCA"
    summary = "Keeps several global models; each client trains the one that fits its data best."
    citation = "Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020"
    scored_model = "the global model with the lowest loss on the client's training data"
    Hyper = Hyper

    def server_state(self, start: Start) -> ServerState:
        drawn = (start.drawn(k) for k in range(self.hyper.clusters))
        return {"models": [{part: model[part] for part in self.shared} for model in drawn]}

    def download(self, server: Server, client: int) -> Message:
        return {"models": server.state["models"]}

    def load(self, client: Client, received: Message) -> None:
        losses = torch.stack([self._loss_of(client, model) for model in received["models"]])
        self._load_cluster(client, received, losses.argmin())

    def _load_cluster(self, client: Client, received: Message, cluster: Tensor) -> None:
        """Which one it is stays on the device, where the model is picked."""
        models = received["models"]
        there = {part: torch.stack([model[part] for model in models]) for part in self.shared}
        picked = {part: rows.index_select(0, cluster[None])[0] for part, rows in there.items()}
        client.net.load(picked)
        client.memo["cluster"] = cluster

    def replay(self, client: Client, received: Message, sent: Message) -> Message:
        """In the cluster that the client named: it is not the server's to choose."""
        self._load_cluster(client, received, sent["cluster"])
        self.train(client, received)
        return self.upload(client)

    def _loss_of(self, client: Client, model: Message) -> Tensor:
        client.net.load(model)
        return client.evaluate(lambda x: self.predict(client, x), "train").loss

    def upload(self, client: Client) -> Message:
        return {**super().upload(client), "cluster": client.memo["cluster"]}

    @torch.no_grad()
    def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
        models = server.state["models"]
        sums = {p: torch.stack([torch.zeros_like(m[p]) for m in models]) for p in self.shared}
        vector = models[0][self.shared[0]]
        weights = torch.zeros(len(models), dtype=exact(vector.device), device=vector.device)
        for upload in uploads:
            k = upload.message["cluster"][None]
            for part in self.shared:
                sums[part].index_add_(0, k, upload.message[part][None], alpha=upload.weight)
            weights.index_add_(0, k, torch.ones_like(weights[:1]), alpha=upload.weight)

        def mean(k: int, part: str) -> Tensor:
            """Of what its clients sent; as it was, where it had none."""
            return torch.where(weights[k] > 0, sums[part][k] / weights[k], models[k][part])

        return {"models": [{p: mean(k, p) for p in self.shared} for k in range(len(models))]}
