"""FedAdam (Reddi et al., ICLR 2021): Adam on the server, the clients' mean change as its gradient.

With Δ the mean of the clients' models less the server's x:
m ← β₁m + (1 − β₁)Δ,  v ← β₂v + (1 − β₂)Δ²,  x ← x + η m/(√v + τ).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_bench.config import knob
from pfl_bench.engine import Algorithm, Server, ServerState, Start, Upload, weighted_mean


@dataclass(frozen=True)
class Hyper:
    server_lr: float = knob(
        0.01,
        "server's learning rate η (0 freezes the model)",
        source="pfl-bench, see its page",
        off=0.0,
        low=0,
        search=(0.001, 0.1, "log"),
    )
    beta1: float = knob(0.9, "memory β₁ of the mean change", source="FedAdam", low=0, high=1)
    beta2: float = knob(0.99, "memory β₂ of its square", source="FedAdam", low=0, high=1)
    tau: float = knob(
        0.001, "adaptivity τ: the larger, the nearer to plain steps", source="FedAdam", low=1e-9
    )


class FedAdam(Algorithm):
    title = "FedAdam"
    summary = "FedAvg whose server takes Adam's step along the clients' mean change."
    citation = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"
    Hyper = Hyper

    def server_state(self, start: Start) -> ServerState:
        model = super().server_state(start)
        m = {part: torch.zeros_like(x) for part, x in model.items()}
        v = {part: torch.full_like(x, self.hyper.tau**2) for part, x in model.items()}
        return {**model, "m": m, "v": v}

    @torch.no_grad()
    def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
        hyper, state = self.hyper, server.state
        after: ServerState = {"m": {}, "v": {}}
        for part, mean in weighted_mean(uploads).items():
            change = mean - state[part]
            m = torch.lerp(change, state["m"][part], hyper.beta1)
            v = self.second_moment(state["v"][part], change.square())
            after["m"][part], after["v"][part] = m, v
            after[part] = state[part] + hyper.server_lr * m / (v.sqrt() + hyper.tau)
        return after

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return torch.lerp(squared, v, self.hyper.beta2)
