"""FedAMP (Huang et al., AAAI 2021): attention between clients whose models are alike.

The server keeps every client's model w_i and sends each client its own mixture
u_i = Σ_j ξ_ij w_j with ξ_ij = α_k A'(‖w_i − w_j‖²) for j ≠ i, A'(x) = exp(−x/σ)/σ, and
ξ_ii = 1 − Σ_{j≠i} ξ_ij. The client minimises f(θ) + λ/(2α_k)‖θ − u_i‖², starting from w_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_bench.config import knob
from pfl_bench.device import exact
from pfl_bench.engine import (
    Client,
    Message,
    PersonalModelSent,
    Server,
    ServerState,
    Spread,
    Start,
    Upload,
)

CHUNK = 8_192
"""Parameters handled at a time: no second copy of all models is made, and what is copied stays in
the cache."""


@dataclass(frozen=True)
class Hyper:
    sigma: float = knob(
        1.0,
        "width σ of the attention",
        source="in circulation",
        low=1e-9,
        search=(0.01, 100, "log"),
        searched="pfl-bench: two decades around what is in circulation",
    )
    alpha: float = knob(
        1.0,
        "step α_k as a share of σ/(N−1), the largest under which every ξ_ii lies in [0, 1] "
        "(0 mixes nothing: each client is tied to its own last model)",
        source="pfl-bench, see its page",
        off=0.0,
        low=0,
        high=1,
        search=(0.1, 1, "log"),
    )
    lam: float = knob(
        1.0,
        "weight λ/α_k of the tie to the mixture (0 is Local)",
        source="in circulation: λ = α_k = 1; PFLlib's examples tie 10⁴ times more weakly",
        name="lambda",
        off=0.0,
        low=0,
        search=(0.0001, 10, "log"),
        searched="pfl-bench: holds the values in circulation, 0.0001 and 1",
    )


class FedAMP(PersonalModelSent):
    title = "FedAMP"
    group = "paper"
    summary = (
        "Sends each client a mixture of all clients' models, weighted by how near they are to its "
        "own, and ties its training to that mixture."
    )
    citation = "Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021"
    scored_model = "the client's personal model after local training"
    Hyper = Hyper

    def server_state(self, start: Start) -> ServerState:
        everyone = [start.model] * self.task.clients
        return {"models": everyone, "mixtures": everyone}

    def newcomer(self) -> str:
        return "FedAMP mixes for clients whose models it holds, and has none of a new client"

    def download(self, server: Server, client: int) -> Message:
        return {"mixture": server.state["mixtures"][client]}

    def train(self, client: Client, received: Message) -> None:
        split = client.net.split(received["mixture"])
        client.train(lambda batch: self.loss(client, batch), toward=split, strength=self.hyper.lam)

    def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
        models = list(server.state["models"])
        for upload in uploads:
            models[upload.client] = upload.message["model"]
        squared = squared_distances(models, server.spread)
        xi = attention(squared, self.hyper.sigma, self.hyper.alpha)
        return {"models": models, "mixtures": list(mix(xi, models, server.spread))}


def attention(squared: Tensor, sigma: float, alpha: float) -> Tensor:
    """The weights ξ from the models' squared distances."""
    others = max(1, len(squared) - 1)
    alpha_k = alpha * sigma / others
    xi = alpha_k * torch.exp(-squared / sigma) / sigma
    xi.fill_diagonal_(0)
    # Rounding can bring the sum of the others a hair above 1.
    return xi + torch.diag((1 - xi.sum(1)).clamp_min(0))


def squared_distances(models: list[Tensor], spread: Spread = map) -> Tensor:
    """‖w_i − w_j‖² for all pairs, from one Gram matrix.

    Centred, because distances are small beside norms and the difference of large numbers would lose
    them; and summed over the chunks in double precision. What rounding leaves is less than
    1e-7 of the largest distance.
    """

    def gram_of(chunk: slice) -> Tensor:
        rows = _rows(models, chunk)
        rows -= rows.mean(0)
        return rows @ rows.T

    device = models[0].device
    gram = torch.zeros(len(models), len(models), dtype=exact(device), device=device)
    for part in spread(gram_of, _chunks(models)):
        gram += part
    norms = gram.diagonal()
    return (norms[:, None] + norms[None, :] - 2 * gram).clamp_min(0)


def mix(xi: Tensor, models: list[Tensor], spread: Spread = map) -> Tensor:
    """All mixtures u_i, a row each."""
    weights = xi.to(models[0])
    mixtures = torch.empty(len(models), len(models[0]), device=models[0].device)

    def fill(chunk: slice) -> None:
        torch.mm(weights, _rows(models, chunk), out=mixtures[:, chunk])

    for _ in spread(fill, _chunks(models)):
        pass
    return mixtures


def _chunks(models: list[Tensor]) -> list[slice]:
    return [slice(start, start + CHUNK) for start in range(0, len(models[0]), CHUNK)]


def _rows(models: list[Tensor], chunk: slice) -> Tensor:
    """Some columns of the matrix whose rows are the models."""
    return torch.stack([model[chunk] for model in models])
