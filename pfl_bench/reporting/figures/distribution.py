"""Who holds what: a circle for every client and class, as large as the number of its samples.

Many clients are laid out in several bands, so that circles stay large enough to see. Where even
that leaves no room for circles, colours take their place, with clients in the order of their
largest class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl_bench.base import plot_style
from pfl_bench.config import RunConfig
from pfl_bench.data import problem
from pfl_bench.reporting.figures import caption

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TALLEST = 8.0
"""Inches: a page of a paper less the caption under the figure."""
AROUND = (0.42, 0.95)
"""Inches for what surrounds the circles: tick labels beside them, words above and below."""
BAND_GAP = 0.2
EASY, LEAST = 4.5, 3.2
"""Points from one circle to the next: easy to read, and the least that can be."""
LEAST_ROW = 2.4
STEPS = (1, 2, 5, 10)
LARGEST, TINIEST = 12.0, 0.8
"""Points: no circle is wider, and none so small that it cannot be seen."""
POINTS = 72


@dataclass(frozen=True)
class Layout:
    """Clients in `bands` of `abreast`; the size in points of the cell around a circle."""

    bands: int
    abreast: int
    cell: tuple[float, float]

    @property
    def pitch(self) -> float:
        """How far circles are apart: of a cell that is not square, its geometric mean."""
        return math.sqrt(self.cell[0] * self.cell[1])

    @property
    def has_circles(self) -> bool:
        return self.pitch >= LEAST and min(self.cell) >= LEAST_ROW


def lay_out(clients: int, classes: int, width: float) -> Layout:
    """The fewest bands with circles that are easy to read, else those with the largest circles."""
    options = [_with_bands(bands, clients, classes, width) for bands in range(1, 11)]
    easy = (one for one in options if one.has_circles and one.pitch >= EASY)
    return next(easy, None) or max(options, key=lambda one: (one.has_circles, one.pitch))


def _with_bands(bands: int, clients: int, classes: int, width: float) -> Layout:
    abreast = math.ceil(clients / bands)
    cell_width = POINTS * (width - AROUND[0]) / abreast
    room = (TALLEST - AROUND[1]) / bands - BAND_GAP
    largest = min(cell_width, POINTS * room / classes)
    return Layout(bands, abreast, (min(cell_width, 4 * largest), largest))


def draw(
    counts: np.ndarray,
    config: RunConfig,
    profile: str,
    width: float | None = None,
    remark: str = "",
) -> Figure:
    """`counts` has a row for each client and a column for each class."""
    clients, classes = counts.shape
    if width is None:
        narrow = lay_out(clients, classes, plot_style.COLUMN)
        width = (
            plot_style.COLUMN if narrow.has_circles and narrow.pitch >= EASY else plot_style.PAGE
        )
    layout = lay_out(clients, classes, width)
    figure = _circles(counts, layout, width) if layout.has_circles else _colours(counts, width)
    sentence = problem(config, remark).removesuffix(f", {config.model}{config.size_label}")
    caption.put(figure, f"{sentence}; {counts.sum():,} samples, {profile} profile.")
    return figure


def _circles(counts: np.ndarray, layout: Layout, width: float) -> Figure:
    classes = counts.shape[1]
    height = layout.bands * (classes * layout.cell[1] / POINTS + BAND_GAP) + AROUND[1]
    figure, panels = plot_style.blank(width, height, rows=layout.bands)
    largest = int(counts.max())
    # Areas say how many samples; the largest circles may just touch.
    area_of_one = min(layout.pitch, LARGEST) ** 2 / largest
    for band, axes in enumerate(panels):
        first = band * layout.abreast
        _band(axes, counts[first : first + layout.abreast], first, area_of_one)
        axes.set_xlim(first - 0.6, first + layout.abreast - 0.4)
        axes.set_ylim(-0.6, classes - 0.4)
    panels[-1].set_xlabel("client")
    panels[len(panels) // 2].set_ylabel("class")
    _size_legend(figure, panels[0], largest, area_of_one)
    return figure


def _band(axes: Axes, counts: np.ndarray, first: int, area_of_one: float) -> None:
    """One band of clients, of which `first` is the first."""
    import seaborn as sns
    from matplotlib.ticker import MaxNLocator

    rows, columns = counts.nonzero()
    axes.scatter(
        first + rows,
        columns,
        s=(area_of_one * counts[rows, columns]).clip(min=TINIEST**2),
        color=plot_style.COLOURS[0],
        alpha=0.85,
        linewidth=0,
    )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, steps=STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=STEPS))
    sns.despine(ax=axes)


def _size_legend(figure: Figure, axes: Axes, largest: int, area_of_one: float) -> None:
    sizes = dict.fromkeys(rounded(largest * share) for share in (0.02, 0.2, 1.0))
    handles = [
        axes.scatter([], [], s=area_of_one * size, color=plot_style.COLOURS[0], linewidth=0)
        for size in sizes
    ]
    names = [f"{size:,} {'sample' if size == 1 else 'samples'}" for size in sizes]
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=len(sizes),
        handlelength=1.2,
        borderpad=0.8,
    )


def rounded(value: float) -> int:
    """A count with one digit that is not zero, at least 1."""
    if value < 1:
        return 1
    unit = 10 ** math.floor(math.log10(value))
    return int(value / unit) * unit


def _colours(counts: np.ndarray, width: float) -> Figure:
    import numpy as np
    import seaborn as sns
    from matplotlib.colors import LogNorm

    clients, classes = counts.shape
    order = np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))
    height = min(TALLEST, max(2.5, AROUND[1] + classes * LEAST_ROW / POINTS))
    figure, (axes,) = plot_style.blank(width, height)
    held = np.ma.masked_equal(counts[order].T, 0)
    image = axes.imshow(
        held,
        cmap=sns.color_palette("crest", as_cmap=True),
        norm=LogNorm(1, max(2, counts.max())),
        aspect="auto",
        origin="lower",
        interpolation="nearest",
    )
    bar = figure.colorbar(image, ax=axes, label="samples", pad=0.01, fraction=0.03, format="%g")
    bar.ax.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel(f"{clients} clients in the order of their largest class")
    axes.set_ylabel("class")
    return figure
