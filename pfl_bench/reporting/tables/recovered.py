"""What an attack recovered, as a picture: the clients' images beside it, method by method."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench import data
from pfl_bench.base import plot_style
from pfl_bench.reporting.tables.caption import remarks, small_models

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

    from pfl_bench.reporting.tables.plan import CellPlan, TablePlan
    from pfl_bench.store import StoredRun

COLUMNS = 8
"""So many victims are shown; the table counts all."""
SIDE = 0.72
"""Inches of an image."""


def save(plan: TablePlan, stem: Path) -> list[Path]:
    """Write STEM.png and STEM.svg where the plan has attacked runs; what was written."""
    runs = {_title(plan, cell): run for cell in plan.cells.values() if (run := _first(cell))}
    if not runs:
        return []
    paths = [stem.with_name(f"{stem.name}{suffix}") for suffix in (".png", ".svg")]
    with plot_style.drawing(stem.name, plot_style.PAPER):
        _draw(plan, runs, *paths)
    return paths


def _first(cell: CellPlan) -> StoredRun | None:
    """The first seed of a cell that was attacked."""
    attacked = (run for run in cell.runs if run is not None and run.end.attack)
    return next(attacked, None)


def _title(plan: TablePlan, cell: CellPlan) -> str:
    if min(len(plan.spec.rows), len(plan.spec.columns)) == 1:
        return plan.spec.competitor(cell.cell)
    return f"{cell.cell.row}\n{cell.cell.column}"


def _draw(plan: TablePlan, runs: dict[str, StoredRun], *paths: Path) -> None:
    shown = {title: list(_images(run))[:COLUMNS] for title, run in runs.items()}
    truth = next(iter(shown.values()))
    width = len(truth)
    figure, panels = plot_style.blank(
        0.7 + SIDE * width, 0.35 + (SIDE + 0.17) * (1 + len(shown)), 1 + len(shown), width
    )
    for k, (image, _, _) in enumerate(truth):
        _panel(panels[k], image, "")
    panels[0].set_ylabel("original", fontsize=plot_style.SMALL)
    for row, (title, images) in enumerate(shown.items(), start=1):
        panels[row * width].set_ylabel(title, fontsize=plot_style.SMALL)
        for k, (_, recovered, score) in enumerate(images):
            _panel(panels[row * width + k], recovered, f"{score:.1f} dB")
    config = next(iter(runs.values())).config
    remark = remarks(plan).get(config["data_fingerprint"], "")
    trained = small_models(c for cell in plan.cells.values() for c in cell.configs)
    named = data.title(config["dataset"], config["source"], remark)
    about = f"{named}, {trained}" if trained else named
    figure.suptitle(
        plot_style.plain(
            f"{about}: images of clients and what the attack recovered of them, with PSNR "
            f"(profile {plan.profile.name}, seed {config['seed']})"
        )
    )
    plot_style.save(figure, *paths, dpi=200, tight=True)


def _panel(axes: Axes, image: np.ndarray, below: str) -> None:
    is_grey = image.shape[-1] == 1
    axes.imshow(image[..., 0] if is_grey else image, cmap="gray", vmin=0, vmax=255)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(below, fontsize=plot_style.SMALL)


def _images(run: StoredRun) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """Each attacked image, what was recovered of it, and the PSNR between the two."""
    for victim in run.end.victims:
        original, recovered = (_unpacked(victim, name) for name in ("original", "recovered"))
        yield from zip(original, recovered, victim["psnr"], strict=True)


def _unpacked(victim: Mapping[str, Any], name: str) -> np.ndarray:
    """Images as height × width × channels of bytes."""
    import numpy as np

    pixels = np.frombuffer(base64.b64decode(victim[name]), dtype=np.uint8)
    return pixels.reshape(victim["shape"]).transpose(0, 2, 3, 1)
