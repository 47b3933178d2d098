"""A table as a picture: a heat map where rows meet columns, bars where there is one line only or
where every column has a unit of its own. Over a bar stands the paper's figure, where it may be
compared.

In the heat map the colour says how far a cell is behind the best of its line, since datasets
differ more than methods do; the figure is written in the cell. The scale is a square root's, which
tells small distances apart where one method is far behind.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.base import plot_style
from pfl_bench.data import title
from pfl_bench.reporting.metrics import attack_values, metric
from pfl_bench.reporting.tables.caption import remarks, small_models
from pfl_bench.reporting.tables.content import Content, Entry
from pfl_bench.reporting.verdict import MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pfl_bench.reporting.tables.plan import TablePlan

BEST, OTHER, ABSENT, PAPER = "#2a7f62", "#8fb8c9", "#ececec", "#b3452c"
LETTERS_PER_INCH = 12
PANELS_ABREAST = 3


@dataclass(frozen=True)
class Look:
    """How the picture of a table is drawn."""

    titled: bool = True
    with_std: bool = False
    """± std in the cells of a heat map; bars have whiskers."""


def save(content: Content, look: Look, *paths: Path) -> None:
    """Draw the table once and write it to each path in the format of its suffix."""
    with plot_style.drawing(content.plan.spec.name):
        plot_style.save(draw(content, look), *paths, tight=True, titled=look.titled)


_USUAL = Look()


def draw(content: Content, look: Look = _USUAL) -> Figure:
    spec = content.plan.spec
    if spec.metric == "overhead":
        figure = _panels(content)
    elif min(len(spec.rows), len(spec.columns)) == 1:
        figure = _bars(content)
    else:
        figure = _heat_map(content, look.with_std)
    heading = _title(content, int(LETTERS_PER_INCH * figure.get_figwidth()))
    figure.suptitle(plot_style.plain(heading), fontsize=10, y=1.02, va="bottom")
    return figure


def _title(content: Content, letters: int) -> str:
    standin = any(entry.standin for entry in content.entries.values())
    data = "embedded stand-in data, not the paper's" if standin else _share(content.plan)
    below = f"profile {content.plan.profile.name}, {_seeds(content)}, {data}"
    rising = any(entry.rising for entry in content.entries.values())
    mark = (f"{MARK} more rounds would change this cell",) if rising else ()
    configs = [config for cell in content.plan.cells.values() for config in cell.configs]
    told = (content.plan.spec.caption, below, small_models(configs), *mark, *_remarks(content.plan))
    return "\n".join(textwrap.fill(line, letters) for line in told if line)


def _remarks(plan: TablePlan) -> list[str]:
    """A line on all data that are not as published, or none."""
    said = remarks(plan)
    configs = (config for cell in plan.cells.values() for config in cell.configs)
    titles = {
        title(config.dataset, config.source): said[config.data_fingerprint]
        for config in configs
        if said.get(config.data_fingerprint)
    }
    return ["; ".join(f"{name}: {remark}" for name, remark in titles.items())] if titles else []


def _seeds(content: Content) -> str:
    """How many there are, beside how many there should be if some are missing."""
    wanted = content.plan.seeds
    found = {entry.seeds for entry in content.entries.values() if entry.mean is not None}
    of_all = f"{wanted} seed{'' if wanted == 1 else 's'}"
    return of_all if found <= {wanted} else f"{_span(found)} of {of_all}"


def _share(plan: TablePlan) -> str:
    """Real data, and how much of it."""
    shares = {100 * config.fraction for cell in plan.cells.values() for config in cell.configs}
    return "real data" if shares <= {100} else f"{_span(shares)} % of the real data"


def _span(values: Set[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _heat_map(content: Content, with_std: bool) -> Figure:
    import numpy as np
    import seaborn as sns
    from matplotlib.colors import PowerNorm

    spec = content.plan.spec
    behind = np.full((len(spec.rows), len(spec.columns)), np.nan)
    words = np.full(behind.shape, "", dtype=object)
    for cells in spec.lines().values():
        entries = {(c.row, c.column): content.entries[c.row, c.column] for c in cells}
        means = [entry.mean for entry in entries.values() if entry.mean is not None]
        lower = metric(cells[0].measure).lower_is_better
        for (row, column), entry in entries.items():
            place = spec.rows.index(row), spec.columns.index(column)
            if entry.mean is None:
                words[place] = entry.text
                continue
            behind[place] = entry.mean - min(means) if lower else max(means) - entry.mean
            words[place] = entry.shown_with_std if with_std else entry.shown
    cell = 1.25 if with_std else 0.95
    figure, (axes,) = plot_style.blank(2.6 + cell * len(spec.columns), 1.6 + 0.36 * len(spec.rows))
    axes.set_facecolor(ABSENT)
    farthest = float(np.nan_to_num(behind).max()) or 1.0
    line = "column" if spec.compared == "rows" else "row"
    shown = metric(next(iter(spec.cells.values())).measure)
    unit = "points" if shown.unit in ("%", "points") else shown.unit or shown.title
    apart = f"{unit} {'above' if shown.lower_is_better else 'behind'}"
    sns.heatmap(
        behind,
        ax=axes,
        cmap="viridis_r",
        norm=PowerNorm(0.5, 0.0, farthest),
        vmin=0.0,
        vmax=farthest,
        linewidths=0.5,
        xticklabels=[
            plot_style.plain(textwrap.fill(name, 14, break_long_words=False))
            for name in spec.columns
        ],
        yticklabels=list(map(plot_style.plain, spec.rows)),
        cbar_kws={"label": f"{apart} the best of the {line}"},
    )
    _write_cells(axes, content, words, behind, farthest)
    axes.tick_params(axis="x", rotation=0, labelsize=8, length=0)
    axes.tick_params(axis="y", rotation=0, length=0)
    return figure


def _write_cells(axes: Axes, content: Content, words: Any, behind: Any, farthest: float) -> None:
    """The figure of every cell, in a colour that can be read on the cell's; the best in bold."""
    import numpy as np

    spec = content.plan.spec
    for (i, j), word in np.ndenumerate(words):
        is_best = content.entries[spec.rows[i], spec.columns[j]].is_best
        is_dark = np.isfinite(behind[i, j]) and behind[i, j] > 0.2 * farthest
        axes.text(
            j + 0.5,
            i + 0.5,
            word,
            ha="center",
            va="center",
            fontsize=8,
            color="white" if is_dark else "black",
            fontweight="bold" if is_best else "normal",
            fontstyle="normal" if np.isfinite(behind[i, j]) else "italic",
        )


