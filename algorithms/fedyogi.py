"""FedYogi (Reddi et al., ICLR 2021): FedAdam with Yogi's second moment, which forgets a large one
slowly: v ← v − (1 − β₂) Δ² sign(v − Δ²)."""

from __future__ import annotations

from torch import Tensor

from pfl_bench.algorithms.fedadam import FedAdam


class FedYogi(FedAdam):
    title = "FedYogi"
    summary = "FedAvg whose server takes Yogi's step along the clients' mean change."

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return v - (1 - self.hyper.beta2) * squared * (v - squared).sign()
