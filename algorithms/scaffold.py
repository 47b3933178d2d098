"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates take the clients' drift out.

Every local step adds c − c_i to its gradient. After K steps from x to y, c_i moves to
c_i − c + (x − y)/(Kη), and the server's c remains the mean of all c_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pfl_bench.config import knob
from pfl_bench.engine import (
    Algorithm,
    Client,
    Message,
    Server,
    ServerState,
    Start,
    Upload,
    weighted_mean,
)


@dataclass(frozen=True)
class Hyper:
    server_lr: float = knob(
        1.0, "server's step η_g", source="SCAFFOLD", off=0.0, low=0, search=(0.1, 2, "log")
    )


class Scaffold(Algorithm):
    title = "SCAFFOLD"
    summary = "FedAvg whose local steps are corrected by how the client's gradient differs."
    citation = (
        "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, "
        "ICML 2020"
    )
    Hyper = Hyper

    def server_state(self, start: Start) -> ServerState:
        return {**super().server_state(start), **self.client_state(start)}

    def client_state(self, start: Start) -> Message:
        return {"c": {part: torch.zeros_like(start.parts[part]) for part in self.shared}}

    def download(self, server: Server, client: int) -> Message:
        return {**super().download(server, client), "c": server.state["c"]}

    def train(self, client: Client, received: Message) -> None:
        own, c, net = client.state["c"], received["c"], client.net
        difference = {part: c[part] - own[part] for part in self.shared}
        client.train(lambda batch: self.loss(client, batch), correction=difference)
        way = max(client.steps * client.lr, 1e-30)
        moves = {part: (received[part] - net[part]) / way - c[part] for part in self.shared}
        client.state["c"] = {part: own[part] + moves[part] for part in self.shared}
        client.memo["moves"] = moves

    def upload(self, client: Client) -> Message:
        return {**super().upload(client), "moves": client.memo["moves"]}

    def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
        mean, x, c = weighted_mean(uploads), server.state, server.state["c"]
        sizes = self.task.train_sizes
        share = sum(sizes[client] for client in server.joined) / sum(sizes)
        moved = {p: torch.lerp(x[p], mean[p], self.hyper.server_lr) for p in self.shared}
        return {**moved, "c": {p: c[p] + share * mean["moves"][p] for p in self.shared}}
