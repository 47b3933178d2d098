"""Performance profiles of a table's methods: how often each is how near to the best."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from pfl_bench.base import UserError, plot_style
from pfl_bench.reporting.figures import caption
from pfl_bench.reporting.figures.curves import tidy
from pfl_bench.reporting.metrics import metric
from pfl_bench.reporting.ranking import PROFILES, gaps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pfl_bench.reporting.tables import TablePlan

SHOWN = 0.95
"""The panel ends where this share of all distances lies; one method far behind would squeeze it."""


def draw(plan: TablePlan, width: float = plot_style.PAGE) -> Figure:
    found = check(plan)
    shown = metric(next(iter(plan.spec.cells.values())).measure)
    unit = "points" if shown.unit in ("%", "points") else shown.unit or shown.title
    every = sorted(value for values in found.values() for value in values)
    end = every[min(len(every) - 1, int(SHOWN * len(every)))] or 1.0
    figure, (axes,) = plot_style.blank(width, 2.6)
    problems = len(next(iter(found.values())))
    caption.put(figure, caption.of_table(plan), f"{problems} pairs of line and seed.", PROFILES)
    order = sorted(found, key=lambda name: statistics.fmean(min(v, end) for v in found[name]))
    styles = {name: plot_style.line_style(k) for k, name in enumerate(found)}
    for name in order:
        x, y = steps(found[name], end)
        style = {key: value for key, value in styles[name].items() if key != "marker"}
        axes.plot(x, [100 * share for share in y], label=plot_style.plain(name), **style)
    axes.set_xlim(0, end)
    axes.set_ylim(0, 102)
    axes.set_xlabel(f"{unit} behind the best")
    axes.set_ylabel("lines and seeds (%)")
    tidy(axes, integers=False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
    return figure


def check(plan: TablePlan) -> dict[str, list[float]]:
    """The distances; a mistake where there is nothing to compare."""
    if not plan.profile.ranks:
        raise UserError(
            f"the profile {plan.profile.name} says of itself that it does not tell which method is "
            "better"
        )
    found = gaps(plan)
    if len(found) < 2:
        raise UserError(
            "profiles take a line and seed of which every method has a stored result; "
            f"{plan.spec.name} has no such line in the store"
        )
    return found


def steps(values: list[float], end: float) -> tuple[list[float], list[float]]:
    """The share of ascending values up to each x, as the corners of stairs from 0 to `end`."""
    count = len(values)
    x, y = [0.0], [sum(value <= 0 for value in values) / count]
    for value in sorted({v for v in values if 0 < v <= end}):
        x += [value, value]
        y += [y[-1], sum(other <= value for other in values) / count]
    return [*x, end], [*y, y[-1]]
