"""What a cell can show of a run: its accuracy, a cost of training it, or what it gives away.

Here are the metrics that runs of any algorithm have, and how one is found by its name among these
and those that plugins bring. Means over seeds are made in `plan`, comparisons in `statistics` and
`content`; how convergence is counted is in `costs`.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

from pfl_bench.base import UserError, unknown
from pfl_bench.reporting import costs
from pfl_bench.reporting.verdict import best_record, reference
from pfl_bench.store import NEWCOMERS, VALIDATION, Metric, RoundRecord, StoredRun

ENTRY_POINTS = "pfl_bench.metrics"
MEGA, GIGA = 1e6, 1e9
LATE = 20
"""Scored rounds at the end of a run that a mean is taken over."""


def _score(which: str, name: str = "accuracy") -> Callable[[StoredRun], float | None]:
    """Of the best or the last round, in percent."""

    def read(run: StoredRun) -> float | None:
        score = {"best": run.end.best, "last": run.end.last}[which]
        return None if score is None else 100 * getattr(score, name)

    return read


def _validated(run: StoredRun) -> float | None:
    """The test accuracy of the round that is best on samples held back; None without such."""
    best = best_record(run)
    return None if best is None or VALIDATION not in best.extras else _score("best")(run)


def _validation_accuracy(run: StoredRun) -> float | None:
    best = best_record(run)
    found = None if best is None else best.pooled(VALIDATION)
    return None if found is None else 100 * found


def _new_accuracy(run: StoredRun) -> float | None:
    """Of the clients that never join, in the round that is best for those who do."""
    best = best_record(run)
    found = None if best is None else best.pooled(NEWCOMERS)
    return None if found is None else 100 * found


def _new_mean(run: StoredRun) -> float | None:
    """The same with every client counting alike; those without test samples are left out."""
    best = best_record(run)
    if best is None or best.pooled(NEWCOMERS) is None:
        return None
    counts = best.extras[NEWCOMERS]
    pairs = zip(counts["correct"], counts["total"], strict=False)
    return 100 * statistics.fmean(correct / total for correct, total in pairs if total)


def _worse_off(run: StoredRun, other: StoredRun) -> float | None:
    """The percentage of clients, those without test samples aside, that have fewer right answers in
    the run's best round than in the other's; None where the two do not have the same clients."""
    prints = [each.end.partition_fingerprint for each in (run, other)]
    rival = best_record(other)
    if prints[0] != prints[1] or rival is None:
        return None
    return _share_below(run, rival.correct or [])


def _below_majority(run: StoredRun) -> float | None:
    """The same beside always answering a client's most frequent training class."""
    known = reference(run)
    return None if known is None else _share_below(run, known.correct)


def _share_below(run: StoredRun, correct: Sequence[int]) -> float | None:
    best = best_record(run)
    if best is None or not len(best.correct or []) == len(best.total or []) == len(correct):
        return None
    clients = zip(best.correct or [], best.total or [], correct, strict=True)
    below = [ours < theirs for ours, total, theirs in clients if total]
    return 100 * sum(below) / len(below) if below else None


def _late_accuracy(run: StoredRun) -> float | None:
    """In percent; None of a run too short for its end to be told from its beginning."""
    scores = costs.scores(run.records())
    return 100 * statistics.fmean(scores[-LATE:]) if len(scores) >= LATE else None


def _test_loss(run: StoredRun) -> float | None:
    losses = (record.test_loss for record in reversed(run.records()))
    return next((loss for loss in losses if loss is not None), None)


def _similarity(name: str, title: str, unit: str, how: str) -> Metric:
    """How close an attack came, in the mean over the attacked images; the lower, the safer."""

    def mean(run: StoredRun) -> float | None:
        values = attack_values(run, name)
        return statistics.fmean(values) if values else None

    how = f"{how}; the lower, the less is given away (docs/privacy.md)"
    each = partial(attack_values, name=name)
    return Metric(name, title, mean, unit, better="low", each=each, how=how)


def attack_values(run: StoredRun, name: str) -> list[float]:
    """One of the values that an attack stores of every attacked image."""
    return [value for victim in run.end.victims for value in victim[name]]


def mismatches(run: StoredRun) -> list[float]:
    """What each attack left of the distance between the gradients, relative to the one seen."""
    return [victim["mismatch"] for victim in run.end.victims]


