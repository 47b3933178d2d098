"""A process that outlives the command and ends what a Ray of its own would leave behind.

Ray's agents notice late, or never, that the command which started them was killed. The guard waits
until the command is gone, one way or another, and ends every process that carries the command's
mark in its environment, or was started by one that does. It needs /proc; elsewhere there is none.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
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
EVERY = 0.5
"""Seconds between two looks at what has been started."""


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
    """The processes that were started under `mark` and show it."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for environment in PROCESSES.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if wanted in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return found


class Family:
    """The marked processes and what they started, as far as it has been seen.

    Ray's agents and workers overwrite their environment with a title, so that their mark cannot be
    read, and outlive the process that started them. So they are remembered while it is alive.
    """

    def __init__(self, mark: str):
        self._mark = mark
        self._born: dict[int, str] = {}
        """When each process began, by its number, which may be given to another one later."""

    def look(self) -> list[int]:
        """Those that are alive now."""
        born, parents = {}, {}
        for status in PROCESSES.glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # The second field is a name in parentheses, which may hold anything.
                fields = status.read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    pid = int(status.parent.name)
                    parents[pid], born[pid] = int(fields[1]), fields[19]
        known = {pid for pid, began in self._born.items() if born.get(pid) == began}
        known |= born.keys() & set(marked(self._mark))
        while found := {pid for pid, parent in parents.items() if parent in known} - known:
            known |= found
        self._born = {pid: born[pid] for pid in known}
        return sorted(known)

    def end(self) -> None:
        """Kill them until none is left: they may start each other."""
        deadline = time.monotonic() + LONGEST
        while (pids := self.look()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


if __name__ == "__main__":
    family = Family(sys.argv[1])
    while not select.select([sys.stdin], [], [], EVERY)[0]:  # readable when the command is gone
        family.look()
    family.end()
