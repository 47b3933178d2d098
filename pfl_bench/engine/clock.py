"""A clock that stands still while the process does: stopped by a signal, frozen with its container,
paused with its virtual machine, or asleep with the computer.

No system tells a process how long it was stopped. So a thread of its own looks at the time twice a
second, and where that did not happen for longer than any load explains, nothing ran.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

TICK = 0.5
LONGEST = 5.0
"""Seconds between two looks that a busy machine may explain; a shorter stop counts as work."""


class RunningClock:
    """Seconds from an arbitrary beginning in which this process ran."""

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        longest: float = LONGEST,
        tick: float | None = TICK,
    ):
        self._now, self._longest, self._tick = now, longest, tick
        self._lock = threading.Lock()
        self._process: int | None = None
        self._seen = self._stopped = 0.0

    def __call__(self) -> float:
        with self._lock:
            if self._process != os.getpid():  # threads do not survive a fork
                self._begin()
            now = self._now()
            gap = now - self._seen
            if gap > self._longest:
                self._stopped += gap
            self._seen = now
            return now - self._stopped

    def _begin(self) -> None:
        self._process, self._seen = os.getpid(), self._now()
        if self._tick is not None:
            threading.Thread(target=self._look, args=(self._tick,), daemon=True).start()

    def _look(self, tick: float) -> None:
        while True:
            time.sleep(tick)
            self()


running = RunningClock()