def _bars(content: Content) -> Figure:
    """One bar for each cell of a table of one row or one column."""
    spec = content.plan.spec
    names = list(spec.columns if len(spec.rows) == 1 else spec.rows)
    places = [(row, column) for row in spec.rows for column in spec.columns]
    figure, (axes,) = plot_style.blank(6.4, 1.2 + 0.36 * len(names))
    _bar_panel(axes, content, names, places)
    if content.plan.spec.is_attacked:
        _mark_floor(axes, content)
    return figure


def _mark_floor(axes: Axes, content: Content) -> None:
    """A line at what random images reach, below which no figure says anything."""
    runs = [run for cell in content.plan.cells.values() for run in cell.runs if run is not None]
    measure = next(iter(content.plan.cells.values())).cell.measure
    values = [value for run in runs for value in attack_values(run, f"{measure}_noise")]
    if values:
        floor = statistics.fmean(values)
        axes.axvline(floor, color="black", linewidth=0.8, linestyle=(0, (4, 2)))
        axes.annotate(
            "random images",
            (floor, -0.5),
            xytext=(2, 0),
            textcoords="offset points",
            va="bottom",
            fontsize=7,
        )


def _panels(content: Content) -> Figure:
    """A panel of bars for each column."""
    spec = content.plan.spec
    abreast = min(PANELS_ABREAST, len(spec.columns))
    deep = math.ceil(len(spec.columns) / abreast)
    figure, panels = plot_style.blank(
        1.0 + 2.8 * abreast, deep * (0.8 + 0.24 * len(spec.rows)), deep, abreast
    )
    for k, column in enumerate(spec.columns):
        axes = panels[k]
        _bar_panel(axes, content, list(spec.rows), [(row, column) for row in spec.rows])
        axes.set_title(" ".join((column, spec.groups.get(column, ""))).strip(), fontsize=9)
        axes.set_xlabel("")
        axes.tick_params(labelleft=k % abreast == 0, labelsize=8)
    for axes in panels[len(spec.columns) :]:
        axes.set_axis_off()
    return figure


def _bar_panel(
    axes: Axes, content: Content, names: list[str], places: list[tuple[str, str]]
) -> None:
    import seaborn as sns

    entries = [content.entries[place] for place in places]
    lengths = [entry.mean or 0.0 for entry in entries]
    colours = [BEST if entry.is_best else OTHER for entry in entries]
    sns.barplot(
        x=lengths, y=names, hue=names, palette=colours, legend=False, orient="h", ax=axes, width=0.7
    )
    for k, entry in enumerate(entries):
        spread = entry.std if entry.std and entry.mean is not None else 0.0
        if spread:
            axes.errorbar(lengths[k], k, xerr=spread, color="black", linewidth=1, capsize=2)
        word = entry.text if entry.mean is None else entry.shown
        axes.annotate(
            word,
            (max(lengths[k] + spread, _papers(entry) or 0.0), k),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            fontweight="bold" if entry.is_best else "normal",
            fontstyle="italic" if entry.mean is None else "normal",
        )
    _mark_papers(axes, entries)
    axes.set_xlabel(entries[0].measure.label)
    axes.set_ylabel("")
    axes.margins(x=0.3)
    axes.set_xlim(left=0)
    axes.set_ylim(len(entries) - 0.4, -0.6)
    axes.set_xticks([])  # every bar bears its figure
    sns.despine(ax=axes, bottom=True)


def _papers(entry: Entry) -> float | None:
    """The paper's figure, where ours was measured on the same data."""
    return None if entry.difference is None or entry.published is None else entry.published.mean


def _mark_papers(axes: Axes, entries: list[Entry]) -> None:
    """A diamond at the paper's figure of every bar that has one."""
    found = {k: value for k, entry in enumerate(entries) if (value := _papers(entry)) is not None}
    if found:
        axes.scatter(
            list(found.values()),
            list(found),
            marker="D",
            s=22,
            color=PAPER,
            edgecolor="white",
            linewidth=0.6,
            zorder=3,
            label="the paper",
        )
        axes.legend(loc="lower right", fontsize=8, frameon=False)
