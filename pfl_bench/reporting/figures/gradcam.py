"""Where each head of FedCP looks: Grad-CAM with only the global or only the personalized head.

Grad-CAM (Selvaraju et al., ICCV 2017) weighs the maps A_k of a convolution by how much the logit of
a class grows with each, and keeps what speaks for the class: ReLU(Σ_k α_k A_k), where α_k is the
mean over the map of the logit's gradient. The class is the sample's own. With only one head active
the logits are that head's, on its share of the features: r ⊙ h or s ⊙ h.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_bench import data
from pfl_bench.algorithms.fedcp import FedCP
from pfl_bench.base import UserError, plot_style, unknown
from pfl_bench.config import RunConfig
from pfl_bench.engine import Client, Simulator
from pfl_bench.models import build_model, inputs_of, model_spec
from pfl_bench.plugins import load_algorithm
from pfl_bench.reporting.figures import caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADS = {"global": "global\nhead only", "personal": "personalized\nhead only"}


@dataclass(frozen=True)
class Views:
    """Some samples of a client: images in [0, 1] (n×h×w×c), and for each head where it looks, from
    0 to 1 (n×h×w); a sample in which nothing speaks for its class is 0 throughout."""

    images: Tensor
    labels: list[int]
    predicted: list[int]
    maps: dict[str, Tensor]
    layer: str


def check(config: RunConfig, client: int) -> None:
    """Refuse, before anything trains, a run that has no two heads or no images to look at."""
    if not issubclass(load_algorithm(config.algo), FedCP) or not config.hyper["gh"]:
        raise UserError(
            f"gradcam compares the global and the personalized head of FedCP; {config.algo!r} as "
            "configured has not both"
        )
    if model_spec(config.model).kind != "image":
        raise UserError(f"gradcam needs a model of images, and {config.model!r} reads text")
    if not 0 <= client < config.clients:
        raise UserError(f"client cannot be {client}; allowed: 0 to {config.clients - 1}")


def check_layer(config: RunConfig, layer: str | None, data_dir: Path) -> None:
    """Refuse, before anything trains, a layer that is not there or has no maps."""
    if layer is None or config.source == "pfllib":  # whose data only the run itself reads
        return
    inputs = inputs_of(
        data.card(config.dataset, config.source, data_dir), config.dataset, config.model
    )
    assert inputs.shape is not None
    with torch.device("meta"), torch.no_grad():  # shapes without values
        extractor = build_model(config.model, inputs).extractor.eval()
        last_maps(extractor, torch.zeros(1, *inputs.shape), layer)


def look(simulator: Simulator, client: int, samples: int, layer: str | None = None) -> Views:
    """Grad-CAM of test samples of one client under the model that is scored."""
    algorithm = simulator.algorithm
    assert isinstance(algorithm, FedCP)
    with simulator.client(client, simulator.snapshot.round) as one:
        algorithm.scored(one, algorithm.download(simulator.snapshot.server, client))
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


def draw(
    views: Views, simulator: Simulator, client: int, profile: str, width: float = plot_style.COLUMN
) -> Figure:
    columns = len(views.labels)
    side = (width - 0.95) / columns
    figure, panels = plot_style.blank(width, 3 * side + 0.75, rows=3, columns=columns)
    figure.set_layout_engine("compressed", w_pad=0.01, h_pad=0.01)
    sentence = caption.caption(
        simulator.config, profile, simulator.snapshot.round, remark=simulator.remark
    )
    caption.put(
        figure,
        f"{simulator.algorithm.title} on {sentence}",
        f"Test samples of client {client} (class → prediction); Grad-CAM of the class in layer "
        f"{views.layer}.",
    )
    rows = dict(zip(("image", *HEADS), _in_rows(panels, columns), strict=True))
    shown = None
    for k, image in enumerate(views.images):
        _image(rows["image"][k], image)
        right = views.predicted[k] == views.labels[k]
        rows["image"][k].set_title(
            f"{views.labels[k]} {'✓' if right else f'→ {views.predicted[k]}'}",
            fontsize=plot_style.SMALL,
        )
        for head, maps in views.maps.items():
            _image(rows[head][k], image.mean(2, keepdim=True))
            shown = rows[head][k].imshow(maps[k].numpy(), cmap="inferno", vmin=0, vmax=1, alpha=0.6)
    for name, panel in {"image": "image", **HEADS}.items():
        rows[name][0].set_ylabel(
            panel, fontsize=plot_style.SMALL, rotation=0, ha="right", va="center"
        )
    if shown is not None:
        figure.colorbar(shown, ax=panels, fraction=0.03, pad=0.01, ticks=[0, 1], label="attention")
    return figure


def _in_rows(panels: list[Axes], columns: int) -> Iterator[list[Axes]]:
    for first in range(0, len(panels), columns):
        yield panels[first : first + columns]


def _image(axes: Axes, image: Tensor) -> None:
    axes.imshow(image.clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])
