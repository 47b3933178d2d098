"""pFedMe (Dinh et al., NeurIPS 2020): personal models through Moreau envelopes.

For each batch, K steps bring the personal θ towards the minimum of f(θ) + (λ/2)‖θ − w_i‖²; then the
local copy follows it: w_i ← w_i − ηλ(w_i − θ). The server moves its model by β towards the average
of the w_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pfl_bench.config import knob
from pfl_bench.engine import Algorithm, Client, Message, Server, ServerState, Upload, weighted_mean


@dataclass(frozen=True)
class Hyper:
    lam: float = knob(
        15.0,
        "weight λ of the envelope (0 freezes w)",
        source="pFedMe; advice of FedCP's first author",
        name="lambda",
        off=0.0,
        low=0,
        search=(1, 50, "log"),
    )
    steps: int = knob(
        5,
        "inner steps K per batch",
        source="pFedMe; advice of FedCP's first author",
        name="K",
        low=1,
    )
    personal_lr: float = knob(
        0.01,
        "learning rate of θ (0 never trains)",
        source="advice of FedCP's first author",
        off=0.0,
        low=0,
        search=(0.002, 0.5, "log"),
        searched="pfl-bench: that of the learning rate",
    )
    beta: float = knob(
        1.0, "server's step β towards the average (0 freezes it)", source="pFedMe", off=0.0, low=0
    )


class PFedMe(Algorithm):
    title = "pFedMe"
    group = "paper"
    summary = (
        "Trains a personal model that stays near a local copy of the global one; the copy follows "
        "the personal model and is averaged."
    )
    citation = "Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020"
    scored_model = "the personal model θ after local training"
    Hyper = Hyper
    personal = ("extractor", "head")

    def local_update(self, client: Client, received: Message) -> Message:
        theta, hyper = client.net, self.hyper
        theta.load(received)
        w = {part: value.clone() for part, value in received.items()}
        for batch in client.batches():
            client.train(
                lambda batch: self.loss(client, batch),
                batches=[batch] * hyper.steps,
                lr=hyper.personal_lr,
                toward=w,
                strength=hyper.lam,
            )
            for part, value in w.items():
                value.lerp_(theta[part], client.lr * hyper.lam)
        client.state.update(theta.copy(self.personal))
        return w

    @torch.no_grad()
    def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
        mean = weighted_mean(uploads)
        return {part: torch.lerp(server.state[part], mean[part], self.hyper.beta) for part in mean}

    def scored(self, client: Client, received: Message) -> None:
        client.net.load(client.state)
