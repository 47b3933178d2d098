"""How runs go, told as events to whoever wants to know: a display, a tracker, the pipe of a worker.

An event says of which run it tells. Whether it happened in this process, in a worker's or on a node
of a cluster makes no difference to who is told. No result depends on an observer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pfl_bench.config import RunConfig
from pfl_bench.store import RoundRecord, RunWriter, StoredRun


@dataclass(frozen=True)
class Event:
    """Something that happened to a run."""

    config: RunConfig


@dataclass(frozen=True)
class Began(Event):
    """It begins, or continues after the rounds recorded `earlier`."""

    earlier: Sequence[RoundRecord] = ()


@dataclass(frozen=True)
class Round(Event):
    """A round is complete and stored."""

    record: RoundRecord


@dataclass(frozen=True)
class Note(Event):
    """There is something that the user should know, in a sentence."""

    text: str


@dataclass(frozen=True)
class Checkpointed(Event):
    """The state after the last recorded round is saved; `writer.carry()` gives it. Told in the
    process that computes the run and nowhere else."""

    writer: RunWriter


@dataclass(frozen=True)
class Computed(Event):
    """All its rounds are computed, in so many seconds by part (see `timing.RUN`)."""

    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Ended(Event):
    """Its result is stored, with what follows on the run where that was asked for."""

    run: StoredRun


@dataclass(frozen=True)
class Failed(Event):
    """It broke off and has no result, for this reason."""

    error: str


class Observer:
    """Is told of every event; overrides what it cares for."""

    def tell(self, event: Event) -> None:
        match event:
            case Began():
                self.on_began(event)
            case Round():
                self.on_round(event)
            case Note():
                self.on_note(event)
            case Checkpointed():
                self.on_checkpointed(event)
            case Computed():
                self.on_computed(event)
            case Ended():
                self.on_ended(event)
            case Failed():
                self.on_failed(event)

    def on_began(self, event: Began) -> None: ...

    def on_round(self, event: Round) -> None: ...

    def on_note(self, event: Note) -> None: ...

    def on_checkpointed(self, event: Checkpointed) -> None: ...

    def on_computed(self, event: Computed) -> None: ...

    def on_ended(self, event: Ended) -> None: ...

    def on_failed(self, event: Failed) -> None: ...


class Observers(Observer):
    """Several as one."""

    def __init__(self, *each: Observer):
        self._each = each

    def tell(self, event: Event) -> None:
        for observer in self._each:
            observer.tell(event)
