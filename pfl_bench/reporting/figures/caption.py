"""What a figure says of itself: the data, the setting, the profile, the iterations, the seeds."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from pfl_bench.base import plot_style
from pfl_bench.config import RunConfig
from pfl_bench.data import problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pfl_bench.reporting.tables import TablePlan

LETTERS_PER_INCH = 23
"""Of the small type, on average."""


def caption(
    config: RunConfig, profile: str, rounds: int, seeds: int = 1, shown: str = "", remark: str = ""
) -> str:
    """The experiment in a sentence: `rounds` that took place, what is `shown` of several seeds, and
    what must be remarked on the data."""
    counted = f"seed {config.seed}" if seeds == 1 else f"{seeds} seeds ({shown})"
    iterations = "1 iteration" if rounds == 1 else f"{rounds} iterations"
    how = f"{_unbroken(iterations)}, {_unbroken(counted)}, {profile} profile"
    return f"{problem(config, remark)}; {how}."


def of_table(plan: TablePlan) -> str:
    """A table in a sentence: what it shows, the profile, whether the data is real, the seeds."""
    configs = [config for cell in plan.cells.values() for config in cell.configs]
    data = "embedded stand-in data, " * any(c.source == "standin" for c in configs)
    seeds = "1 seed" if plan.seeds == 1 else f"{plan.seeds} seeds"
    lines = plan.spec.lines()
    axis = "row" if plan.spec.compared == "columns" else "column"
    counted = f"{len(lines)} lines (a {axis} each)"
    return f"{plan.spec.caption} {plan.profile.name} profile, {data}{_unbroken(seeds)}, {counted}."


def _unbroken(words: str) -> str:
    """Words that stay in one line."""
    return words.replace(" ", "\xa0")


def put(figure: Figure, *sentences: str) -> None:
    """Write the sentences above the panels, within the figure's width."""
    letters = int(LETTERS_PER_INCH * figure.get_figwidth())
    text = textwrap.fill(" ".join(sentence for sentence in sentences if sentence), letters)
    figure.suptitle(plot_style.plain(text), fontsize=plot_style.SMALL, color="#404040")
