"""Where each head of FedCP looks, as pictures; how that is worked out is in `_grad_cam`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.base import UserError, plot_style
from pfl_bench.config import RunConfig
from pfl_bench.reporting.figures import CLIENT, MethodFigure, Option, caption, check_client

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from pfl_bench.algorithms.figures._grad_cam import Views
    from pfl_bench.engine import Simulator

HEADS = {"global": "global\nhead only", "personal": "personalized\nhead only"}


def check(config: RunConfig, data_dir: Path, *, client: int, layer: str | None, **_: Any) -> None:
    """Refuse, before anything trains, a run that has no two heads or no images to look at, and a
    layer that is not there or has no maps."""
    from pfl_bench.algorithms.fedcp import FedCP
    from pfl_bench.models import model_spec
    from pfl_bench.plugins import load_algorithm

    if not issubclass(load_algorithm(config.algo), FedCP) or not config.hyper["gh"]:
        raise UserError(
            f"gradcam compares the global and the personalized head of FedCP; {config.algo!r} as "
            "configured has not both"
        )
    if model_spec(config.model).kind != "image":
        raise UserError(f"gradcam needs a model of images, and {config.model!r} reads text")
    check_client(config, data_dir, client=client)
    if layer is not None and config.source != "pfllib":  # whose data only the run itself reads
        _check_layer(config, layer, data_dir)


def _check_layer(config: RunConfig, layer: str, data_dir: Path) -> None:
    import torch

    from pfl_bench import data
    from pfl_bench.algorithms.figures._grad_cam import last_maps
    from pfl_bench.models import build_model, inputs_of

    inputs = inputs_of(
        data.card(config.dataset, config.source, data_dir).reduced(config.image_size),
        config.dataset,
        config.model,
    )
    assert inputs.shape is not None
    with torch.device("meta"), torch.no_grad():  # shapes without values
        extractor = build_model(config.model, inputs).extractor.eval()
        last_maps(extractor, torch.zeros(1, *inputs.shape), layer)


def draw(
    simulator: Simulator,
    profile: str,
    width: float = plot_style.COLUMN,
    *,
    client: int,
    samples: int = 6,
    layer: str | None = None,
) -> Figure:
    from pfl_bench.algorithms.figures._grad_cam import look

    return picture(look(simulator, client, samples, layer), simulator, client, profile, width)


def picture(
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


FIGURE = MethodFigure(
    "Grad-CAM of test samples with only the global or only the personalized head of FedCP.",
    "fedcp",
    draw,
    of_model=True,
    options=(
        CLIENT,
        Option("samples", int, 6, "How many images.", low=1, high=12),
        Option("layer", str, None, "Of the extractor (default: its last maps)."),
    ),
    check=check,
    told=("client",),
)
