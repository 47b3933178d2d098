"""FedAvg + FT: FedAvg, and each client fine-tunes the global model on its own data before it is
scored. Nothing of that is kept. The row that a personalised method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_bench.config import knob
from pfl_bench.engine import FineTuned


@dataclass(frozen=True)
class Hyper:
    epochs: int = knob(
        1, "epochs of fine-tuning (0 is FedAvg)", source="pfl-bench", off=0, low=0, high=10_000
    )


class FedAvgFT(FineTuned):
    title = "FedAvg + FT"
    summary = "FedAvg, whose global model each client fine-tunes on its own data before scoring."
    citation = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized "
        "Data, AISTATS 2017, with fine-tuning"
    )
    Hyper = Hyper
