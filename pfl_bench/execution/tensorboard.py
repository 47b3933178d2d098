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

from pfl_bench.base import UserError
from pfl_bench.config import RunConfig
from pfl_bench.execution.runner import Options, Watcher, execute
from pfl_bench.store import RoundRecord, RunWriter, Store, StoredRun, to_json

if TYPE_CHECKING:
    from types import TracebackType

    from torch.utils.tensorboard import SummaryWriter

INSTALL = "pip install 'pfl-bench[tensorboard]'"
FLUSH_SECONDS = 5
"""What is written shows in TensorBoard after at most about so long."""
MEGA = 1e6


def execute_logged(
    config: RunConfig, store: Store, options: Options, watcher: Watcher | None = None
) -> StoredRun:
    """`runner.execute`, its rounds also written where the options say, also those of a result
    that was stored before."""
    watcher = watcher or Watcher()
    if options.tensorboard is None:
        return execute(config, store, options, watcher)
    with Log(options.tensorboard / store.folder(config).name, watcher) as log:
        run = execute(config, store, options, log)
        if not log.has_begun:
            log.begin(config, run.records())
        return run


def check_installed() -> None:
    """Refuse before anything is computed."""
    _writer_class()


class Log(Watcher):
    """Writes each round and passes everything on to another watcher."""

    def __init__(self, folder: Path, inner: Watcher) -> None:
        self._folder, self._inner = folder, inner
        self._writer: SummaryWriter | None = None

    @property
    def has_begun(self) -> bool:
        return self._writer is not None

    def __enter__(self) -> Log:
        check_installed()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def begin(self, config: RunConfig, records: Sequence[RoundRecord]) -> None:
        """Start the run's log over with these rounds."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._writer = _writer_class()(
                str(self._folder), purge_step=1, flush_secs=FLUSH_SECONDS
            )
        except OSError as error:
            raise UserError(f"cannot write to {self._folder}: {error.strerror or error}") from error
        listing = "".join(f"    {line}\n" for line in to_json(config.to_dict(), 2).splitlines())
        self._writer.add_text("configuration", listing, 1)
        for record in records:
            self._write(record)

    def on_start(self, config: RunConfig, earlier: Sequence[RoundRecord]) -> None:
        self.begin(config, earlier)
        self._inner.on_start(config, earlier)

    def on_round(self, record: RoundRecord) -> None:
        self._write(record)
        self._inner.on_round(record)

    def on_checkpoint(self, writer: RunWriter) -> None:
        self._inner.on_checkpoint(writer)

    def on_note(self, note: str) -> None:
        self._inner.on_note(note)

    def on_end(self, seconds: Mapping[str, float]) -> None:
        self._inner.on_end(seconds)

    def _write(self, record: RoundRecord) -> None:
        assert self._writer is not None
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.round)


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
        raise UserError(
            f"--tensorboard needs the package tensorboard; install it with: {INSTALL}"
        ) from None
    return SummaryWriter
