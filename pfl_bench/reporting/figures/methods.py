"""What figures read from stored runs: a method over its seeds, means with their spread.

Reads only; nothing here draws.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

from pfl_bench.base import UserError
from pfl_bench.config import RunConfig
from pfl_bench.store import RoundRecord, StoredRun, best_round, remarks


@dataclass(frozen=True)
class Trial:
    """One run with its records read; `records` are empty where it was skipped."""

    config: RunConfig
    status: str
    reason: str | None
    records: list[RoundRecord]
    is_timed: bool = False
    """It had the machine to itself, so that its times can be compared."""
    remark: str = ""
    """What must be said of its data."""

    @classmethod
    def of(cls, run: StoredRun, known: Mapping[str, str] = MappingProxyType({})) -> Trial:
        """`known` has what other runs say of data, by fingerprint."""
        config = RunConfig.from_dict(run.config)
        remark = remarks([run], known).get(config.data_fingerprint, "")
        return cls(config, run.status, run.end.reason, run.records(), run.end.timed, remark)

    @property
    def scored(self) -> list[RoundRecord]:
        return [record for record in self.records if record.accuracy is not None]

    @property
    def best(self) -> RoundRecord:
        """The round whose accuracy is the run's score; of a run that has a scored one."""
        return best_round(self.records) or self.scored[-1]


@dataclass(frozen=True)
class Method:
    """A method's runs, one for each seed."""

    title: str
    trials: tuple[Trial, ...]

    @property
    def drawable(self) -> tuple[Trial, ...]:
        """The trials that have a scored round."""
        return tuple(trial for trial in self.trials if trial.scored)

    @property
    def note(self) -> str:
        """What a reader must know of trials that did not end as planned; often nothing."""
        odd = [trial for trial in self.trials if trial.status != "finished"]
        if not odd:
            return ""
        share = "" if len(odd) == len(self.trials) else f"{len(odd)} of {len(self.trials)} seeds "
        return f"{self.title}: {share}{odd[0].status} ({odd[0].reason})."

    @property
    def rounds(self) -> int:
        """Iterations of the longest trial."""
        return max(len(trial.records) for trial in self.trials)


def remark(methods: Iterable[Method], config: RunConfig) -> str:
    """What must be said of the data of `config`: any trial on them tells it of all."""
    trials = (trial for method in methods for trial in method.trials)
    data = config.data_fingerprint
    told = (trial.remark for trial in trials if trial.config.data_fingerprint == data)
    return max(told, key=len, default="")


def drawable(methods: Sequence[Method]) -> list[Method]:
    """The methods of which there is something to draw; a mistake where there is none."""
    found = [method for method in methods if method.drawable]
    if not found:
        raise UserError("there is nothing to draw: " + " ".join(m.note for m in methods))
    return found


@dataclass(frozen=True)
class Band:
    """A mean over trials at each x and, where there are several, their standard deviation."""

    x: list[float]
    mean: list[float]
    std: list[float] | None

    @property
    def low(self) -> list[float]:
        return [m - s for m, s in zip(self.mean, self.std or [0.0] * len(self.x), strict=True)]

    @property
    def high(self) -> list[float]:
        return [m + s for m, s in zip(self.mean, self.std or [0.0] * len(self.x), strict=True)]


def band(series: Sequence[Mapping[int, tuple[float, float]]]) -> Band:
    """Mean and sample standard deviation over trials, each a mapping from round to (x, y).

    Rounds that only some trials have are left out: a mean over fewer trials would jump there. The
    x of a round is the mean over the trials too, since bytes and seconds may differ between them.
    """
    rounds = sorted(set.intersection(*(set(one) for one in series)))
    points = [[one[round] for one in series] for round in rounds]
    return Band(
        [statistics.fmean(x for x, _ in several) for several in points],
        [statistics.fmean(y for _, y in several) for several in points],
        [statistics.stdev(y for _, y in several) for several in points]
        if len(series) > 1
        else None,
    )


Cost = Callable[[RoundRecord], float]

COSTS: dict[str, Cost] = {
    "iterations": lambda record: 1.0,
    "bytes": lambda record: float(record.bytes_up + record.bytes_down),
    "seconds": lambda record: record.total_seconds,
}
"""What a round costs. Bytes are those of all clients that joined, up and down; seconds include
evaluation, as in the tables."""


def accuracy_over(trial: Trial, cost: str) -> dict[int, tuple[float, float]]:
    """By scored round: what was spent until then, and the accuracy in percent."""
    spent = accumulate(map(COSTS[cost], trial.records))
    pairs = zip(trial.records, spent, strict=True)
    return {r.round: (x, 100 * r.accuracy) for r, x in pairs if r.accuracy is not None}


def client_accuracies(method: Method) -> list[float]:
    """Each client's accuracy in percent in the best round, the mean over seeds; sorted.

    All seeds of a method have one partition, so that a client is the same one in each. A client
    without test samples has no accuracy."""
    rows = [_percent(trial.best) for trial in method.drawable]
    clients = (list(values) for values in zip(*rows, strict=True))
    known = ([v for v in values if v is not None] for values in clients)
    return sorted(statistics.fmean(values) for values in known if values)


def _percent(record: RoundRecord) -> list[float | None]:
    counts = zip(record.correct or [], record.total or [], strict=True)
    return [100 * correct / total if total else None for correct, total in counts]
