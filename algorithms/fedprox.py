"""FedProx (Li et al., MLSys 2020): FedAvg with a proximal term that ties local training to the
global model: clients minimise f(θ) + (μ/2)‖θ − w‖²."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_bench.config import knob
from pfl_bench.engine import Algorithm, Client, Message


@dataclass(frozen=True)
class Hyper:
    mu: float = knob(
        0.001,
        "weight μ of the proximal term (0 is FedAvg)",
        source="this benchmark",
        off=0.0,
        low=0,
        search=(0.001, 1, "log"),
        searched="FedProx's grid: 0.001, 0.01, 0.1, 1",
    )


class FedProx(Algorithm):
    title = "FedProx"
    group = "paper"
    summary = "FedAvg with a proximal term that keeps local models near the global one."
    citation = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    Hyper = Hyper

    def train(self, client: Client, received: Message) -> None:
        client.train(
            lambda batch: self.loss(client, batch), toward=received, strength=self.hyper.mu
        )
