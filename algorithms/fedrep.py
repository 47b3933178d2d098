"""FedRep (Collins et al., ICML 2021): shared extractor, personal head, trained in turns.

Each round trains the head alone for some epochs on the received extractor, then the extractor alone
with that head. Features under the received extractor do not change while the head is trained, so
they are computed once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from pfl_bench.config import knob
from pfl_bench.engine import Algorithm, Client, Message


@dataclass(frozen=True)
class Hyper:
    head_epochs: int = knob(
        5,
        "epochs of the head before the extractor's (0 never trains it)",
        source="this benchmark",
        off=0,
        low=0,
    )


class FedRep(Algorithm):
    title = "FedRep"
    group = "paper"
    summary = "Shares the feature extractor; each round trains the personal head first, alone."
    citation = (
        "Collins et al., Exploiting Shared Representations for Personalized Federated Learning, "
        "ICML 2021"
    )
    scored_model = "the shared extractor as received with the client's own head"
    more_work = (
        "trains the head alone for {head_epochs} epochs before the local epochs of all methods"
    )
    Hyper = Hyper
    shared = ("extractor",)
    personal = ("head",)

    def train(self, client: Client, received: Message) -> None:
        features, head = client.frozen_features("extractor"), client.net.module("head")
        client.train(
            lambda batch: F.cross_entropy(head(features(batch)), batch.y),
            batches=client.batches(self.hyper.head_epochs, purpose="head batches"),
            parts=("head",),
        )
        client.train(lambda batch: self.loss(client, batch), parts=("extractor",))
