"""A network whose training steps can be differentiated.

`Network` steps in place and forgets how; here every step is part of the graph, so that what a
local update ends with can be differentiated with respect to its samples. It computes the same, at
several times the cost. It is for looking at an update from outside, never for training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pfl_bench.models.network import Network, grouped, shaped


class UnrolledNetwork(Network):
    """The modules of `network`, which is used up; call `restart` before each local update."""

    def __init__(self, network: Network):
        frozen = [name for name in network.parts if name not in network.trainable_parts]
        super().__init__(network.parts, frozen)
        self._start = self.vector.detach().clone().requires_grad_()
        self._stats_start = self.stats.clone()
        self._groups = {
            part: [
                (parameter.shape, _places(parameter, self.parts.values())) for parameter in group
            ]
            for part, group in grouped(self.parts).items()
        }
        for group in self._groups.values():
            for _, places in group:
                for owner, name in places:
                    del owner._parameters[name]  # a parameter is a leaf: no graph can lead to it
        self.is_still = False
        """Whether gradients count as zero: what an update would do without having any data."""
        self.restart()

    def restart(self) -> None:
        """Forget all steps."""
        self.vector = self._start.clone()
        self.stats.copy_(self._stats_start)
        views: dict[str, list[Any]] = {part: [] for part in self.parts}
        offset = 0
        for part, group in self._groups.items():
            for shape, places in group:
                view = shaped(self.vector[offset : offset + shape.numel()], shape)
                offset += shape.numel()
                views[part].append(view)
                for owner, name in places:
                    owner.__dict__[name] = view
        self._parameters = {part: views[part] for part in self.trainable_parts}
        last = self._slices[self.trainable_parts[-1]].stop if self.trainable_parts else 0
        self.trainable = self.vector[:last]

    def remembering(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Meanwhile the graph keeps values of its own: a step changes the vector in place."""
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

    def _slope(
        self, loss: Callable[[], Tensor], names: Sequence[str]
    ) -> tuple[Tensor, Callable[[float], None]]:
        with torch.enable_grad():
            value = loss()
            gradients = self.gradients(value, names)
        return value, lambda lr: self.descend(gradients, lr, names)

    def pull(self, toward: Mapping[str, Tensor], strength: float) -> None:
        for part, value in toward.items():
            self[part].lerp_(value, strength)


def _places(parameter: nn.Parameter, modules: Iterable[nn.Module]) -> list[tuple[nn.Module, str]]:
    """Where modules hold a parameter; a part that picks some holds them a second time."""
    owners = {owner: None for module in modules for owner in module.modules()}
    held = ((owner, name, p) for owner in owners for name, p in owner._parameters.items())
    return [(owner, name) for owner, name, p in held if p is parameter]


def _flat(gradient: Tensor) -> Tensor:
    """In the order in which `shaped` lays values out."""
    return (gradient.permute(0, 2, 3, 1) if gradient.dim() == 4 else gradient).reshape(-1)
