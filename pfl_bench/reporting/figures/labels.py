"""Names at the ends of lines, where no legend has to be matched and no line is covered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pfl_bench.base import plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE_HEIGHT = 1.2
MARGIN = 1.06
"""Where names begin, as a multiple of the panel's width."""


@dataclass(frozen=True)
class End:
    """The last point of a line, in data coordinates."""

    x: float
    y: float
    name: str
    color: str


def name_lines(figure: Figure, axes: Axes, ends: Sequence[End]) -> None:
    """Write each name beside the panel at the height of its line's end, or as near as the other
    names allow, with a thin line that leads there."""
    texts = [_annotation(axes, end) for end in ends]
    figure.draw_without_rendering()  # lays the panel out, which gives its height
    bottom, top = axes.transAxes.transform([(0, 0), (0, 1)])[:, 1]
    heights = [axes.transData.transform((end.x, end.y))[1] for end in ends]
    apart = LINE_HEIGHT * plot_style.SMALL * figure.dpi / 72
    for text, height in zip(texts, spread(heights, apart, bottom, top), strict=True):
        text.set_position((MARGIN, (height - bottom) / (top - bottom)))


def _annotation(axes: Axes, end: End) -> Any:
    return axes.annotate(
        plot_style.plain(end.name),
        (end.x, end.y),
        xytext=(MARGIN, 0.5),
        textcoords="axes fraction",
        color=end.color,
        fontsize=plot_style.SMALL,
        va="center",
        annotation_clip=False,
        arrowprops={
            "arrowstyle": "-", "color": end.color, "linewidth": 0.4, "alpha": 0.7,
            "shrinkA": 1, "shrinkB": 1, "relpos": (0, 0.5),
        },
    )  # fmt: skip


def spread(places: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Places at least `apart` from each other, in their old order, as near to the old ones as can
    be (least squares) and, if they all fit, between low and high."""
    order = sorted(range(len(places)), key=places.__getitem__)
    # With the distance taken off, "at least apart" becomes "not descending": isotonic regression.
    wanted = [places[i] - rank * apart for rank, i in enumerate(order)]
    last = high - (len(places) - 1) * apart
    result = [0.0] * len(places)
    for rank, (i, place) in enumerate(zip(order, _ascending(wanted), strict=True)):
        result[i] = min(max(place, low), max(last, low)) + rank * apart
    return result


def _ascending(values: Sequence[float]) -> list[float]:
    """The nearest sequence that does not descend: neighbours that would are pooled."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            other, others = pools.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]
