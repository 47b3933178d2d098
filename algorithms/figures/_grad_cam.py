"""Grad-CAM with only the global or only the personalized head of FedCP; `gradcam` draws it.

Grad-CAM (Selvaraju et al., ICCV 2017) weighs the maps A_k of a convolution by how much the logit of
a class grows with each, and keeps what speaks for the class: ReLU(Σ_k α_k A_k), where α_k is the
mean over the map of the logit's gradient. The class is the sample's own. With only one head active
the logits are that head's, on its share of the features: r ⊙ h or s ⊙ h.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_bench.algorithms.fedcp import FedCP
from pfl_bench.base import UserError, unknown
from pfl_bench.engine import Client, Simulator


@dataclass(frozen=True)
class Views:
    """Some samples of a client: images in [0, 1] (n×h×w×c), and for each head where it looks, from
    0 to 1 (n×h×w); a sample in which nothing speaks for its class is 0 throughout."""

    images: Tensor
    labels: list[int]
    predicted: list[int]
    maps: dict[str, Tensor]
    layer: str


def look(simulator: Simulator, client: int, samples: int, layer: str | None = None) -> Views:
    """Grad-CAM of test samples of one client under the model that is scored."""
    algorithm = simulator.algorithm
    assert isinstance(algorithm, FedCP)
    with simulator.client(client, simulator.snapshot.round) as one:
        algorithm.scored(one, simulator.download(client))
        one.net.train(False)
        rows = choose(one, samples)
        x, y = one.shard.pool.inputs(rows), one.shard.pool.y[rows]
        features, maps, name = last_maps(one.net.module("extractor"), x, layer)
        logits = head_logits(algorithm, one, features)
        seen = {
            head: upscaled(grad_cam(maps, values.gather(1, y[:, None])), x.shape[2:])
            for head, values in logits.items()
        }
        images = (x.detach().permute(0, 2, 3, 1) + 1) / 2
        predicted = (logits["global"] + logits["personal"]).argmax(1)
        return Views(images.cpu(), y.tolist(), predicted.tolist(), seen, name)


def choose(client: Client, samples: int) -> Tensor:
    """Rows of the client's test set: the first of each class in turn, then the second, …"""
    labels = client.shard.pool.y[client.shard.test].tolist()
    seen: dict[int, int] = {}
    ranks = []
    for position, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        ranks.append((seen[label], label, position))
    return client.shard.test[[position for *_, position in sorted(ranks)[:samples]]]


def head_logits(algorithm: FedCP, client: Client, h: Tensor) -> dict[str, Tensor]:
    """The logits of each head alone; their sum is the model's."""
    r, s = algorithm.policy(client, h) if algorithm.hyper.cpn else (1.0, 1.0)
    net = client.net
    return {"global": net.module("global_head")(r * h), "personal": net.module("head")(s * h)}


def last_maps(
    extractor: nn.Module, x: Tensor, layer: str | None = None
) -> tuple[Tensor, Tensor, str]:
    """The features of x, the maps that a layer gave on the way, and the layer's name.

    By default the layer is the last whose maps have more than one pixel."""
    named = {name: module for name, module in extractor.named_modules() if name}
    if layer is not None and layer not in named:
        raise unknown("layer", layer, named)
    found: list[tuple[str, Tensor]] = []
    with ExitStack() as hooks:
        for name in [layer] if layer else named:
            hooks.callback(named[name].register_forward_hook(_keeper(name, found)).remove)
        features = extractor(x)
    if not found:
        raise UserError(
            "gradcam needs maps of more than one pixel, and "
            + (f"the layer {layer!r} has none" if layer else "this model has none")
        )
    name, maps = found[-1]
    return features, maps, name


def _keeper(name: str, found: list[tuple[str, Tensor]]) -> Any:
    def keep(module: nn.Module, inputs: Any, output: Any) -> Tensor | None:
        if isinstance(output, Tensor) and output.ndim == 4 and output.shape[2:].numel() > 1:
            found.append((name, output))
            return output.clone()  # what follows may change its input in place
        return None

    return keep


def grad_cam(maps: Tensor, logits: Tensor) -> Tensor:
    """ReLU(Σ_k α_k A_k) for every sample; `logits` has one value for each."""
    (gradient,) = torch.autograd.grad(logits.sum(), maps, retain_graph=True)
    weights = gradient.mean((2, 3), keepdim=True)
    return F.relu((weights * maps).sum(1)).detach()


def upscaled(cams: Tensor, size: torch.Size) -> Tensor:
    """To the size of the images, and each to its own largest value."""
    large = F.interpolate(cams[:, None], size=tuple(size), mode="bilinear", align_corners=False)
    largest = large.amax((1, 2, 3), keepdim=True)
    return (large / largest.clamp_min(torch.finfo(large.dtype).tiny))[:, 0].cpu()
