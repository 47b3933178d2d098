"""Two stored runs side by side: what differs in their configurations, values and curves.

Reads only. How the runs are named on the command line and printed is in `cli.compare`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pfl_bench.base import UserError, plot_style
from pfl_bench.config import BOOKKEEPING, RunConfig
from pfl_bench.store import (
    RoundRecord,
    StoredRun,
    arithmetic,
    remarks,
    same_result,
    summarise,
)

ROUNDING = 1e-3
"""Two results are the same to rounding if the losses of their first round agree to this share:
later, training makes much of little."""
BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 60


@dataclass(frozen=True)
class Side:
    """One of the two runs, with its records read."""

    run: StoredRun
    records: list[RoundRecord]
    summary: Mapping[str, Any]

    @property
    def curve(self) -> list[tuple[int, float]]:
        return scored(self.records)


@dataclass(frozen=True)
class Measured:
    """One line of the summary; None where a run has no such figure."""

    name: str
    a: float | None
    b: float | None
    digits: int = 2

    @property
    def difference(self) -> float | None:
        """The second less the first."""
        return None if self.a is None or self.b is None else self.b - self.a


@dataclass(frozen=True)
class Comparison:
    a: Side
    b: Side
    options: dict[str, tuple[Any, Any]]
    """The options that differ; those that only one run has are None in the other."""
    measured: list[Measured]
    better: tuple[int, int, int] | None
    """Clients on which the first run, the second, neither is better in its best round; None where
    the two do not have the same clients."""
    problems: tuple[str, str]
    """What each run learnt, in a line."""
    verdict: str
    """Of two results of one course: same bits, same to rounding, or different, and what they were
    computed with where that differs. Nothing of others."""


def compare(
    a: StoredRun, b: StoredRun, known: Mapping[str, str] = MappingProxyType({})
) -> Comparison:
    """Put two runs side by side; an unfinished one is taken as far as it went. `known` has what
    other runs say of data, by fingerprint."""
    sides, said = (_side(a), _side(b)), remarks((a, b), known)
    return Comparison(
        *sides,
        options=_different_options(a.config, b.config),
        measured=_measured(*sides),
        better=_clients(*sides),
        problems=(_problem(a, said), _problem(b, said)),
        verdict=_verdict(*sides),
    )


def _verdict(a: Side, b: Side) -> str:
    if not _same_course(a.run.config, b.run.config):
        return ""
    pairs = list(zip(a.records, b.records, strict=False))
    over = "" if len(a.records) == len(b.records) else f" in the {len(pairs)} rounds of both"
    if all(same_result(x, y) for x, y in pairs):
        return f"The two have the same bits{over}."
    left, right = arithmetic(a.summary), arithmetic(b.summary)
    told = [
        f"{name} {_said(left[name])} and {_said(right[name])}"
        for name in left
        if left[name] != right[name]
    ]
    first = next(number for number, (x, y) in enumerate(pairs, 1) if not same_result(x, y))
    if not told:
        return (
            f"The two are different from round {first} on, although both were computed with the "
            "same libraries on the same kind of processor."
        )
    where = "; ".join(told)
    if _is_rounding(*pairs[0]):
        return f"The two are the same to rounding{over}; they were computed with {where}."
    return f"The two are different from round {first} on; they were computed with {where}."


def _same_course(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether the two have one configuration, of which one may go on for longer."""
    return not _different_options(a, b).keys() - {"rounds", "patience", "eval_every"}


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={one}" for name, one in value.items())
    return "unknown" if value is None else str(value)


def _is_rounding(a: RoundRecord, b: RoundRecord) -> bool:
    losses = [(a.train_loss, b.train_loss), *zip(a.loss or (), b.loss or (), strict=False)]
    known = [(x, y) for x, y in losses if x is not None and y is not None]
    return (
        a.joined == b.joined
        and bool(known)
        and all(math.isclose(x, y, rel_tol=ROUNDING, abs_tol=ROUNDING) for x, y in known)
    )


def _problem(run: StoredRun, said: Mapping[str, str]) -> str:
    from pfl_bench.data import problem  # and with it numpy

    try:
        config = RunConfig.from_dict(run.config)
        return problem(config, said.get(config.data_fingerprint, ""))
    except (KeyError, TypeError, ValueError) as error:  # written by hand
        raise UserError(f"the run {run.path.name} is not configured as a run: {error}") from error


def _side(run: StoredRun) -> Side:
    if run.status == "damaged":
        raise UserError(f"the run {run.path.name} is damaged: {run.damage}")
    records = run.records()
    if all(record.accuracy is None for record in records):
        reason = run.end.reason
        because = f" ({run.status}: {reason})" if reason else f" ({run.status})"
        raise UserError(f"the run {run.path.name} has no scored round to compare{because}")
    return Side(run, records, {**(run.summary or {}), **summarise(records)})


