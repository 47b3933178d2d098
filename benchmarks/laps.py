"""Timing: contestants in processes of their own, called in turns, and the ratios between them."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Lap:
    seconds: float
    answer: Any
    """What the contestant returned."""


class Contestant:
    """A process that builds something once and then runs it as often as it is told.

    A process of its own, because the number of threads per operation is a setting of the process.
    """

    def __init__(self, build: Callable[[], Callable[[], Any]]):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build), daemon=True)
        self._process.start()
        self._pipe.recv()

    def start(self) -> None:
        self._pipe.send("lap")

    def finish(self) -> Lap:
        return Lap(*self._pipe.recv())

    def lap(self) -> Lap:
        self.start()
        return self.finish()

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()


@contextmanager
def contest(
    builders: Mapping[K, Callable[[], Callable[[], Any]]],
) -> Iterator[dict[K, Contestant]]:
    """Contestants by name, stopped at the end."""
    contestants: dict[K, Contestant] = {}
    try:
        for name, build in builders.items():
            contestants[name] = Contestant(build)
        yield contestants
    finally:
        for contestant in contestants.values():
            contestant.stop()


def _serve(pipe: Connection, build: Callable[[], Callable[[], Any]]) -> None:
    run = build()
    pipe.send("ready")
    while pipe.recv() == "lap":
        began = time.perf_counter()
        answer = run()
        pipe.send((time.perf_counter() - began, answer))


@dataclass(frozen=True)
class Ratio:
    """How many times one takes as long as another: the median over the repeats, and the range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, longer: list[float], shorter: list[float]) -> Ratio:
        each = [a / b for a, b in zip(longer, shorter, strict=True)]
        return cls(statistics.median(each), min(each), max(each))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def in_turns(contestants: Mapping[K, Contestant], repeats: int) -> dict[K, list[Lap]]:
    """`repeats` laps of everybody, one after the other, after one that does not count.

    Every other time in the reverse order: a processor that was half idle before a lap is faster in
    it than one that was busy.
    """
    laps: dict[K, list[Lap]] = {name: [] for name in contestants}
    for repeat in range(repeats + 1):
        order = list(contestants) if repeat % 2 else list(reversed(contestants))
        for name in order:
            lap = contestants[name].lap()
            if repeat:
                laps[name].append(lap)
    return laps


def seconds(laps: list[Lap]) -> list[float]:
    return [lap.seconds for lap in laps]
