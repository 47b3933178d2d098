"""From what a batch left behind back to the batch: two attacks, in pure torch.

The attacker has seen how a batch moved a client's message and can compute how any other batch would
have moved it. It starts from random inputs and random soft labels and moves both until the two
agree. *Deep Leakage from Gradients* (DLG; Zhu et al., NeurIPS 2019) takes the squared distance and
L-BFGS; *inverting gradients* (Geiping et al., NeurIPS 2020) takes the angle and the image's total
variation, and Adam on the signs of the slopes. Whose message it is, and how the attacker computes
one, is in `stand_in`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Move = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""How inputs with soft labels (rows of probabilities) move what is sent, differentiable."""
Objective = Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor]]
"""From the moves that inputs lead to, and the inputs: what is made small, and the mismatch."""

HISTORY = 50
"""Steps that L-BFGS remembers."""
RATE = 0.1
"""Of Adam; a tenth of it after 3/8, 5/8 and 7/8 of the iterations."""


@dataclass(frozen=True)
class Recovered:
    """What an attack ends with."""

    x: Tensor
    labels: Tensor
    """A probability for each class."""
    mismatch: float
    """How much of what was observed is unexplained. DLG: the squared distance over the squared
    length of what was observed, 0 where they agree, 1 for a batch that moves nothing. Inverting
    gradients: one less the cosine of the angle between the two."""


def deep_leakage(
    move: Move,
    observed: Sequence[Tensor],
    x: Tensor,
    logits: Tensor,
    *,
    iterations: int,
    unknown: Sequence[Tensor] = (),
) -> Recovered:
    """DLG from where `x` and the labels' `logits` start.

    `unknown` are tensors within `move` that the attacker does not know and fits as well; they are
    changed in place. The best point met is what counts.

    L-BFGS takes full steps, as in DLG. A line search would get stuck at the first kink of a ReLU or
    a maximum, far from the image; full steps jump over kinks, but may leap into the void: then the
    search goes on from the best point, with nothing remembered.
    """
    length = _squared_length(observed)

    def objective(moves: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        gaps = [(a - b).square().sum() for a, b in zip(moves, observed, strict=True)]
        # Relative, so that the tolerances of L-BFGS mean the same for every model.
        mismatch = torch.stack(gaps).sum() / length
        return mismatch, mismatch

    search = _Search(move, objective, x, logits, unknown)
    while search.evaluations < iterations:
        before = search.best
        optimizer = torch.optim.LBFGS(
            search.variables,
            max_iter=iterations - search.evaluations,
            max_eval=iterations - search.evaluations,
            history_size=HISTORY,
            tolerance_grad=1e-10,
            tolerance_change=1e-14,
        )
        optimizer.step(search.evaluate)
        if search.best >= before:
            break  # from here no first step leads anywhere
        search.return_to_best()
    return search.result()


def inverting_gradients(
    move: Move,
    observed: Sequence[Tensor],
    x: Tensor,
    logits: Tensor,
    *,
    iterations: int,
    variation: float,
    unknown: Sequence[Tensor] = (),
) -> Recovered:
    """The angle between the moves and `variation` times the total variation, by Adam.

    Adam reads the signs of the slopes alone, and inputs are kept in [-1, 1], where images are; the
    rest as in `deep_leakage`.
    """
    length = math.sqrt(_squared_length(observed))

    def objective(moves: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        products = [(a * b).sum() for a, b in zip(moves, observed, strict=True)]
        squares = torch.stack([a.square().sum() for a in moves]).sum()
        cosine = torch.stack(products).sum() / (squares.clamp_min(1e-30).sqrt() * length)
        mismatch = 1 - cosine
        return mismatch + variation * total_variation(x), mismatch

    search = _Search(move, objective, x, logits, unknown)
    optimizer = torch.optim.Adam(search.variables, lr=RATE)
    drops = [iterations * k // 8 for k in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, drops, gamma=0.1)
    for _ in range(iterations):
        search.evaluate()
        for variable in search.variables:
            if variable.grad is not None:
                variable.grad.sign_()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            search.variables[0].clamp_(-1, 1)
    return search.result()


def total_variation(x: Tensor) -> Tensor:
    """The mean step between neighbouring pixels, downwards and to the right."""
    down, right = x.diff(dim=-2).abs(), x.diff(dim=-1).abs()
    return down.mean() + right.mean()


def _squared_length(observed: Sequence[Tensor]) -> float:
    length = sum(float(part.double().square().sum()) for part in observed)
    if not 0 < length < math.inf:
        raise ValueError("what was observed is zero or not finite: it tells nothing")
    return length


class _Search:
    """Where the attacker is, and the best point met."""

    def __init__(
        self,
        move: Move,
        objective: Objective,
        x: Tensor,
        logits: Tensor,
        unknown: Sequence[Tensor],
    ):
        start = [tensor.detach().clone().requires_grad_() for tensor in (x, logits)]
        self.variables = [*start, *unknown]
        self.evaluations = 0
        self.best = math.inf
        self._move, self._objective = move, objective
        self._best_point, self._mismatch = self._point(), 1.0

    def evaluate(self) -> float:
        """The objective here and its slope towards the variables; noted if it is the best."""
        with torch.enable_grad():
            x, logits = self.variables[:2]
            value, mismatch = self._objective(self._move(x, logits.softmax(1)), x)
            slopes = torch.autograd.grad(value, self.variables, materialize_grads=True)
        for variable, slope in zip(self.variables, slopes, strict=True):
            variable.grad = slope.contiguous()
        self.evaluations += 1
        if value.item() < self.best:
            self.best, self._mismatch = value.item(), mismatch.item()
            self._best_point = self._point()
        return value.item()

    @torch.no_grad()
    def return_to_best(self) -> None:
        for variable, value in zip(self.variables, self._best_point, strict=True):
            variable.copy_(value)

    def result(self) -> Recovered:
        x, logits = self._best_point[:2]
        return Recovered(x, logits.softmax(1), self._mismatch)

    def _point(self) -> list[Tensor]:
        return [variable.detach().clone() for variable in self.variables]
