"""Processes: whether one is at work, and being told to stop. SIGTERM, and SIGHUP when the terminal
is closed, end a process as Ctrl-C does, so that it can save and say so."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

ENDINGS = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


def interrupt_once(number: int, frame: FrameType | None) -> None:
    """Stop as Ctrl-C would; the state that is saved then is not interrupted in its turn."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """These signals raise KeyboardInterrupt meanwhile, where this thread is the one that gets them.

    A hangup that is ignored, as under `nohup`, stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDINGS if not _is_nohup(number)}
    for number in before:
        signal.signal(number, interrupt_once)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _is_nohup(number: int) -> bool:
    return number != signal.SIGTERM and signal.getsignal(number) == signal.SIG_IGN


def obey_parent() -> None:
    """In a process that another one started and tells by SIGTERM to save and go: a terminal tells
    both, and the parent is the one who decides."""
    for number in (signal.SIGINT, *ENDINGS):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, interrupt_once)


def heed_no_more() -> None:
    """The process is on its way out with its exit code: being told again changes nothing.

    By a handler that does nothing, not by ignoring: that would be passed on to other processes."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, *ENDINGS):
            signal.signal(number, lambda *_: None)


def is_alive(pid: int) -> bool:
    """Whether a process is at work, as far as can be told.

    One that has ended is not, even while its parent has yet to ask how."""
    if os.name == "nt":
        return True  # there a signal of zero would end the process
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        pass
    try:
        # The state follows a name in parentheses, which may hold anything.
        status = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return True
    return status.rpartition(")")[2].split()[:1] != ["Z"]
