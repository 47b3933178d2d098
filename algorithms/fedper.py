"""FedPer (Arivazhagan et al., 2019): the feature extractor is shared, the head stays."""

from __future__ import annotations

from pfl_bench.engine import Algorithm


class FedPer(Algorithm):
    title = "FedPer"
    group = "paper"
    summary = "Shares the feature extractor and keeps a personal head; both are trained together."
    citation = "Arivazhagan et al., Federated Learning with Personalization Layers, 2019"
    scored_model = "the shared extractor as received with the client's own head"
    shared = ("extractor",)
    personal = ("head",)
