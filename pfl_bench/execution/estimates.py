"""What runs cost in time: learnt from those that were measured, else told from the arithmetic of
their models; in which order they are best submitted, and how long they then take together.

The longest first: what is left at the end, when workers begin to stand idle, is short. Nothing here
runs anything.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pfl_bench import data
from pfl_bench.base import UserError
from pfl_bench.config import RunConfig
from pfl_bench.execution.request import Request
from pfl_bench.models import TEXT_LENGTH, Inputs, build_model, inputs_of
from pfl_bench.store import StoredRun

STEP_OVERHEAD = 2e6
"""What handling a sample costs besides arithmetic, in floating-point operations. Read off measured
rounds: on a core, 0.1 ms per sample of fastText and 55 ms for 10⁹ operations of a CNN."""

Kind = tuple[str, str, str]
"""Dataset, source and model: with the algorithm, what a run's pace depends on."""


class Pace:
    """How long runs take, learnt from the rounds that were measured.

    Seconds are taken to grow with rounds, local epochs and the samples trained on. An algorithm not
    yet measured on a dataset and model is taken to cost, beside those that were, what it costs
    beside them elsewhere; and if nothing is known of it, what they do on average.

    A display may ask from a thread of its own while another learns: what is asked is never changed,
    but replaced.
    """

    def __init__(self) -> None:
        self._measured: dict[tuple[str, Kind], tuple[float, float]] = {}
        self._begun: dict[str, int] = {}

    @classmethod
    def of(cls, runs: Iterable[StoredRun]) -> Pace:
        """From runs that are stored, unfinished ones included."""
        pace = cls()
        for run in runs:
            pace.learn(run)
        return pace

    def learn(self, run: StoredRun) -> None:
        # A configuration of another version, or written by hand.
        with contextlib.suppress(KeyError, TypeError, ValueError, ArithmeticError):
            config = RunConfig.from_dict(run.config)
            if run.status == "interrupted":
                records = run.records()
                self._begun = {**self._begun, run.key: len(records)}
                self._add(config, len(records), sum(r.total_seconds for r in records))
            elif run.is_final:
                self._add(config, run.end.rounds, run.end.total_seconds)

    def left(self, config: RunConfig) -> float | None:
        """Seconds that a run, perhaps begun, still takes; None if nothing like it was measured."""
        rate = self._rate(config.algo, _kind(config))
        rounds = config.rounds - self._begun.get(config.key, 0)
        return None if rate is None else max(0, rounds) * work_per_round(config) * rate

    def _rate(self, algo: str, kind: Kind) -> float | None:
        """Seconds per pass over a whole dataset."""
        rates = {place: seconds / work for place, (work, seconds) in self._measured.items() if work}
        if (algo, kind) in rates:
            return rates[algo, kind]
        others = {other: rate for (other, where), rate in rates.items() if where == kind}
        guesses = [
            rate / rates[other, where] * others[other]
            for (one, where), rate in rates.items()
            for other in others
            if one == algo and rates.get((other, where))
        ]
        return statistics.fmean(guesses or others.values()) if others else None

    def _add(self, config: RunConfig, rounds: int, seconds: float) -> None:
        work, before = self._measured.get((config.algo, _kind(config)), (0.0, 0.0))
        work += rounds * work_per_round(config)
        place = (config.algo, _kind(config))
        self._measured = {**self._measured, place: (work, before + seconds)}


def _kind(config: RunConfig) -> Kind:
    return config.dataset, config.source, config.model


@dataclass(frozen=True)
class Estimate:
    """Seconds left for the runs that can be estimated, one at a time, and how many cannot."""

    seconds: float
    unknown: int


def estimate(requests: Sequence[Request], pace: Pace) -> Estimate:
    """The time that these runs will take, at the pace of the measured ones."""
    times = [pace.left(request.config) for request in requests]
    return Estimate(sum(t for t in times if t is not None), times.count(None))


def work_per_round(config: RunConfig) -> float:
    """The share of the dataset that is trained on in a round, epochs counted."""
    joining = statistics.fmean(config.joining_ratio)
    kept = config.clients / (config.sampled_from or config.clients)
    return config.local_epochs * config.fraction * joining * kept


def longest_first(requests: Sequence[Request], pace: Pace, data_dir: Path) -> list[Request]:
    """The runs by the time they are expected to take; of equals, the order stays."""
    seconds = expected_seconds([request.config for request in requests], pace, data_dir)
    order = sorted(range(len(requests)), key=lambda i: -seconds[i])
    return [requests[i] for i in order]


def expected_seconds(configs: Sequence[RunConfig], pace: Pace, data_dir: Path) -> list[float]:
    """What each run takes: measured on runs like it, else told from its effort at the rate of the
    measured ones. Where nothing is measured, only the ratios mean anything."""
    measured = [pace.left(config) for config in configs]
    efforts = [effort(config, data_dir) for config in configs]
    known = [(s, e) for s, e in zip(measured, efforts, strict=True) if s is not None]
    work = sum(e for _, e in known)
    rate = sum(s for s, _ in known) / work if work else 1.0
    return [e * rate if s is None else s for s, e in zip(measured, efforts, strict=True)]


def effort(config: RunConfig, data_dir: Path) -> float:
    """Floating-point operations of all forward passes in training, whatever the method."""
    return config.rounds * work_per_round(config) * _epoch_effort(
        config.dataset, config.source, config.image_size, config.model, data_dir
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _epoch_effort(
    dataset: str, source: str, image_size: int | None, model: str, data_dir: Path
) -> float:
    """One pass over a whole dataset; one operation where that cannot be told beforehand: of data
    that a partition from outside brings with it, and of a run that will be refused."""
    try:
        card = data.card(dataset, source, data_dir).reduced(image_size)
        inputs = inputs_of(card, dataset, model)
        return card.samples * (STEP_OVERHEAD + operations(model, inputs))
    except UserError:
        return 1.0


def operations(model: str, inputs: Inputs) -> float:
    """Of one sample's forward pass."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    with torch.device("meta"):  # shapes without values
        backbone = build_model(model, inputs)
        x = torch.zeros(1, TEXT_LENGTH, dtype=torch.long)
        if inputs.shape is not None:
            x = torch.zeros(1, *inputs.shape)
    for module in (backbone.extractor, backbone.head):
        module.eval()  # one sample has no batch statistics
    with FlopCounterMode(display=False) as counter:
        backbone.head(backbone.extractor(x))
    return float(counter.get_total_flops())


def makespan(seconds: Iterable[float], workers: int) -> float:
    """When the last worker is done, if each takes the next run in the given order as soon as it is
    free."""
    free = [0.0] * workers
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)
