"""Runs in TensorBoard: a folder for each, in which what stood before gives way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pfl_bench.base import UserError, user_path
from pfl_bench.execution.trackers.tracker import Tracked, Tracker
from pfl_bench.store import to_json

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FLUSH_SECONDS = 5
"""What is written shows in TensorBoard after at most about so long."""


class TensorBoard(Tracker):
    title, module, extra = "TensorBoard", "torch.utils.tensorboard", "tensorboard"
    place_is_needed = "DIR"

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self._writers: dict[str, SummaryWriter] = {}

    def begin(self, run: Tracked) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = user_path(self.place) / run.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writer = SummaryWriter(str(folder), purge_step=1, flush_secs=FLUSH_SECONDS)
        except OSError as error:
            raise UserError(f"cannot write to {folder}: {error.strerror or error}") from error
        self._writers[run.config.request] = writer
        for name, facts in (("configuration", run.config.to_dict()), ("tags", dict(run.tags))):
            if facts:
                listing = "".join(f"    {line}\n" for line in to_json(facts, 2).splitlines())
                writer.add_text(name, listing, 1)

    def write(self, run: Tracked, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writers[run.config.request].add_scalar(name, value, round)

    def end(self, run: Tracked, summary: Mapping[str, Any] | None) -> None:
        writer = self._writers.pop(run.config.request)
        if summary:
            listing = "".join(f"    {line}\n" for line in to_json(dict(summary), 2).splitlines())
            writer.add_text("summary", listing, 1)
        writer.close()
