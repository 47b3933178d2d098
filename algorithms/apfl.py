"""APFL (Deng et al., 2020): the mixture αv + (1 − α)w of a personal and a global model. Each step
moves w as in FedAvg and v by α times the gradient at the mixture; α learns once a round."""

from dataclasses import dataclass

import torch

from pfl_bench.config import knob
from pfl_bench.engine import Client, Message, PersonalModelBeside, Start


@dataclass(frozen=True)
class Hyper:
    alpha: float = knob(
        0.5, "first α", source="pfl-bench", low=0, high=1, search=(0.1, 0.9, "linear")
    )


class APFL(PersonalModelBeside):
    title = "APFL"
    summary = "Mixes a personal with the global model, by a weight that each client learns."
    citation = "Deng et al., Adaptive Personalized Federated Learning, 2020"
    scored_model = "the mixture of the client's own model and the global model as received"
    steps_are_plain = True
    Hyper = Hyper

    def client_state(self, start: Start) -> Message:
        return {**super().client_state(start), "alpha": start.model.new_tensor(self.hyper.alpha)}

    def train(self, client: Client, received: Message) -> None:
        (w, slot), alpha = self.both(client), client.state["alpha"]
        v = slot.clone()
        for number, batch in enumerate(client.batches()):
            apart, mixture = v - w, slot.copy_(torch.lerp(w, v, alpha)).clone()
            client.train(
                lambda b: self.global_loss(client, b) + self.loss(client, b), batches=[batch]
            )
            step = slot - mixture  # −η∇f at the mixture
            learnt = alpha + apart @ step
            v = v + alpha * step
            alpha = alpha if number else torch.where(learnt > 0, learnt, 0).clamp_max(1)
        slot.copy_(v)
        client.state["alpha"] = alpha

    def scored(self, client: Client, received: Message) -> None:
        self.load(client, received)
        w, v = self.both(client)
        v.copy_(torch.lerp(w, v, client.state["alpha"]))
