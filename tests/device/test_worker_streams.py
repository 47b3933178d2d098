"""Who waits for whom, on a card that only writes down what it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pfl_bench.device import WorkerPool, handed_over, taken_over

CARD, CPU = torch.device("cuda"), torch.device("cpu")


@dataclass(eq=False)
class Stream:
    name: str
    said: list[tuple[str, str]]

    def record_event(self) -> str:
        self.said.append((self.name, "recorded"))
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self.said.append((self.name, f"waits for {event}"))


@dataclass
class Card:
    """In the place of `torch.cuda`."""

    said: list[tuple[str, str]] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.own = threading.local()
        self.main = Stream("main", self.said)

    def Stream(self, device: Any) -> Stream:  # noqa: N802
        self.made += 1
        return Stream(f"worker {self.made}", self.said)

    def current_stream(self, device: Any) -> Stream:
        return getattr(self.own, "stream", self.main)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.own.stream = stream
        yield
        del self.own.stream


def test_a_job_begins_after_what_came_before_it_and_its_result_is_taken_after_it() -> None:
    card = Card()
    with WorkerPool(1, CARD, card) as pool:
        job = pool.submit(lambda: card.said.append((card.current_stream(CARD).name, "works")) or 5)
        assert job.result() == 5
    assert card.said == [
        ("main", "recorded"),
        ("worker 1", "waits for event of main"),
        ("worker 1", "works"),
        ("worker 1", "recorded"),
        ("main", "waits for event of worker 1"),
    ]


def test_a_worker_keeps_its_stream() -> None:
    card = Card()
    with WorkerPool(1, CARD, card) as pool:
        assert list(pool.map(lambda k: k * k, range(3))) == [0, 1, 4]
    assert card.made == 1


def test_what_is_handed_over_is_waited_for() -> None:
    card = Card()
    taken_over(handed_over(CARD, card), CARD, card)
    assert card.said == [("main", "recorded"), ("main", "waits for event of main")]


def test_a_processor_has_no_streams() -> None:
    card = Card()
    with WorkerPool(1, CPU, card) as pool:
        assert pool.submit(lambda: 5).result() == 5
    taken_over(handed_over(CPU, card), CPU, card)
    assert card.said == []
