"""Accuracy over iterations, communicated bytes or seconds: a line per method, a band over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from pfl_bench.base import plot_style
from pfl_bench.data import problem
from pfl_bench.reporting.figures import caption
from pfl_bench.reporting.figures.labels import End, name_lines
from pfl_bench.reporting.figures.methods import Band, Method, accuracy_over, band, drawable, remark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = 8
"""A line has at most about so many."""

UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "iterations": ((1, "iteration"),),
    "bytes": tuple(
        (size, f"communicated {unit}, all clients, up and down")
        for size, unit in ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
    ),
    "seconds": ((1, "seconds of training"), (60, "minutes of training"),
                (3600, "hours of training")),
}  # fmt: skip
"""By what is on the x axis: units from small to large, with the axis's name."""


def draw(
    methods: Sequence[Method],
    x: str,
    profile: str,
    width: float = plot_style.COLUMN,
    paper: Mapping[str, float] = MappingProxyType({}),
    heading: str = "",
) -> Figure:
    """`paper` has the accuracies of the paper by the titles of the methods, where it has one;
    `heading` says what is drawn, where the setting does not."""
    shown = drawable(methods)
    bands = [band([accuracy_over(t, x) for t in method.drawable]) for method in shown]
    unit, name = _unit(x, max(one.x[-1] for one in bands))
    figure, (axes,) = plot_style.blank(width, max(2.2, 1.2 + 0.105 * len(shown)))
    config = shown[0].trials[0].config
    seeds = max(len(method.trials) for method in methods)
    rounds = max(method.rounds for method in shown)
    notes = [method.note for method in methods]
    if (fewest := min(len(method.trials) for method in shown)) < seeds:
        notes.append(f"Some curves have fewer seeds, {fewest} at least.")
    if len({problem(method.trials[0].config) for method in shown}) > 1:
        notes.append("The setting is that of the first curve.")
    if x == "seconds" and not all(t.is_timed for method in shown for t in method.trials):
        notes.append("Some runs may have shared the machine.")
    levels = {k: paper[m.title] for k, m in enumerate(shown) if m.title in paper}
    if levels:
        notes.append("Horizontal lines: the paper\u2019s figures.")
    sentence = caption.caption(
        config, profile, rounds, seeds, "mean ± std", remark(methods, config)
    )
    caption.put(figure, f"{heading}:" if heading else "", sentence, *notes)
    for position, one in enumerate(bands):
        _line(axes, one, unit, position)
    for position, level in levels.items():
        style = plot_style.line_style(position)
        axes.axhline(level, color=style["color"], linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xlabel(name)
    axes.set_ylabel("test accuracy (%)")
    tidy(axes, integers=x == "iterations")
    titles = [method.title for method in shown]
    if len({one.x[-1] for one in bands}) == 1:
        ends = [_end(one, unit, titles[k], k) for k, one in enumerate(bands)]
        last = axes.get_xlim()[1]
        ends += [
            End(last, level, f"paper {level:.2f}", ends[k].color) for k, level in levels.items()
        ]
        name_lines(figure, axes, ends)
    else:
        _legend(figure, axes, titles, bands)
    return figure


def _end(one: Band, unit: float, name: str, position: int) -> End:
    return End(one.x[-1] / unit, one.mean[-1], name, plot_style.line_style(position)["color"])


def _legend(figure: Figure, axes: Axes, titles: Sequence[str], bands: Sequence[Band]) -> None:
    """Names beside the panel for lines that end here and there, the highest first."""
    order = sorted(range(len(bands)), key=lambda k: -bands[k].mean[-1])
    names = [plot_style.plain(titles[k]) for k in order]
    figure.legend([axes.lines[k] for k in order], names, loc="outside right center")


def _unit(x: str, largest: float) -> tuple[float, str]:
    """The largest unit of which there is more than one."""
    units = UNITS[x]
    return next((unit for unit in reversed(units) if largest >= 2 * unit[0]), units[0])


def _line(axes: Axes, one: Band, unit: float, position: int) -> None:
    style = plot_style.line_style(position)
    x = [value / unit for value in one.x]
    axes.plot(x, one.mean, markevery=math.ceil(len(x) / MARKS), **style)
    if one.std is not None:
        axes.fill_between(x, one.low, one.high, color=style["color"], alpha=0.15, linewidth=0)


def tidy(axes: Axes, integers: bool) -> None:
    """What every panel of lines has: whole iterations, faint rules, no box."""
    import seaborn as sns
    from matplotlib.ticker import MaxNLocator

    if integers:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.grid(axis="y", linewidth=0.3, color="#d9d9d9")
    axes.set_axisbelow(True)
    sns.despine(ax=axes)
