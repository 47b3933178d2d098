"""FedCP's policy: a client's PIR over the iterations, and how s is distributed on every client.

PIR, the personalization identification ratio, is the mean of s over the client's training samples
and features. The distribution is over the test samples and features, in the last scored round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pfl_bench.base import UserError, plot_style
from pfl_bench.reporting.figures import (
    CLIENT,
    Method,
    MethodFigure,
    Trial,
    caption,
    check_client,
    curves,
    drawable,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pfl_bench.engine import Simulator

SERIES = ("pir", "policy")
MANY_CLIENTS = 60
"""More than these have no room for a box each."""
EVEN = 0.5
"""Where as much goes to the global head as to the personal one."""


def draw(method: Method, profile: str, width: float = plot_style.COLUMN, *, client: int) -> Figure:
    """The figure of the method's first seed."""
    (shown,) = drawable([method])
    trial = shown.drawable[0]
    ratios, quantiles = pir(trial, client), policies(trial)
    if not ratios or not quantiles:
        raise UserError(f"this variant of {method.title} has no policy to show: it has no CPN")
    sentence = caption.caption(trial.config, profile, len(trial.records), remark=trial.remark)
    figure, (above, below) = _panels(width, len(quantiles), method.title, sentence, method.note)
    _pir_panel(above, ratios, client)
    _distribution(below, quantiles)
    return _finished(figure, above, below)


def _panels(
    width: float, clients: int, title: str, sentence: str, *notes: str
) -> tuple[Figure, list[Axes]]:
    figure, panels = plot_style.blank(width, 3.3, rows=2)
    key = "Boxes: quartiles; whiskers: 5 and 95 %; dots: extremes."
    caption.put(figure, f"{title} on {sentence}", "" if clients > MANY_CLIENTS else key, *notes)
    return figure, panels


def _distribution(axes: Axes, quantiles: Sequence[Sequence[float]]) -> None:
    (_ribbons if len(quantiles) > MANY_CLIENTS else _boxes)(axes, quantiles)


def _finished(figure: Figure, above: Axes, below: Axes) -> Figure:
    for axes in (above, below):
        axes.axhline(EVEN, color=plot_style.FAINT, linewidth=0.6, linestyle=":")
        curves.tidy(axes, integers=True)
    figure.align_ylabels([above, below])
    return figure


def draw_kept(
    simulator: Simulator, profile: str, width: float = plot_style.COLUMN, *, client: int
) -> Figure:
    """The same of the trained model alone: every client's PIR in place of one's over iterations."""
    algorithm = simulator.algorithm
    clients = [simulator.trained_client(k) for k in range(simulator.task.clients)]
    ratios, quantiles = ([algorithm.record(c, name) for c in clients] for name in SERIES)
    if None in ratios:
        raise UserError(f"this variant of {algorithm.title} has no policy to show: it has no CPN")
    config, round = simulator.config, simulator.snapshot.round
    sentence = caption.caption(config, profile, round, remark=simulator.remark)
    figure, (above, below) = _panels(width, len(quantiles), algorithm.title, sentence)
    above.plot(range(len(ratios)), ratios, **{**plot_style.line_style(0), "linestyle": ""})
    above.set_xlabel(f"client, after iteration {round}")
    above.set_ylabel("PIR")
    _distribution(below, quantiles)
    return _finished(figure, above, below)


def pir(trial: Trial, client: int) -> dict[int, float]:
    """The client's PIR by scored round."""
    found = ((r.round, r.extras.get("pir")) for r in trial.records)
    return {
        round: values[client] for round, values in found if values and values[client] is not None
    }


def policies(trial: Trial) -> list[list[float]]:
    """Each client's quantiles of s (0, 5, 25, 50, 75, 95 and 100 %) in the last scored round."""
    last = trial.scored[-1].extras.get("policy") or []
    return [] if None in last else last


def _pir_panel(axes: Axes, ratios: dict[int, float], client: int) -> None:
    every = math.ceil(len(ratios) / curves.MARKS)
    axes.plot(list(ratios), list(ratios.values()), markevery=every, **plot_style.line_style(0))
    axes.set_xlabel("iteration")
    axes.set_ylabel(f"PIR of client {client}")


def _boxes(axes: Axes, quantiles: Sequence[Sequence[float]]) -> None:
    stats: list[dict[str, Any]] = [
        {"whislo": p5, "q1": q1, "med": median, "q3": q3, "whishi": p95, "fliers": [low, high]}
        for low, p5, q1, median, q3, p95, high in quantiles
    ]
    axes.bxp(
        stats,
        positions=range(len(stats)),
        widths=0.6,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": "#cfe3f0", "edgecolor": plot_style.COLOURS[0], "linewidth": 0.6},
        medianprops={"color": plot_style.COLOURS[1], "linewidth": 1.0},
        whiskerprops={"color": plot_style.COLOURS[0], "linewidth": 0.6},
        capprops={"color": plot_style.COLOURS[0], "linewidth": 0.6},
        flierprops={"marker": ".", "markersize": 2, "markerfacecolor": plot_style.COLOURS[0],
                    "markeredgewidth": 0},
    )  # fmt: skip
    axes.set_xlim(-0.6, len(stats) - 0.4)
    axes.set_xlabel("client")
    axes.set_ylabel("$s_i$ on test samples")


def _ribbons(axes: Axes, quantiles: Sequence[Sequence[float]]) -> None:
    """The same for many clients, in the order of their medians."""
    low, p5, q1, median, q3, p95, high = zip(*sorted(quantiles, key=lambda q: q[3]), strict=True)
    x, color = range(len(median)), plot_style.COLOURS[0]
    for lower, upper, alpha, name in (
        (low, high, 0.12, "all"),
        (p5, p95, 0.25, "5–95 %"),
        (q1, q3, 0.45, "quartiles"),
    ):
        axes.fill_between(x, lower, upper, color=color, alpha=alpha, linewidth=0, label=name)
    axes.plot(x, median, color=plot_style.COLOURS[1], label="median")
    axes.set_xlabel(f"{len(median)} clients in the order of their medians")
    axes.set_ylabel("$s_i$ on test samples")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)


FIGURE = MethodFigure(
    "FedCP's policy: a client's PIR over iterations, the distribution of s on every client.",
    "fedcp",
    draw,
    series=SERIES,
    draw_kept=draw_kept,
    options=(CLIENT,),
    check=check_client,
)
