"""The accuracy of every client, method by method: a dot each, a box over them, their spread.

Many clients have few test samples each and share a few accuracies, where dots would hide each
other: they are counted in bars instead.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pfl_bench.base import plot_style
from pfl_bench.reporting.figures import caption
from pfl_bench.reporting.figures.methods import Method, client_accuracies, drawable, remark
from pfl_bench.store import worst_decile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY_CLIENTS = 100
INTERVALS = 40
GOLDEN = 0.6180339887
FIGURES_AT = (43.0, 66.0)
"""Points beside the panel, where the figures of spread end."""
DOTS_ROOM = 0.72
"""The height of a method's dots, of 1."""


def draw(methods: Sequence[Method], profile: str, width: float = plot_style.COLUMN) -> Figure:
    import seaborn as sns

    shown = drawable(methods)
    rows = [client_accuracies(method) for method in shown]
    figure, (axes,) = plot_style.blank(width, 1.0 + 0.3 * len(shown))
    seeds = max(len(method.trials) for method in methods)
    config, rounds = shown[0].trials[0].config, max(method.rounds for method in shown)
    notes = [method.note for method in methods]
    are_many = max(map(len, rows)) > MANY_CLIENTS
    key = "Bars: clients; below them quartiles and median." if are_many else ""
    sentence = caption.caption(config, profile, rounds, seeds, "mean", remark(methods, config))
    caption.put(figure, sentence, key, *notes)
    if are_many:
        _bars(axes, rows)
    else:
        _boxes(axes, rows)
    for position, values in enumerate(rows):
        _figures(axes, values, position)
    _header(axes)
    axes.set_yticks(range(len(shown)), [method.title for method in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(max(-2, min(map(min, rows)) - 4), min(102, max(map(max, rows)) + 4))
    axes.set_xlabel("test accuracy of a client in the best round (%)")
    axes.grid(axis="x", linewidth=0.3, color="#d9d9d9")
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    sns.despine(ax=axes, left=True)
    return figure


def _boxes(axes: Axes, rows: Sequence[Sequence[float]]) -> None:
    # seaborn's own calls matplotlib with an argument that matplotlib is going to remove.
    line = {"color": "#595959", "linewidth": 0.6}
    axes.boxplot(
        list(rows),
        orientation="horizontal",
        positions=range(len(rows)),
        widths=DOTS_ROOM + 0.06,
        whis=(5, 95),
        showfliers=False,
        patch_artist=True,
        boxprops={"facecolor": "white", "edgecolor": line["color"], "linewidth": line["linewidth"]},
        whiskerprops=line,
        capprops=line,
        medianprops={"color": "black", "linewidth": 1.2},
    )
    for position, values in enumerate(rows):
        _dots(axes, values, position)


def _dots(axes: Axes, values: Sequence[float], position: int) -> None:
    """Neighbours in accuracy lie far apart in height: multiples of the golden ratio do that."""
    heights = [position + DOTS_ROOM * (k * GOLDEN % 1 - 0.5) for k in range(len(values))]
    axes.scatter(
        values,
        heights,
        s=max(3.0, min(7.0, 300 / len(values))),
        color=plot_style.COLOURS[position % len(plot_style.COLOURS)],
        alpha=0.75,
        linewidth=0,
        zorder=3,
    )


def _bars(axes: Axes, rows: Sequence[Sequence[float]]) -> None:
    """How many clients lie in each interval of accuracy, on one scale for all methods."""
    import numpy as np

    edges = np.linspace(0, 100, INTERVALS + 1)
    counts = [np.histogram(values, edges)[0] for values in rows]
    tallest = max(int(count.max()) for count in counts)
    for position, (values, count) in enumerate(zip(rows, counts, strict=True)):
        color, floor = plot_style.COLOURS[position % len(plot_style.COLOURS)], position + 0.3
        axes.bar(
            edges[:-1], -0.7 * count / tallest, width=100 / INTERVALS, bottom=floor,
            align="edge", color=color, alpha=0.8, linewidth=0,
        )  # fmt: skip
        low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
        axes.plot((low, high), (floor + 0.08,) * 2, color="#595959", linewidth=1.6)
        axes.plot((median,) * 2, (floor, floor + 0.16), color="black", linewidth=1.6)


def _figures(axes: Axes, values: Sequence[float], position: int) -> None:
    spread = f"{statistics.fmean(values):.1f} ± {statistics.pstdev(values):.1f}"
    row = axes.get_yaxis_transform()
    for place, text in zip(FIGURES_AT, (spread, f"{worst_decile(values):.1f}"), strict=True):
        _beside(axes, text, (1.0, position), row, place, "center")


def _header(axes: Axes) -> None:
    for place, text in zip(FIGURES_AT, ("mean ± std", "worst\n10 %"), strict=True):
        _beside(axes, text, (1.0, 1.0), axes.transAxes, place, "bottom")


def _beside(
    axes: Axes, text: str, at: tuple[float, float], coordinates: Any, points: float, va: str
) -> None:
    """Text that ends so many points to the right of `at`."""
    axes.annotate(
        text, at, xycoords=coordinates, xytext=(points, 0), textcoords="offset points",
        ha="right", va=va, fontsize=plot_style.SMALL, annotation_clip=False,
    )  # fmt: skip