def _cost(of: Callable[[list[RoundRecord]], float | None]) -> Callable[[StoredRun], float | None]:
    return lambda run: of(run.records())


def _traffic(name: str, unit: float = 1.0) -> Callable[[StoredRun], float | None]:
    def read(run: StoredRun) -> float | None:
        value = costs.per_client(run.records(), name)
        return None if value is None else value / unit

    return read


def _peak(run: StoredRun) -> float | None:
    peak = run.end.peak_memory
    return None if peak is None else peak / GIGA


_MODEL = "which model is scored, and when, is each algorithm's own (`pfl-bench show ALGO`)"
_OVER = f"over all clients' test samples; {_MODEL}"
_NEW = "runs with clients that never join (--new-clients)"
_COUNTED: dict[str, Any] = {"better": "low", "is_counted": True, "needs": costs.TWO_ROUNDS}

_OF_ALL = (
    Metric(
        "accuracy",
        "test accuracy",
        _score("best"),
        "%",
        how=f"the best round's accuracy, correct predictions {_OVER}",
    ),
    Metric(
        "validated_accuracy",
        "test accuracy of the round chosen by validation",
        _validated,
        "%",
        needs="runs that hold back training samples (--validation)",
        how=f"the accuracy of the round with the best validation accuracy, correct predictions "
        f"{_OVER}",
    ),
    Metric(
        "validation_accuracy",
        "validation accuracy",
        _validation_accuracy,
        "%",
        needs="runs that hold back training samples (--validation)",
        how="the best round's correct predictions over the training samples that all clients hold "
        f"back; {_MODEL}",
    ),
    Metric(
        "last_accuracy",
        "test accuracy of the last round",
        _score("last"),
        "%",
        how=f"the last round's accuracy, correct predictions {_OVER}",
    ),
    Metric(
        "late_accuracy",
        f"test accuracy, mean of the last {LATE} scored rounds",
        _late_accuracy,
        "%",
        needs=f"at least {LATE} scored rounds",
        how=f"the mean accuracy of the last {LATE} scored rounds, correct predictions {_OVER}",
    ),
    Metric(
        "test_loss",
        "test loss after the last round",
        _test_loss,
        better="low",
        digits=3,
        how=f"cross-entropy after the last round, mean {_OVER}",
    ),
    Metric(
        "mean_over_clients",
        "test accuracy, mean over clients",
        _score("best", "mean_over_clients"),
        "%",
        how=f"the best round's accuracy of each client, every client counting alike; {_MODEL}",
    ),
    Metric(
        "std_over_clients",
        "test accuracy, standard deviation over clients",
        _score("best", "std_over_clients"),
        "points",
        better="low",
        how=f"the spread of the clients' accuracies in the best round; {_MODEL}",
    ),
    Metric(
        "worst_decile",
        "test accuracy of the worst tenth of clients",
        _score("best", "worst_decile"),
        "%",
        how="the mean accuracy of the tenth of the clients (at least one) that is worst off in the "
        f"best round; {_MODEL}",
    ),
    Metric(
        "below_local",
        "clients worse off than alone",
        _worse_off,
        "%",
        better="low",
        digits=1,
        beside="local",
        needs="a finished run of Local on the same data, terms and seed",
        how="the share of clients with fewer right answers in the best round than in that of Local "
        f"with the same seed; {_MODEL}",
    ),
    Metric(
        "below_majority",
        "clients worse off than with their most frequent class",
        _below_majority,
        "%",
        better="low",
        digits=1,
        needs="a run that kept what its data alone would score",
        how="the share of clients with fewer right answers in the best round than always answering "
        f"the client's most frequent training class gives; {_MODEL}",
    ),
    Metric(
        "new_accuracy",
        "test accuracy of clients never seen",
        _new_accuracy,
        "%",
        needs=_NEW,
        how="in the best round of the clients that join, the accuracy of those that never do: "
        f"each receives what the method sends, adapts by its own rule and keeps nothing; {_MODEL}",
    ),
    Metric(
        "new_mean_over_clients",
        "test accuracy of clients never seen, mean over clients",
        _new_mean,
        "%",
        needs=_NEW,
        how="in the best round of the clients that join, the accuracy of each that never does, "
        f"every client counting alike; {_MODEL}",
    ),
    _similarity(
        "psnr",
        "PSNR",
        "dB",
        "PSNR between a client's image and what an attack recovers of it, both in [0, 1]",
    ),
    _similarity(
        "ssim",
        "SSIM",
        "",
        "structural similarity of a client's image and what an attack recovers of it, 1 for equal "
        "ones",
    ),
    _similarity(
        "published_psnr",
        "PSNR by the authors' public code",
        "dB",
        "a client's image in [-1, 1] against what an attack recovers of it in [0, 1], the error "
        "divided by three, as the public code of the paper's authors has it",
    ),
    Metric(
        "total_minutes",
        "minutes until convergence",
        _cost(costs.total_minutes),
        better="low",
        needs=costs.FLATTENED,
    ),
    Metric(
        "iterations",
        "iterations until convergence",
        _cost(costs.iterations),
        better="low",
        digits=0,
        needs=costs.FLATTENED,
    ),
    Metric(
        "minutes_per_iteration",
        "minutes per iteration",
        _cost(costs.minutes_per_iteration),
        better="low",
        digits=3,
        needs=costs.TWO_ROUNDS,
    ),
    Metric(
        "parameters_up",
        "parameters a client sends per iteration",
        _traffic("parameters_up"),
        digits=0,
        **_COUNTED,
    ),
    Metric(
        "parameters_down",
        "parameters a client receives per iteration",
        _traffic("parameters_down"),
        digits=0,
        **_COUNTED,
    ),
    Metric(
        "megabytes_up", "MB a client sends per iteration", _traffic("bytes_up", MEGA), **_COUNTED
    ),
    Metric(
        "megabytes_down",
        "MB a client receives per iteration",
        _traffic("bytes_down", MEGA),
        **_COUNTED,
    ),
    Metric("peak_gigabytes", "peak memory", _peak, "GB", better="low"),
)
METRICS = {metric.name: metric for metric in _OF_ALL}
"""What runs of every algorithm have, by name."""

