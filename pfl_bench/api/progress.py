"""How far runs are, in words; and the display of a Python session: lines, of which the last is
written over where the output allows it, as a terminal and a notebook do."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from pfl_bench.config import RunConfig
from pfl_bench.data import problem
from pfl_bench.execution import Began, Ended, Failed, Note, Observer, Round
from pfl_bench.store import RoundRecord, best_round

REFRESH_SECONDS = 0.2


def title(config: RunConfig) -> str:
    """The run in a line: what is trained on what."""
    return f"{config.algo} on {problem(config)}, seed {config.seed}"


def terms(config: RunConfig) -> str:
    """What the run takes and how it is trained, in a line: what a profile may have decided."""
    share = f"{config.percent}%" if config.fraction < 1 else "all"
    epochs = config.local_epochs
    return (
        f"{share} of the data, {config.model}{config.size_label}, learning rate {config.lr:g}, "
        f"batch {config.batch_size}, {epochs} local epoch{'s' * (epochs > 1)}, "
        f"{config.length_label}"
    )


class Course:
    """How far one run is: its best accuracy and its pace."""

    def __init__(self, began: Began):
        self._config, earlier = began.config, began.earlier
        self._best = best_round(earlier)
        self._first, self._began = len(earlier), time.monotonic()

    def status(self, record: RoundRecord) -> str:
        self._best = best_round([*filter(None, [self._best]), record])
        now = "not scored" if record.accuracy is None else f"{record.accuracy:.2%}"
        best = "" if self._best is None else f", best {self._best.accuracy:.2%}"
        per_round = (time.monotonic() - self._began) / max(1, record.round - self._first)
        left = duration(per_round * (self._config.rounds - record.round))
        return f"accuracy {now}{best}, {left} left"


def duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


class Lines(Observer):
    """A line for each run, which shows its latest round until it ends."""

    def __init__(self, stream: TextIO | None = None, overwrites: bool | None = None) -> None:
        self._stream = stream or (sys.stdout if in_notebook() else sys.stderr)
        self._overwrites = in_notebook() or self._stream.isatty()
        if overwrites is not None:
            self._overwrites = overwrites
        self._courses: dict[str, Course] = {}
        self._width, self._last = 0, 0.0

    def on_began(self, event: Began) -> None:
        self._courses[event.config.request] = Course(event)
        done = f", continues after round {len(event.earlier)}" if event.earlier else ""
        self._show(f"{_short(event.config)}: {event.config.rounds} rounds{done}")

    def on_round(self, event: Round) -> None:
        key, record = event.config.request, event.record
        status = self._courses[key].status(record)
        if time.monotonic() - self._last >= REFRESH_SECONDS:
            self._last = time.monotonic()
            progress = f"round {record.round}/{event.config.rounds}"
            self._show(f"{_short(event.config)}: {progress}, {status}")

    def on_note(self, event: Note) -> None:
        self._keep(f"Note: {title(event.config)}: {event.text}")

    def on_ended(self, event: Ended) -> None:
        best = (event.run.summary or {}).get("best")
        told = event.run.status if best is None else f"best accuracy {best['accuracy']:.2%}"
        if event.run.status == "diverged":
            told += ", then it diverged"
        self._keep(f"{title(event.config)}: {told}")

    def on_failed(self, event: Failed) -> None:
        self._keep(f"{title(event.config)}: {event.error}")

    def _show(self, text: str) -> None:
        """A line that the next one may take the place of; nothing where none can."""
        if self._overwrites:
            room = shutil.get_terminal_size().columns - 1  # what is wrapped cannot be taken back
            self._write(text[: max(room, 1)], end="")

    def _keep(self, text: str) -> None:
        self._write(text, end="\n")
        self._width = 0

    def _write(self, text: str, end: str) -> None:
        start = "\r" if self._overwrites else ""
        print(f"{start}{text:<{self._width}}", end=end, file=self._stream, flush=True)
        self._width = len(text) if self._overwrites else 0


def _short(config: RunConfig) -> str:
    return f"{config.algo}, seed {config.seed}"


def in_notebook() -> bool:
    """Whether a notebook shows what is printed."""
    return "ipykernel" in sys.modules
