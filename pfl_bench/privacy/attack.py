"""Deep Leakage from Gradients (Zhu et al., NeurIPS 2019): inputs and labels from a gradient.

The attacker has the gradient that a batch left and can compute the gradient that any batch would
leave. It starts from random inputs and random soft labels and moves both by L-BFGS until the
gradients agree. Pure torch: whose gradient it is, and what the attacker knows, is in `privacy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Gradient = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""The gradient, differentiable, that inputs with soft labels (rows of probabilities) leave."""

HISTORY = 50
"""Steps that L-BFGS remembers."""


@dataclass(frozen=True)
class Recovered:
    """What an attack ends with."""

    x: Tensor
    labels: Tensor
    """A probability for each class."""
    mismatch: float
    """The squared distance of the gradients over the squared length of the one observed: 0 where
    they agree, 1 for a batch that leaves no gradient at all."""


def recover(
    gradient: Gradient,
    observed: Sequence[Tensor],
    x: Tensor,
    logits: Tensor,
    *,
    iterations: int,
    unknown: Sequence[Tensor] = (),
) -> Recovered:
    """Move `x` and the labels' `logits` from where they start until the gradients agree.

    `unknown` are tensors within `gradient` that the attacker does not know and fits as well; they
    are changed in place. The best point met is what counts.

    L-BFGS takes full steps, as in DLG. A line search would get stuck at the first kink of a ReLU or
    a maximum, far from the image; full steps jump over kinks, but may leap into the void: then the
    search goes on from the best point, with nothing remembered.
    """
    search = _Search(gradient, observed, x, logits, unknown)
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


class _Search:
    """Where the attacker is, and the best point met."""

    def __init__(
        self,
        gradient: Gradient,
        observed: Sequence[Tensor],
        x: Tensor,
        logits: Tensor,
        unknown: Sequence[Tensor],
    ):
        start = [tensor.detach().clone().requires_grad_() for tensor in (x, logits)]
        self.variables = [*start, *unknown]
        self.evaluations = 0
        self.best = math.inf
        self._gradient, self._observed = gradient, observed
        self._length = sum(float(g.square().sum()) for g in observed)
        if not 0 < self._length < math.inf:
            raise ValueError("the observed gradient is zero or not finite: it tells nothing")
        self._best_point = self._point()

    def evaluate(self) -> float:
        """The mismatch here and its slope towards the variables; noted if it is the best."""
        with torch.enable_grad():
            x, logits = self.variables[:2]
            left = self._gradient(x, logits.softmax(1))
            gaps = [(a - b).square().sum() for a, b in zip(left, self._observed, strict=True)]
            # Relative, so that the tolerances of L-BFGS mean the same for every model.
            mismatch = torch.stack(gaps).sum() / self._length
            slopes = torch.autograd.grad(mismatch, self.variables)
        for variable, slope in zip(self.variables, slopes, strict=True):
            variable.grad = slope.contiguous()
        self.evaluations += 1
        value = mismatch.item()
        if value < self.best:
            self.best, self._best_point = value, self._point()
        return value

    @torch.no_grad()
    def return_to_best(self) -> None:
        for variable, value in zip(self.variables, self._best_point, strict=True):
            variable.copy_(value)

    def result(self) -> Recovered:
        x, logits = self._best_point[:2]
        return Recovered(x, logits.softmax(1), self.best)

    def _point(self) -> list[Tensor]:
        return [variable.detach().clone() for variable in self.variables]
