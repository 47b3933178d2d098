"""FedCP over several rounds beside a plain transcription of the paper's algorithm.

The transcription below is written from the paper's text and its algorithm 1, in double precision,
with every gradient taken by autograd on plain tensors. It shares with the engine the initial
values, who holds which sample and the order of the batches, and nothing else: no layer, loss,
training loop, averaging or scoring of the package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from toy import toy_algorithm, toy_client, toy_config, toy_dataset, toy_run

from pfl_bench.config.run_config import RunConfig

LAMBDA, ROUNDS = 5.0, 4
Weights = list[Tensor]


@dataclass
class Model:
    """What the algorithm calls W^fe, W^hd and Θ; each a list of weights and biases."""

    extractor: Weights
    head: Weights
    cpn: Weights


@dataclass
class Answers:
    """One client's test answers after a round."""

    correct: int
    total: int
    loss: float


# --- the model, layer by layer --------------------------------------------------------------------


def features(w: Weights, x: Tensor) -> Tensor:
    x = F.max_pool2d(F.conv2d(x, w[0], w[1]).relu(), 2)
    x = F.max_pool2d(F.conv2d(x, w[2], w[3]).relu(), 2)
    return (x.flatten(1) @ w[4].T + w[5]).relu()


def policy(theta: Weights, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """(r, s): a fully connected layer K→2K, layer norm, ReLU, and a softmax over each pair."""
    a = (v / v.norm() * h) @ theta[0].T + theta[1]
    centred = a - a.mean(1, keepdim=True)
    a = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * theta[2] + theta[3]
    first, second = a.relu().chunk(2, dim=1)
    total = first.exp() + second.exp()
    return first.exp() / total, second.exp() / total


def logits(h: Tensor, v: Tensor, theta: Weights, shared: Weights, own: Weights) -> Tensor:
    r, s = policy(theta, v, h)
    return (r * h) @ shared[0].T + shared[1] + (s * h) @ own[0].T + own[1]


def discrepancy(x: Tensor, y: Tensor) -> Tensor:
    """Squared MMD, pair by pair, with the sum of four RBF kernels."""

    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        distances = torch.stack([(p - q).square().sum() for p in a for q in b])
        return sum((-distances / (2 * width)).exp() for width in (10, 15, 20, 50)).mean()

    return mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)


# --- algorithm 1 ----------------------------------------------------------------------------------


class PaperFedCP:
    """N clients and a server; `round()` is one iteration with every client joining."""

    def __init__(self, config: RunConfig, lam: float):
        self.config, self.lam, self.t = config, lam, 0
        self.algorithm = toy_algorithm(config)
        client, _ = toy_client(self.algorithm)  # its workspace holds the initial values
        initial = {
            part: [
                weight.detach().double().clone() for weight in client.net.module(part).parameters()
            ]
            for part in ("extractor", "head", "cpn")
        }
        self.server = Model(initial["extractor"], initial["head"], initial["cpn"])
        self.heads = [initial["head"] for _ in range(config.clients)]

    def round(self) -> list[Answers]:
        self.t += 1
        sizes, uploads = [], []
        for i in range(self.config.clients):
            size, upload = self._local_learning(i)
            sizes.append(size)
            uploads.append(upload)
        shares = [size / sum(sizes) for size in sizes]
        self.server = Model(
            _mean([upload.extractor for upload in uploads], shares),
            _mean([upload.head for upload in uploads], shares),
            _mean([upload.cpn for upload in uploads], shares),
        )
        return [self._answers(i) for i in range(self.config.clients)]

    def _local_learning(self, i: int) -> tuple[int, Model]:
        client, _ = toy_client(self.algorithm, index=i, round=self.t)
        extractor, own = _learnable(self.server.extractor), _learnable(self.heads[i])
        theta = _learnable(self.server.cpn)
        v = self.heads[i][0].sum(0)
        for batch in client.batches():
            x = batch.x.double()
            h = features(extractor, x)
            frozen = features(self.server.extractor, x)
            error = F.cross_entropy(logits(h, v, theta, self.server.head, own), batch.y)
            loss = error + self.lam * discrepancy(h, frozen)
            learnt = [*extractor, *own, *theta]
            for weight, gradient in zip(learnt, torch.autograd.grad(loss, learnt), strict=True):
                weight.data -= self.config.lr * gradient
        self.heads[i] = [weight.detach() for weight in own]
        head = [(a + b) / 2 for a, b in zip(self.server.head, self.heads[i], strict=True)]
        sent = Model([w.detach() for w in extractor], head, [w.detach() for w in theta])
        return client.samples, sent

    def _answers(self, i: int) -> Answers:
        """Before local learning: the global extractor, both heads and the CPN as received."""
        client, _ = toy_client(self.algorithm, index=i, round=self.t)
        rows = client.shard.test
        x, y = client.shard.pool.inputs(rows).double(), client.shard.pool.y[rows]
        own = self.heads[i]
        h = features(self.server.extractor, x)
        out = logits(h, own[0].sum(0), self.server.cpn, self.server.head, own)
        return Answers(int((out.argmax(1) == y).sum()), len(y), float(F.cross_entropy(out, y)))


def _learnable(weights: Weights) -> Weights:
    return [weight.clone().requires_grad_() for weight in weights]


def _mean(models: list[Weights], shares: list[float]) -> Weights:
    return [
        sum((share * weight for share, weight in zip(shares, same, strict=True)), torch.zeros(()))
        for same in zip(*models, strict=True)
    ]


# --- side by side ---------------------------------------------------------------------------------


def agree(lam: float) -> bool:
    """Whether the engine's FedCP with λ = 5 and the paper's with `lam` give the same answers."""
    config = toy_config("fedcp", {"lambda": LAMBDA}, rounds=ROUNDS, lr=0.1, clients=3)
    paper = PaperFedCP(config, lam)
    for record in toy_run(config):
        answers = paper.round()
        assert record.correct is not None and record.loss is not None
        for correct, loss, answer in zip(record.correct, record.loss, answers, strict=True):
            # A test answer that hangs on the last bits may go either way; none does here.
            if correct != answer.correct or not math.isclose(loss, answer.loss, rel_tol=1e-4):
                return False
    return True


def test_the_problem_is_learnt_so_that_agreement_means_something() -> None:
    config = toy_config("fedcp", {"lambda": LAMBDA}, rounds=ROUNDS, lr=0.1, clients=3)
    first, *_, last = toy_run(config)
    assert last.test_loss is not None and first.test_loss is not None
    assert last.test_loss < 0.95 * first.test_loss
    assert len(toy_dataset().y) >= 100


def test_every_client_answers_as_the_paper_s_algorithm_does() -> None:
    assert agree(LAMBDA)


@pytest.mark.parametrize("lam", [0.0, 4.9])
def test_another_weight_of_the_mmd_is_noticed(lam: float) -> None:
    assert not agree(lam)
