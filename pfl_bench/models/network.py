"""Named modules over one flat vector.

Sending a model is a copy of its vector, averaging is arithmetic on vectors, loading is one copy
into the workspace. What lives here: the layout and a gradient step. What does not: what is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pfl_bench.base import UserError
from pfl_bench.models.layers import Call, WideLinear, WordMean, factored


class Network:
    """Modules by name ("extractor", "head", …) whose parameters are views of `vector`.

    `vector` holds the trainable parts in the order given, then the frozen ones. `stats` holds the
    floating-point buffers (batch-norm statistics), which are not parameters and are not sent.

    A part that is an `nn.ParameterList` picks parameters out of the others: they lie in its slice
    and no longer in theirs, while the modules compute as before.
    """

    def __init__(
        self,
        parts: Mapping[str, nn.Module],
        frozen: Sequence[str] = (),
        vector: Tensor | None = None,
    ):
        """`vector` is where the parameters shall lie, if it is there already."""
        order = [name for name in parts if name not in frozen] + list(frozen)
        self.parts = {name: parts[name] for name in order}
        self.trainable_parts = tuple(name for name in order if name not in frozen)
        groups = grouped(self.parts)
        self.vector, self._slices = _flatten(groups, vector)
        self.stats = _flatten_buffers(self.parts.values())
        for parameter in (p for name in frozen for p in groups[name]):
            parameter.requires_grad_(False)
        self._parameters = {name: groups[name] for name in self.trainable_parts}
        self._large = {n: _large_layers(self.parts, groups[n]) for n in self.trainable_parts}
        last = self._slices[self.trainable_parts[-1]].stop if self.trainable_parts else 0
        self.trainable = self.vector[:last]
        self.seconds_copying = 0.0

    def __getitem__(self, part: str) -> Tensor:
        """The slice of the vector that holds `part`: a view, to read or to copy into."""
        return self.vector[self._slices[part]]

    def __contains__(self, part: object) -> bool:
        return part in self.parts

    def module(self, part: str) -> Any:
        """The module of a part, to call on a batch."""
        return self.parts[part]

    def statistics(self, part: str) -> list[Tensor]:
        """The batch-norm statistics of a part, as views of `stats`."""
        return [buffer for _, _, buffer in _float_buffers([self.parts[part]])]

    @contextmanager
    def unmoved_statistics(self, part: str) -> Iterator[None]:
        """Meanwhile training mode does not count batches into the statistics of a part."""
        norms = [m for m in self.parts[part].modules() if isinstance(m, _BatchNorm)]
        for norm in norms:
            norm.track_running_stats = False
        try:
            yield
        finally:
            for norm in norms:
                norm.track_running_stats = True

    def statistics_mask(self, parts: Iterable[str]) -> Tensor:
        """Which elements of `stats` belong to the given parts, on the host."""
        wanted = set(parts)
        chosen = [
            torch.full((buffer.numel(),), name in wanted)
            for name, module in self.parts.items()
            for _, _, buffer in _float_buffers([module])
        ]
        return torch.cat(chosen) if chosen else torch.zeros(0, dtype=torch.bool)

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Copy vectors into the parts of the same names."""
        with self._copying():
            for part, value in values.items():
                self[part].copy_(value)

    def split(self, model: Tensor) -> dict[str, Tensor]:
        """A vector of all trainable parts, as views by part."""
        return {part: model[self._slices[part]] for part in self.trainable_parts}

    def copy(self, parts: Iterable[str]) -> dict[str, Tensor]:
        """Real copies of the given parts, by name."""
        with self._copying():
            return {part: self[part].clone() for part in parts}

    @contextmanager
    def _copying(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds_copying += time.perf_counter() - began

    def parameters(self, parts: Sequence[str] | None = None) -> list[nn.Parameter]:
        names = self.trainable_parts if parts is None else parts
        return [p for name in names for p in self._parameters[name]]

    def gradients(self, loss: Tensor, parts: Sequence[str] | None = None) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss, self.parameters(parts))

    @torch.no_grad()
    def descend(
        self, gradients: Sequence[Tensor], lr: float, parts: Sequence[str] | None = None
    ) -> None:
        """θ ← θ − η g. Sparse gradients touch only the rows they name."""
        for parameter, gradient in zip(self.parameters(parts), gradients, strict=True):
            parameter.add_(gradient, alpha=-lr)

    def step(
        self,
        loss: Callable[[], Tensor],
        lr: float,
        parts: Sequence[str] | None = None,
        toward: Mapping[str, Tensor] | None = None,
        strength: float = 0.0,
        correction: Mapping[str, Tensor] | None = None,
        weight_decay: float = 0.0,
    ) -> Tensor:
        """One SGD step on `loss`, whose value it returns; `toward` as in `pull`, and `correction`
        is added to the gradient of the parts that it names, as is weight_decay·θ to that of all.

        The same as `gradients`, `pull` and `descend`, but for the rounding: the gradients of large
        layers are added to their weights without being written down. What the loss does not depend
        on stays as it is.
        """
        names = self.trainable_parts if parts is None else parts
        value, descend = self._slope(loss, names)
        decay = {name: self[name].clone() for name in names} if weight_decay else {}
        if toward is not None:
            self.pull(toward, lr * strength)
        for part, theta in decay.items():
            self[part].add_(theta, alpha=-lr * weight_decay)
        for part, vector in (correction or {}).items():
            self[part].add_(vector, alpha=-lr)
        descend(lr)
        return value.detach()

    def _slope(
        self, loss: Callable[[], Tensor], names: Sequence[str]
    ) -> tuple[Tensor, Callable[[float], None]]:
        """The loss, and what moves some parts down its gradient here by a learning rate."""
        parameters = self.parameters(names)
        with factored(layer for name in names for layer in self._large[name]) as calls:
            value = loss()
        outputs = [call.y for call in calls]
        # A loss can also name a large weight itself, hence weights and outputs; or neither.
        gradients = torch.autograd.grad(value, [*parameters, *outputs], allow_unused=True)
        return value, self._descent(parameters, calls, gradients)

    def _descent(
        self,
        parameters: Sequence[Tensor],
        calls: Sequence[Call],
        gradients: Sequence[Tensor | None],
    ) -> Callable[[float], None]:
        """What moves parameters, and the large layers that were called, down their gradients."""

        @torch.no_grad()
        def descend(lr: float) -> None:
            reached = [(p, g) for p, g in zip(parameters, gradients, strict=False) if g is not None]
            if reached:
                torch._foreach_add_(*map(list, zip(*reached, strict=True)), alpha=-lr)
            for call, gradient in zip(calls, gradients[len(parameters) :], strict=True):
                if gradient is not None:
                    call.add(gradient, -lr)

        return descend

    @torch.no_grad()
    def pull(self, toward: Mapping[str, Tensor], strength: float) -> None:
        """θ ← θ − strength (θ − w) for the parts that `toward` names: the proximal term's step."""
        for part, value in toward.items():
            self[part].lerp_(value, strength)

    def train(self, mode: bool = True) -> None:
        for module in self.parts.values():
            module.train(mode)

    def to(self, device: torch.device) -> Network:
        """The same network on another device, laid out anew."""
        if device.type == "cpu":
            return self
        frozen = [name for name in self.parts if name not in self.trainable_parts]
        return Network({n: m.to(device) for n, m in self.parts.items()}, frozen)


