"""Average ranks of a table's methods over its lines, with what the lines cannot tell apart joined
by bars (Demšar's critical-difference diagram)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfl_bench.base import UserError, plot_style
from pfl_bench.reporting.figures import caption
from pfl_bench.reporting.ranking import RANKS, Ranking, ranking

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pfl_bench.reporting.tables import TablePlan

ROW = 0.16
"""Inches from one name to the next; heights in the panel are counted in these rows."""
BAR = 0.7
"""Rows from one bar to the next."""
MANY = 10
"""More ranks than these bear a number each second one."""
MARGIN = 0.28
"""Room for names on each side, as a share of the panel's width."""


def draw(plan: TablePlan, width: float = plot_style.PAGE) -> Figure:
    found = check(plan)
    bars, half = found.groups(), (len(found.means) + 1) // 2
    rows = 3.2 + BAR * len(bars) + half
    figure, (axes,) = plot_style.blank(width, ROW * rows + 0.75)
    tested = "" if found.p is None else f"Friedman's test that all rank alike: p = {found.p:.2g}."
    absent = (
        f"Without a value in every line: {', '.join(found.left_out)}." if found.left_out else ""
    )
    caption.put(figure, caption.of_table(plan), RANKS, tested, absent)
    _ladder(axes, found, bars, rows)
    return figure


def check(plan: TablePlan) -> Ranking:
    """The ranking; a mistake where the profile says that it has none, or too little is stored."""
    if not plan.profile.ranks:
        raise UserError(
            f"the profile {plan.profile.name} says of itself that it does not tell which method is "
            "better"
        )
    found = ranking(plan)
    if found is None:
        raise UserError(
            f"ranks take two methods with a stored result in each of two lines; {plan.spec.name} "
            "has no such two in the store"
        )
    return found


def _ladder(axes: Axes, found: Ranking, bars: list[tuple[str, ...]], rows: float) -> None:
    last = len(found.means)
    room = MARGIN * (last - 1) / (1 - 2 * MARGIN)
    axes.set_xlim(1 - room, last + room)
    axes.set_ylim(-rows + 2.4, 2.4)
    axes.set_axis_off()
    axes.plot((1, last), (0, 0), color="black", linewidth=0.8)
    for rank in range(1, last + 1):
        axes.plot((rank, rank), (0, 0.25), color="black", linewidth=0.8)
        if last > MANY and rank % 2 == 0:
            continue
        axes.text(rank, 0.4, str(rank), ha="center", va="bottom", fontsize=plot_style.SMALL)
    _ruler(axes, found)
    for k, names in enumerate(bars):
        ends = (found.means[names[0]] - 0.06, found.means[names[-1]] + 0.06)
        height = -0.6 - BAR * k
        axes.plot(ends, (height, height), color="black", linewidth=2.2, solid_capstyle="butt")
    top = -0.6 - BAR * len(bars)
    half = (last + 1) // 2
    for k, (name, mean) in enumerate(found.means.items()):
        is_left = k < half
        height = top - (k if is_left else last - 1 - k)
        edge = 1 - 0.1 * room if is_left else last + 0.1 * room
        color = plot_style.COLOURS[k % len(plot_style.COLOURS)]
        axes.plot((mean, mean, edge), (0, height, height), color=color, linewidth=0.8)
        told = f"{plot_style.plain(name)}  {mean:.2f}" if is_left else f"{mean:.2f}  {name}"
        axes.annotate(
            told if is_left else plot_style.plain(told),
            (edge, height),
            xytext=(-3 if is_left else 3, 0),
            textcoords="offset points",
            ha="right" if is_left else "left",
            va="center",
            fontsize=plot_style.NORMAL,
            color=color,
        )


def _ruler(axes: Axes, found: Ranking) -> None:
    """The critical difference, to scale."""
    low, high, height = 1.0, 1.0 + found.critical, 1.7
    axes.plot((low, high), (height, height), color="black", linewidth=0.8)
    for end in (low, high):
        axes.plot((end, end), (height - 0.2, height + 0.2), color="black", linewidth=0.8)
    axes.annotate(
        f"critical difference {found.critical:.2f}",
        (high, height),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=plot_style.SMALL,
    )
