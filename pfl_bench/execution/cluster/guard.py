"""A process that outlives the command and ends what a Ray of its own would leave behind.

Ray's agents notice late, or never, that the command which started them was killed. The guard waits
until the command is gone, one way or another, and ends every process that carries the command's
mark in its environment. It needs /proc; elsewhere there is none.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "PFL_BENCH_RAY"
PROCESSES = Path("/proc")
LONGEST = 30.0
"""Seconds after which the guard gives up."""


@contextlib.contextmanager
def guarded_processes() -> Iterator[None]:
    """What is started meanwhile does not outlive this process by more than a moment."""
    if not (PROCESSES / "self" / "environ").exists():
        yield
        return
    mark = secrets.token_hex(16)
    # A session of its own: what is told to the command's group is not told to the guard.
    guard = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.environ[MARK] = mark
    try:
        yield
    finally:
        os.environ.pop(MARK, None)
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def marked(mark: str) -> list[int]:
    """The processes that were started under `mark`."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for environment in PROCESSES.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if wanted in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return found


def end_marked(mark: str) -> None:
    """Kill them until none is left: they may start each other."""
    deadline = time.monotonic() + LONGEST
    while (pids := marked(mark)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # ends with the command
    end_marked(sys.argv[1])
