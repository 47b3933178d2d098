"""Being told to stop: SIGTERM ends a process as Ctrl-C does, so that it can save and say so."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


def interrupt_once(number: int, frame: FrameType | None) -> None:
    """Stop as Ctrl-C would; the state that is saved then is not interrupted in its turn."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt meanwhile, where this thread is the one that gets it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def heed_no_more() -> None:
    """The process is on its way out with its exit code: being told again changes nothing.

    By a handler that does nothing, not by ignoring: that would be passed on to other processes."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
