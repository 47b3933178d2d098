"""Ditto (Li et al., ICML 2021): FedAvg for a global model w, and beside it a personal model v on
each client, trained on f(v) + (μ/2)‖v − w‖²."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_bench.config import knob
from pfl_bench.engine import Client, Message, PersonalModelBeside


@dataclass(frozen=True)
class Hyper:
    mu: float = knob(
        1.0,
        "weight μ of the tie to the global model (0 is Local)",
        source="Ditto",
        off=0.0,
        low=0,
        search=(0.05, 10, "log"),
    )
    personal_epochs: int = knob(
        1,
        "epochs of the personal model per round (0 never trains it)",
        source="this benchmark",
        off=0,
        low=0,
    )


class Ditto(PersonalModelBeside):
    title = "Ditto"
    group = "paper"
    summary = "Trains a personal model on each client, tied to a global model learnt by FedAvg."
    citation = (
        "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021"
    )
    scored_model = "the client's personal model"
    Hyper = Hyper

    def train(self, client: Client, received: Message) -> None:
        client.train(lambda batch: self.global_loss(client, batch), parts=self.shared)
        client.train(
            lambda batch: self.loss(client, batch),
            batches=client.batches(self.hyper.personal_epochs, purpose="personal batches"),
            parts=self.personal,
            toward={mine: received[w] for mine, w in zip(self.personal, self.shared, strict=True)},
            strength=self.hyper.mu,
        )
