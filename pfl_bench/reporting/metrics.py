"""What a cell can show of a run: its accuracy, a cost of training it, or what it gives away.

A measure reads one stored run. Means over seeds are made in `plan`, comparisons in
`statistics` and `content`; how convergence and the CPN are counted is in `costs`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl_bench.reporting import costs

if TYPE_CHECKING:
    from pfl_bench.store import StoredRun

MEGA, GIGA = 1e6, 1e9
LATE = 20
"""Scored rounds at the end of a run that a mean is taken over."""


@dataclass(frozen=True)
class Measure:
    """One kind of figure. `of` gives None where the run has no such figure."""

    title: str
    of: Callable[[StoredRun], float | None]
    digits: int = 2
    lower_is_better: bool = False
    is_counted: bool = False
    """Counted rather than measured: seeds need not differ."""
    each: Callable[[StoredRun], list[float]] | None = None
    """What `of` is the mean of, where a spread over these says more than one over seeds."""
    needs: str = ""
    """What a finished run that has no such figure lacks."""

    def show(self, value: float) -> str:
        return f"{value:,.{self.digits}f}" if self.digits == 0 else f"{value:.{self.digits}f}"


def _accuracy(which: str) -> Callable[[StoredRun], float | None]:
    """Of the best or the last round, in percent."""

    def read(run: StoredRun) -> float | None:
        score = (run.summary or {}).get(which)
        return None if score is None else 100 * score["accuracy"]

    return read


def _late_accuracy(run: StoredRun) -> float | None:
    """In percent; None of a run too short for its end to be told from its beginning."""
    scores = [record.accuracy for record in run.records() if record.accuracy is not None]
    return 100 * statistics.fmean(scores[-LATE:]) if len(scores) >= LATE else None


def _test_loss(run: StoredRun) -> float | None:
    losses = (record.test_loss for record in reversed(run.records()))
    return next((loss for loss in losses if loss is not None), None)


def _psnr(run: StoredRun) -> float | None:
    """The mean over the attacked images; None where nothing was attacked."""
    values = attack_figures(run)
    return statistics.fmean(values) if values else None


def attack_figures(run: StoredRun, name: str = "psnr") -> list[float]:
    """The PSNR of every attacked image, or what a random one (`floor`) or a flat `grey` gives."""
    victims = (run.summary or {}).get("attack", {}).get("victims", [])
    return [value for victim in victims for value in victim[name]]


def mismatches(run: StoredRun) -> list[float]:
    """What each attack left of the distance between the gradients, relative to the one seen."""
    victims = (run.summary or {}).get("attack", {}).get("victims", [])
    return [victim["mismatch"] for victim in victims]


def _per_client(name: str, unit: float = 1.0) -> Callable[[StoredRun], float | None]:
    def read(run: StoredRun) -> float | None:
        value = (run.summary or {}).get(f"{name}_per_client")
        return None if value is None else value / unit

    return read


def _convergence(name: str) -> Callable[[StoredRun], float | None]:
    def read(run: StoredRun) -> float | None:
        reached = costs.convergence(run.records())
        return None if reached is None else float(getattr(reached, name))

    return read


def _peak(run: StoredRun) -> float | None:
    peak = (run.summary or {}).get("provenance", {}).get("peak_memory")
    return None if peak is None else peak / GIGA


def _cpn(run: StoredRun) -> float | None:
    count = costs.cpn_of(run.config)
    return None if count is None else float(count.extra)


MEASURES = {
    "accuracy": Measure("test accuracy (%)", _accuracy("best")),
    "last_accuracy": Measure("test accuracy (%) of the last round", _accuracy("last")),
    "late_accuracy": Measure(
        f"test accuracy (%), mean of the last {LATE} scored rounds",
        _late_accuracy,
        needs=f"at least {LATE} scored rounds",
    ),
    "test_loss": Measure("test loss after the last round", _test_loss, 3, lower_is_better=True),
    "psnr": Measure("PSNR (dB)", _psnr, lower_is_better=True, each=attack_figures),
    "total_minutes": Measure(
        "minutes until convergence", _convergence("minutes"), lower_is_better=True
    ),
    "iterations": Measure(
        "iterations until convergence", _convergence("round"), digits=0, lower_is_better=True
    ),
    "minutes_per_iteration": Measure(
        "minutes per iteration", _convergence("minutes_per_round"), digits=3, lower_is_better=True
    ),
    "parameters_up": Measure(
        "parameters a client sends per iteration", _per_client("parameters_up"), 0, True, True
    ),
    "parameters_down": Measure(
        "parameters a client receives per iteration", _per_client("parameters_down"), 0, True, True
    ),
    "megabytes_up": Measure(
        "MB a client sends per iteration", _per_client("bytes_up", MEGA), 2, True, True
    ),
    "megabytes_down": Measure(
        "MB a client receives per iteration", _per_client("bytes_down", MEGA), 2, True, True
    ),
    "cpn_parameters": Measure("parameters of the CPN", _cpn, 0, True, True),
    "peak_gigabytes": Measure("peak memory (GB)", _peak, lower_is_better=True),
}

SCORES = {"best": "accuracy", "last": "last_accuracy", "late": "late_accuracy", "loss": "test_loss"}
"""What a table of accuracies can be scored by; the paper scores by the best round."""
