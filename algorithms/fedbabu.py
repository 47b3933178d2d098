"""FedBABU (Oh et al., ICLR 2022): clients learn the feature extractor together under a head that
stays at its initial values; to be scored, a client fine-tunes the head on its own data."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from pfl_bench.config import knob
from pfl_bench.engine import Algorithm, Client, Message


@dataclass(frozen=True)
class Hyper:
    epochs: int = knob(5, "epochs of fine-tuning (0 skips it)", source="FedBABU", off=0, low=0)


class FedBABU(Algorithm):
    title = "FedBABU"
    summary = "Shares an extractor learnt under a fixed head; clients then fine-tune the head."
    citation = (
        "Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, "
        "ICLR 2022"
    )
    scored_model = "the shared extractor with a head fine-tuned on the client's training data"
    shared, personal = ("extractor",), ("head",)
    Hyper = Hyper

    def train(self, client: Client, received: Message) -> None:
        client.train(lambda batch: self.loss(client, batch), parts=self.shared)

    def scored(self, client: Client, received: Message) -> None:
        self.load(client, received)
        features, head = client.frozen_features("extractor"), client.net.module("head")
        batches = client.batches(self.hyper.epochs, purpose="fine-tuning")
        client.fine_tune(
            lambda batch: F.cross_entropy(head(features(batch)), batch.y), batches, parts=("head",)
        )
