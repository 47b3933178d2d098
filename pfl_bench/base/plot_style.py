"""What all pictures share: sizes and type for a two-column paper, colours, and writing files.

Nothing here knows what is drawn. matplotlib is imported when something is drawn, and pyplot never:
its global state belongs to the user.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.base.errors import UserError, shown, unknown
from pfl_bench.base.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")

COLUMN, PAGE = 3.33, 7.0
"""Inches: one column of a two-column paper, and both."""

SMALL, NORMAL = 6.0, 7.0
"""Points: ticks and notes, and everything else. Nothing in a paper should be smaller."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
"""Okabe and Ito's colours, which the colour-blind can tell apart, without their yellow, which
nobody can see on white."""
DASHES = ("-", (0, (4, 1.2)), (0, (4, 1, 1, 1)), (0, (1, 0.8)))
MARKERS = ("o", "s", "^", "D")
PRINT_DPI = 300
"""Of figures that go into a paper."""
FAINT = "#8c8c8c"

PAPER: Mapping[str, Any] = {
    "font.size": NORMAL,
    "axes.labelsize": NORMAL,
    "axes.titlesize": NORMAL,
    "figure.titlesize": SMALL,
    "legend.fontsize": SMALL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.0,
    "lines.markersize": 2.5,
    "patch.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.titlepad": 3.0,
    "axes.labelpad": 2.0,
    "legend.frameon": False,
    "legend.borderaxespad": 0.0,
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.2,
}
"""matplotlib's settings for figures that are printed in a paper at their own size."""

# Nothing that differs between two drawings of one thing.
_UNDATED: Mapping[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def library() -> Any:
    """matplotlib. It reads MPLBACKEND when it is imported, although nothing here uses it."""
    try:
        import matplotlib
    except ValueError as error:
        backend = os.environ.get("MPLBACKEND")
        raise UserError(
            f"matplotlib cannot be used with MPLBACKEND={shown(backend)}: unset it"
        ) from error
    return matplotlib


@contextlib.contextmanager
def drawing(name: str, settings: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Draw and save inside this: two drawings of one thing are then the same bytes."""
    matplotlib = library()
    # TrueType in PDF, because publishers refuse the default, Type 3.
    fixed = {"svg.hashsalt": name, "svg.fonttype": "path", "pdf.fonttype": 42}
    chosen: Any = {**(settings or {}), **fixed}
    with matplotlib.rc_context(chosen):
        yield


def blank(
    width: float, height: float, rows: int = 1, columns: int = 1, **panels: Any
) -> tuple[Figure, list[Axes]]:
    """An empty figure and its panels, row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **panels).flat)


def line_style(position: int) -> dict[str, Any]:
    """How the line at `position` looks: no two of the first 28 look alike, even in grey."""
    return {
        "marker": MARKERS[position // len(COLOURS) % len(MARKERS)],
        "color": COLOURS[position % len(COLOURS)],
        "linestyle": DASHES[position % len(DASHES)],
    }


def plain(text: str) -> str:
    """A text that matplotlib writes as it is: what stands between two dollar signs is not maths."""
    return text.replace("$", r"\$")


def picture_format(path: Path) -> str:
    """The format that the suffix of `path` names."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise unknown("picture format", kind or path.name, FORMATS)
    return kind


def save(
    figure: Figure, *paths: Path, dpi: int = 150, tight: bool = False, titled: bool = True
) -> None:
    """Write one figure to each path in the format of its suffix; `tight` cuts off its margins. Not
    `titled`, it leaves what its title says to the caption of a paper."""
    if not titled:
        figure.suptitle("")
    for path in paths:
        kind = picture_format(path)
        try:
            with replacing(path) as temporary:
                figure.savefig(
                    temporary,
                    format=kind,
                    dpi=dpi,
                    bbox_inches="tight" if tight else None,
                    metadata=_UNDATED[kind],
                )
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error
