"""FedProx + FT: FedProx, and each client fine-tunes the global model on its own data before it is
scored, without the proximal term. Nothing of that is kept."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_bench.algorithms import fedprox
from pfl_bench.config import knob
from pfl_bench.engine import FineTuned


@dataclass(frozen=True)
class Hyper(fedprox.Hyper):
    epochs: int = knob(
        1, "epochs of fine-tuning (0 is FedProx)", source="pfl-bench", off=0, low=0, high=10_000
    )


class FedProxFT(FineTuned, fedprox.FedProx):
    title = "FedProx + FT"
    group = "further"
    summary = "FedProx, whose global model each client fine-tunes on its own data before scoring."
    citation = (
        "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, with fine-tuning"
    )
    Hyper = Hyper
