"""IFCA (Ghosh et al., NeurIPS 2020): the server sends k models; a client trains the one with the
lowest loss on its training data and says which; each becomes the average of what its clients sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pfl_bench.config import knob
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
        losses = [self._loss_of(client, model) for model in received["models"]]
        client.memo["cluster"] = losses.index(min(losses))
        client.net.load(received["models"][client.memo["cluster"]])

    def replay(self, client: Client, received: Message, sent: Message) -> Message:
        """In the cluster that the client named: it is not the server's to choose."""
        client.memo["cluster"] = int(sent["cluster"])
        client.net.load(received["models"][client.memo["cluster"]])
        self.train(client, received)
        return self.upload(client)

    def _loss_of(self, client: Client, model: Message) -> float:
        client.net.load(model)
        return client.evaluate(lambda x: self.predict(client, x), "train").loss

    def upload(self, client: Client) -> Message:
        return {**super().upload(client), "cluster": torch.tensor(client.memo["cluster"])}

    @torch.no_grad()
    def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
        models = list(server.state["models"])
        sums: dict[int, Message] = {}
        weights = dict.fromkeys(range(len(models)), 0.0)
        for upload in uploads:
            k = int(upload.message["cluster"])
            total = sums.setdefault(k, {p: torch.zeros_like(models[k][p]) for p in self.shared})
            for part in self.shared:
                total[part].add_(upload.message[part], alpha=upload.weight)
            weights[k] += upload.weight
        for k, total in sums.items():
            models[k] = {part: value / weights[k] for part, value in total.items()}
        return {"models": models}
