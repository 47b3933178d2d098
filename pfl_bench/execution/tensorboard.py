"""Watching a run with TensorBoard: its rounds as scalars, in a folder for each run.

Whatever the folder held of a run before, TensorBoard shows every round once: the rounds that were
recorded earlier are written again, and what stood there gives way to them. Nothing is read from
there and no result depends on it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.base import UserError, install_command
from pfl_bench.config import RunConfig
from pfl_bench.execution.observer import Began, Ended, Failed, Observer, Round
from pfl_bench.store import RoundRecord, Store, to_json

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FLUSH_SECONDS = 5
"""What is written shows in TensorBoard after at most about so long."""
MEGA = 1e6


def check_installed() -> None:
    """Refuse before anything is computed."""
    _writer_class()


class Board(Observer):
    """Writes each round as it comes; a result that did not come round by round, at its end."""

    def __init__(self, store: Store, folder: Path) -> None:
        check_installed()
        self._store, self._folder = store, folder
        self._writers: dict[str, SummaryWriter] = {}
        self._written: dict[str, list[tuple[int, float]]] = {}

    def on_began(self, event: Began) -> None:
        self._begin(event.config, event.earlier)

    def on_round(self, event: Round) -> None:
        self._write(event.config, event.record)

    def on_ended(self, event: Ended) -> None:
        records = event.run.records()
        if self._written.get(event.config.request) != list(map(_mark, records)):
            self._begin(event.config, records)
        self._end(event.config.request)

    def on_failed(self, event: Failed) -> None:
        self._end(event.config.request)

    def close(self) -> None:
        for request in list(self._writers):
            self._end(request)

    def _begin(self, config: RunConfig, records: Sequence[RoundRecord]) -> None:
        """Start the run's log over with these rounds."""
        self._end(config.request)
        folder = self._folder / self._store.folder(config).name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writer = _writer_class()(str(folder), purge_step=1, flush_secs=FLUSH_SECONDS)
        except OSError as error:
            raise UserError(f"cannot write to {folder}: {error.strerror or error}") from error
        self._writers[config.request], self._written[config.request] = writer, []
        listing = "".join(f"    {line}\n" for line in to_json(config.to_dict(), 2).splitlines())
        writer.add_text("configuration", listing, 1)
        for record in records:
            self._write(config, record)

    def _write(self, config: RunConfig, record: RoundRecord) -> None:
        for name, value in scalars(record).items():
            self._writers[config.request].add_scalar(name, value, record.round)
        self._written[config.request].append(_mark(record))

    def _end(self, request: str) -> None:
        self._written.pop(request, None)
        if (writer := self._writers.pop(request, None)) is not None:
            writer.close()


def _mark(record: RoundRecord) -> tuple[int, float]:
    """Tells a round from the same one of another attempt."""
    return record.round, record.total_seconds


def scalars(record: RoundRecord) -> dict[str, float]:
    """The figures of a round by the names under which TensorBoard groups them. Accuracies lie in
    [0, 1]; traffic is the sum over the clients that joined."""
    figures: dict[str, float | None] = {
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
    return {name: float(value) for name, value in figures.items() if value is not None}


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


def _writer_class() -> type[SummaryWriter]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        command = install_command("tensorboard")
        raise UserError(
            f"--tensorboard needs the package tensorboard; install it with: {command}"
        ) from None
    return SummaryWriter