def _flatten(
    groups: Mapping[str, list[nn.Parameter]], vector: Tensor | None
) -> tuple[Tensor, dict[str, slice]]:
    """Move all parameters into one vector; where each group lies in it."""
    everything = [p for group in groups.values() for p in group]
    if vector is None:
        device = everything[0].device if everything else torch.device("cpu")
        vector = torch.empty(sum(p.numel() for p in everything), device=device)
    slices, offset = {}, 0
    for name, group in groups.items():
        start = offset
        for parameter in group:
            view = shaped(vector[offset : offset + parameter.numel()], parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            offset += parameter.numel()
        slices[name] = slice(start, offset)
    return vector, slices


def grouped(parts: Mapping[str, nn.Module]) -> dict[str, list[nn.Parameter]]:
    """Each part's parameters; UserError where one would belong to two parts."""
    owners: dict[int, str] = {}
    for is_pick in (True, False):
        for name, module in parts.items():
            if isinstance(module, nn.ParameterList) is not is_pick:
                continue
            for inner, parameter in module.named_parameters():
                owner = owners.setdefault(id(parameter), name)
                if owner != name and isinstance(parts[owner], nn.ParameterList) is is_pick:
                    raise UserError(
                        f"the parts {owner!r} and {name!r} hold the same parameter ({inner}); a "
                        "part that starts as another needs a copy of its own (copy.deepcopy)"
                    )
    return {
        name: [p for p in module.parameters() if owners[id(p)] == name]
        for name, module in parts.items()
    }


def _large_layers(
    parts: Mapping[str, nn.Module], group: Sequence[nn.Parameter]
) -> list[WideLinear | WordMean]:
    """The layers whose large weight is among the parameters of a group."""
    chosen = set(map(id, group))
    layers = (layer for module in parts.values() for layer in module.modules())
    large = (layer for layer in layers if isinstance(layer, WideLinear | WordMean))
    return [layer for layer in large if id(layer.weight) in chosen]


def shaped(flat: Tensor, shape: torch.Size) -> Tensor:
    """A view of `flat`; convolution kernels lie channels-last, which is what the CPU is fast at."""
    if len(shape) != 4:
        return flat.view(shape)
    out, channels, height, width = shape
    return flat.view(out, height, width, channels).permute(0, 3, 1, 2)


def _flatten_buffers(modules: Iterable[nn.Module]) -> Tensor:
    found = list(_float_buffers(modules))
    device = found[0][2].device if found else torch.device("cpu")
    stats = torch.empty(sum(b.numel() for _, _, b in found), device=device)
    offset = 0
    for owner, name, buffer in found:
        view = stats[offset : offset + buffer.numel()].view(buffer.shape)
        view.copy_(buffer)
        owner._buffers[name] = view
        offset += buffer.numel()
    return stats


def _float_buffers(modules: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, str, Tensor]]:
    for module in modules:
        for owner in module.modules():
            for name, buffer in owner._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    yield owner, name, buffer