def _different_options(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    left, right = _flat(a), _flat(b)
    names = dict.fromkeys((*left, *right))
    pairs = {name: (left.get(name), right.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with hyper-parameters among them under their own names."""
    options = {n: value for n, value in config.items() if n not in ("hyper", *BOOKKEEPING)}
    return options | {f"set {name}": value for name, value in config.get("hyper", {}).items()}


def _measured(a: Side, b: Side) -> list[Measured]:
    percent = (
        ("best accuracy (%)", "best", "accuracy"),
        ("  mean over clients (%)", "best", "mean_over_clients"),
        ("  std over clients (points)", "best", "std_over_clients"),
        ("  worst decile of clients (%)", "best", "worst_decile"),
        ("last accuracy (%)", "last", "accuracy"),
    )
    whole = (
        ("rounds", "rounds", 1.0, 0),
        ("seconds per round", "seconds_per_round", 1.0, 2),
        ("MB up per client and round", "bytes_up_per_client", 1e6, 2),
        ("MB down per client and round", "bytes_down_per_client", 1e6, 2),
    )

    def scores(when: str, key: str, factor: float = 1.0) -> tuple[float, float]:
        return factor * a.summary[when][key], factor * b.summary[when][key]

    def totals(key: str, unit: float) -> tuple[float | None, float | None]:
        found = a.summary.get(key), b.summary.get(key)
        first, second = (None if value is None else value / unit for value in found)
        return first, second

    return [
        *(Measured(name, *scores(when, key, 100)) for name, when, key in percent),
        Measured("best round", *scores("best", "round"), digits=0),
        *(Measured(name, *totals(key, unit), digits=digits) for name, key, unit, digits in whole),
    ]


def _clients(a: Side, b: Side) -> tuple[int, int, int] | None:
    """Only a common partition makes client 3 of one run client 3 of the other."""
    prints = [side.summary.get("partition_fingerprint") for side in (a, b)]
    if prints[0] is None or prints[0] != prints[1]:
        return None
    left, right = _best_correct(a), _best_correct(b)
    if len(left) != len(right):
        return None
    pairs = list(zip(left, right, strict=True))
    return sum(x > y for x, y in pairs), sum(x < y for x, y in pairs), sum(x == y for x, y in pairs)


def _best_correct(side: Side) -> list[int]:
    best = side.summary["best"]["round"]
    return next(record.correct or [] for record in side.records if record.round == best)


def scored(records: Sequence[RoundRecord]) -> list[tuple[int, float]]:
    """The scored rounds and their accuracy in percent."""
    return [(r.round, 100 * r.accuracy) for r in records if r.accuracy is not None]


def bars(curve: Sequence[tuple[int, float]], rounds: int, low: float, high: float) -> str:
    """A curve as a line of MOST_BARS at most over rounds 1 to `rounds`, on the scale low to high;
    blank after its last round. Each bar is the last score up to its round."""
    width, steps = min(MOST_BARS, rounds), len(BARS) - 1
    line = ""
    for k in range(width):
        until = max(1, round((k + 1) * rounds / width))
        known = [value for number, value in curve if number <= until]
        is_over = until > curve[-1][0] and k * rounds / width >= curve[-1][0]
        if is_over or not known:
            line += " "
            continue
        line += BARS[round(steps * (known[-1] - low) / (high - low)) if high > low else 0]
    return line.rstrip()


def sparkline(curve: Sequence[tuple[int, float]]) -> str:
    """The accuracy over the rounds as a line of bars, with its ends in numbers."""
    values = [value for _, value in curve]
    low, high, rounds = min(values), max(values), curve[-1][0]
    line = bars(curve, rounds, low, high)
    return f"{line}  {low:.2f} % to {high:.2f} %, rounds 1 to {rounds}"


def save_curves(comparison: Comparison, names: tuple[str, str], path: Path) -> None:
    """Both curves in one picture; the suffix of `path` says the format."""
    from pfl_bench.reporting.figures import caption

    with plot_style.drawing(path.stem):
        import seaborn as sns
        from matplotlib.ticker import MaxNLocator

        figure, (axes,) = plot_style.blank(6.4, 4.0)
        for side, name, style in zip((comparison.a, comparison.b), names, ("-", "--"), strict=True):
            rounds, accuracy = zip(*side.curve, strict=True)
            sns.lineplot(x=rounds, y=accuracy, ax=axes, label=name, linestyle=style)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("round")
        axes.set_ylabel("test accuracy (%)")
        a, b = comparison.problems
        caption.put(figure, f"{a}." if a == b else f"A: {a}. B: {b}.")
        sns.despine(ax=axes)
        plot_style.save(figure, path)
