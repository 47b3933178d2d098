"""Training loss and test accuracy before and after local learning, at each iteration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pfl_bench.base import plot_style
from pfl_bench.engine import CONVERGENCE
from pfl_bench.reporting.figures import caption
from pfl_bench.reporting.figures.curves import MARKS, tidy
from pfl_bench.reporting.figures.methods import Method, Trial, band, drawable, remark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES = (CONVERGENCE,)
PANELS = (("train_loss", 1.0, "training loss"), ("accuracy", 100.0, "test accuracy (%)"))
WHEN = {"before": "before local learning", "after": "after local learning"}
MEANWHILE = {"meanwhile": "loss during local learning, accuracy of the scored model"}
"""What every run records."""


def draw(method: Method, profile: str, width: float = plot_style.COLUMN) -> Figure:
    (shown,) = drawable([method])
    figure, panels = plot_style.blank(width, 3.3, rows=2, sharex=True)
    seeds = len(method.trials)
    config = method.trials[0].config
    sentence = caption.caption(
        config, profile, method.rounds, seeds, "mean ± std", remark([method], config)
    )
    caption.put(figure, f"{method.title} on {sentence}", method.note)
    is_recorded = any(CONVERGENCE in r.extras for t in shown.drawable for r in t.records)
    for axes, (measure, factor, name) in zip(panels, PANELS, strict=True):
        _panel(axes, shown, measure, factor, WHEN if is_recorded else MEANWHILE)
        axes.set_ylabel(name)
        tidy(axes, integers=True)
    panels[-1].set_xlabel("iteration")
    figure.align_ylabels(panels)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2)
    return figure


def _panel(
    axes: Axes, method: Method, measure: str, factor: float, curves: Mapping[str, str]
) -> None:
    for position, (when, name) in enumerate(curves.items()):
        style = plot_style.line_style(position)
        one = band([series(trial, when, measure, factor) for trial in method.drawable])
        axes.plot(one.x, one.mean, label=name, markevery=math.ceil(len(one.x) / MARKS), **style)
        if one.std is not None:
            axes.fill_between(
                one.x, one.low, one.high, color=style["color"], alpha=0.15, linewidth=0
            )


def series(
    trial: Trial, when: str, measure: str, factor: float = 1.0
) -> dict[int, tuple[float, float]]:
    """One series by iteration: as recorded, or what every run has of it."""
    if when in MEANWHILE:
        known = ((r.round, getattr(r, measure)) for r in trial.records)
        return {r: (float(r), factor * value) for r, value in known if value is not None}
    recorded = ((r.round, r.extras.get(CONVERGENCE)) for r in trial.records)
    return {
        round: (float(round), factor * values[when][measure])
        for round, values in recorded
        if values
    }
