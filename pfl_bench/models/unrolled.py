"""A network whose training steps can be differentiated.

`Network` steps in place and forgets how; here every step is part of the graph, so that what a
local update ends with can be differentiated with respect to its samples. It computes the same, at
several times the cost. It is for looking at an update from outside, never for training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pfl_bench.models.network import Network, shaped


class UnrolledNetwork(Network):
    """The modules of `network`, which is used up; call `restart` before each local update."""

    def __init__(self, network: Network):
        frozen = [name for name in network.parts if name not in network.trainable_parts]
        super().__init__(network.parts, frozen)
        self._start = self.vector.detach().clone().requires_grad_()
        self._owners = [
            (part, owner, name, parameter.shape)
            for part, module in self.parts.items()
            for owner in module.modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None
        ]
        self._stats_start = self.stats.clone()
        for _, owner, name, _ in self._owners:
            del owner._parameters[name]  # a parameter is a leaf, which no graph can lead to
        self.is_still = False
        """Whether gradients count as zero: what an update would do without having any data."""
        self.restart()

    def restart(self) -> None:
        """Forget all steps."""
        self.vector = self._start.clone()
        self.stats.copy_(self._stats_start)
        self._parameters: dict[str, list[Any]] = {part: [] for part in self.trainable_parts}
        offset = 0
        for part, owner, name, shape in self._owners:
            view = shaped(self.vector[offset : offset + shape.numel()], shape)
            offset += shape.numel()
            owner.__dict__[name] = view
            if part in self._parameters:
                self._parameters[part].append(view)
        last = self._slices[self.trainable_parts[-1]].stop if self.trainable_parts else 0
        self.trainable = self.vector[:last]

    def remembering(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Meanwhile the graph keeps values of its own: the next step changes the vector in place."""
        storage = self.vector.untyped_storage().data_ptr()

        def keep(value: Tensor) -> Tensor:
            return value.clone() if value.untyped_storage().data_ptr() == storage else value

        return torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value)

    def gradients(self, loss: Tensor, parts: Sequence[str] | None = None) -> tuple[Tensor, ...]:
        parameters = self.parameters(parts)
        if self.is_still:
            return tuple(torch.zeros_like(parameter) for parameter in parameters)
        return torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)

    def descend(
        self, gradients: Sequence[Tensor], lr: float, parts: Sequence[str] | None = None
    ) -> None:
        names = self.trainable_parts if parts is None else parts
        steps = dict(zip(map(id, self.parameters(names)), map(_flat, gradients), strict=True))
        # The whole vector at once: autograd takes far longer to follow a change of some of it.
        pieces = [steps.get(id(p), p.new_zeros(p.numel())) for p in self.parameters()]
        rest = self.vector.new_zeros(self.vector.numel() - self.trainable.numel())
        self.vector.add_(torch.cat([*pieces, rest]), alpha=-lr)

    def step(
        self,
        loss: Callable[[], Tensor],
        lr: float,
        parts: Sequence[str] | None = None,
        toward: Mapping[str, Tensor] | None = None,
        strength: float = 0.0,
    ) -> Tensor:
        with torch.enable_grad():
            value = loss()
            gradients = self.gradients(value, parts)
            if toward is not None:
                self.pull(toward, lr * strength)
            self.descend(gradients, lr, parts)
        return value.detach()

    def pull(self, toward: Mapping[str, Tensor], strength: float) -> None:
        for part, value in toward.items():
            self[part].lerp_(value, strength)


def _flat(gradient: Tensor) -> Tensor:
    """In the order in which `shaped` lays values out."""
    return (gradient.permute(0, 2, 3, 1) if gradient.dim() == 4 else gradient).reshape(-1)
