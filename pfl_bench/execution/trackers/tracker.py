"""What a tracker is: it is told of each run's configuration, its rounds as scalars, and its end.

Whatever it held of a run before, it is given every round once: those that were recorded earlier are
told again after `begin`. Nothing is read from there and no result depends on it.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pfl_bench.base import UserError, install_command, reason
from pfl_bench.config import RunConfig
from pfl_bench.execution.observer import Began, Ended, Failed, Observer, Round
from pfl_bench.store import RoundRecord

MEGA = 1e6
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tracked:
    """A run as a tracker knows it."""

    config: RunConfig
    name: str
    """Of its folder in the store."""
    tags: Mapping[str, str]
    """The table and the cells that want it, where one does."""


class Tracker(Observer):
    """One place that keeps runs. A subclass says its `title`, the `module` that it needs with the
    `extra` that brings it, and overrides `begin`, `write` and `end`; a package offers it by the
    entry point `pfl_bench.trackers`."""

    title: ClassVar[str]
    module: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    place_is_needed: ClassVar[str] = ""
    """What must stand after the colon, as DIR in tensorboard:DIR; empty where nothing must."""

    def __init__(self, place: str, names: Mapping[str, str], tags: Mapping[str, Mapping[str, str]]):
        """`place` is what the user wrote after the colon, `names` and `tags` are by request."""
        self.place = place
        self._names, self._tags = names, tags
        self._written: dict[str, list[tuple[int, float]]] = {}
        self._has_begun = self._has_failed = False

    @abstractmethod
    def begin(self, run: Tracked) -> None:
        """Start the run over."""

    @abstractmethod
    def write(self, run: Tracked, round: int, values: Mapping[str, float]) -> None:
        """Keep the values of a round."""

    @abstractmethod
    def end(self, run: Tracked, summary: Mapping[str, Any] | None) -> None:
        """Keep the summary; None of a run that broke off, which may begin again another time."""

    @classmethod
    def check_installed(cls) -> None:
        """Refuse before anything is computed."""
        if not cls.module:
            return
        import importlib

        try:
            importlib.import_module(cls.module)
        except ImportError:
            command = install_command(cls.extra)
            raise UserError(
                f"{cls.title} needs the package {cls.extra}; install it with: {command}"
            ) from None

    def on_began(self, event: Began) -> None:
        self._begin(event.config, event.earlier)

    def on_round(self, event: Round) -> None:
        self._write(event.config, event.record)

    def on_ended(self, event: Ended) -> None:
        records = event.run.records()
        if self._written.get(event.config.request) != list(map(_mark, records)):
            self._begin(event.config, records)
        self._end(event.config, event.run.summary or {})

    def on_failed(self, event: Failed) -> None:
        self._end(event.config, None)

    def close(self, configs: Sequence[RunConfig]) -> None:
        """Of these runs, end those that have not ended."""
        for config in configs:
            self._end(config, None)

    def _begin(self, config: RunConfig, records: Sequence[RoundRecord]) -> None:
        self._end(config, None)
        with self._guarded():
            self.begin(self._run(config))
        self._written[config.request] = []
        for record in records:
            self._write(config, record)

    def _write(self, config: RunConfig, record: RoundRecord) -> None:
        with self._guarded():
            self.write(self._run(config), record.round, scalars(record))
        self._has_begun = True
        self._written[config.request].append(_mark(record))

    def _end(self, config: RunConfig, summary: Mapping[str, Any] | None) -> None:
        if self._written.pop(config.request, None) is not None:
            with self._guarded():
                self.end(self._run(config), summary)

    def _run(self, config: RunConfig) -> Tracked:
        request = config.request
        return Tracked(config, self._names[request], self._tags.get(request, {}))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """A tracker that fails at once is a mistake of the command; one that fails later, say
        because a server went away, must not take down what is being computed."""
        if self._has_failed:
            with contextlib.suppress(Exception):
                yield
            return
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            told = f"{self.title} fails: {reason(error)}"
            if not self._has_begun:
                raise UserError(told) from error
            self._has_failed = True
            log.warning("%s; runs go on and are stored, but may be missing there", told)


def _mark(record: RoundRecord) -> tuple[int, float]:
    """Tells a round from the same one of another attempt."""
    return record.round, record.total_seconds


def scalars(record: RoundRecord) -> dict[str, float]:
    """The values of a round by the names under which trackers group them. Accuracies lie in
    [0, 1]; traffic is the sum over the clients that joined."""
    values: dict[str, float | None] = {
        "accuracy/test": record.accuracy,
        **_over_clients(record),
        "loss/test": record.test_loss,
        "loss/train": record.train_loss,
        "traffic/MB up": record.bytes_up / MEGA,
        "traffic/MB down": record.bytes_down / MEGA,
        "traffic/clients": len(record.joined),
        **{f"seconds/{name}": value for name, value in record.seconds.items()},
        **dict(_numbers(record.extras, "recorded")),
    }
    return {name: float(value) for name, value in values.items() if value is not None}


def _over_clients(record: RoundRecord) -> dict[str, float]:
    pairs = zip(record.correct or (), record.total or (), strict=True)
    accuracies = [correct / total for correct, total in pairs if total]
    if not accuracies:
        return {}
    return {
        "clients/mean accuracy": statistics.fmean(accuracies),
        "clients/std of accuracy": statistics.pstdev(accuracies),
        "clients/lowest accuracy": min(accuracies),
    }


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """The single numbers among the series that a run was asked to record."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{name}/{key}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value