SCORES = {
    "best": "accuracy",
    "validation": "validated_accuracy",
    "last": "last_accuracy",
    "late": "late_accuracy",
    "loss": "test_loss",
    "clients": "mean_over_clients",
    "spread": "std_over_clients",
    "worst": "worst_decile",
    "below-local": "below_local",
    "below-majority": "below_majority",
    "new": "new_accuracy",
    "new-clients": "new_mean_over_clients",
}
"""What a table of accuracies can be scored by; the paper scores by the best round."""
SIMILARITIES = ("psnr", "ssim", "published_psnr")
"""What a table of an attack can be scored by."""


def metric(name: str) -> Metric:
    """The metric of that name, of every run or brought by a plugin."""
    if name in METRICS:
        return METRICS[name]
    from pfl_bench.plugins import offered

    brought = brought_metrics()
    if name not in brought:
        if name in (packaged := offered(ENTRY_POINTS)):
            return _checked(name, packaged[name]())  # which says why it cannot be used
        raise unknown("metric", name, [*METRICS, *brought])
    return brought[name]


def brought_metrics() -> dict[str, Metric]:
    """The metrics of plugins: of algorithms, and of packages by the entry point ENTRY_POINTS."""
    from pfl_bench.plugins import algorithm_names

    return _brought(tuple(algorithm_names()))


@lru_cache(maxsize=8)
def _brought(algorithms: tuple[str, ...]) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for one in _declared(algorithms):
        if one.name in METRICS or found.setdefault(one.name, one) != one:
            raise UserError(f"two metrics bear the name {one.name!r}; rename the plugin's")
    return found


def _declared(algorithms: tuple[str, ...]) -> Iterator[Metric]:
    from pfl_bench.plugins import load_algorithm, offered

    for algo in algorithms:
        with contextlib.suppress(UserError):  # a broken plugin is told of where it is asked for
            yield from load_algorithm(algo).metrics
    for name, load in offered(ENTRY_POINTS).items():
        with contextlib.suppress(UserError):
            yield _checked(name, load())


def _checked(name: str, one: Any) -> Metric:
    if not isinstance(one, Metric) or one.name != name:
        raise UserError(f"the entry point {name!r} of {ENTRY_POINTS} is no metric of that name")
    return one
