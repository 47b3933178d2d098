"""Where the time goes, in parts that add up to the whole.

Workers are many and the wall clock is one: a worker's seconds count divided by the number of
workers. Aggregation runs beside the training of later clients; only what outlasts it counts. The
rest of a round is waiting: for the slowest worker, or for a free core. While the process is stopped
no time passes (`clock`).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from pfl_bench.engine.clock import running

T = TypeVar("T")

WORK = ("training", "evaluation", "communication")
"""What workers do. Communication is copying received vectors in and uploads out."""
ROUND = (*WORK, "aggregation", "waiting")
RUN = ("setup", *ROUND, "checkpoint", "records", "other")
"""The parts of a run: reading data and building models, its rounds, saving, and what is left."""


class Stopwatch:
    """Seconds by part since it was made; any thread may add to it."""

    def __init__(self) -> None:
        self._began = running()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    @property
    def elapsed(self) -> float:
        return running() - self._began

    def add(self, part: str, seconds: float) -> None:
        with self._lock:
            self._seconds[part] += seconds

    def move(self, seconds: float, source: str, target: str) -> None:
        """Seconds that were measured as one part and belong to another."""
        self.add(source, -seconds)
        self.add(target, seconds)

    @contextmanager
    def excepted(self, part: str) -> Iterator[None]:
        """Within a measurement of a part, what does not belong to it."""
        began = running()
        try:
            yield
        finally:
            self.add(part, began - running())

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        began = running()
        try:
            yield
        finally:
            self.add(part, running() - began)


class RoundWatch(Stopwatch):
    """One round of `workers` workers."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self._workers = workers

    @contextmanager
    def aggregation(self, uploads: Iterator[T]) -> Iterator[Iterator[T]]:
        """Measure an aggregation less the time in which it waits for the next upload."""
        with self.measure("aggregation"):
            yield self._awaited(uploads)

    def _awaited(self, uploads: Iterator[T]) -> Iterator[T]:
        while True:
            began = running()
            upload = next(uploads, None)
            self.add("aggregation", began - running())
            if upload is None:
                return
            yield upload

    def split(self) -> dict[str, float]:
        """The round's seconds by part; `total` is their sum."""
        total = self.elapsed
        seconds = {part: self._seconds[part] / self._workers for part in WORK}
        rest = max(0.0, total - sum(seconds.values()))
        seconds["aggregation"] = min(rest, self._seconds["aggregation"])
        seconds["waiting"] = rest - seconds["aggregation"]
        return {**seconds, "total": total}


class RunWatch(Stopwatch):
    """One run: its rounds, as their records tell, and what lies between them."""

    def add_round(self, seconds: Mapping[str, float]) -> None:
        for part in ROUND:
            self.add(part, seconds[part])

    def split(self) -> dict[str, float]:
        """The run's seconds by part, so far; they add up to the time passed."""
        total = self.elapsed
        seconds = {part: self._seconds[part] for part in RUN}
        seconds["other"] = total - sum(seconds.values())
        return seconds
