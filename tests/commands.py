"""Commands as processes of their own, for tests that interrupt or kill them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a session of its own, like one that a user started in a terminal."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(condition: Callable[[], bool], seconds: float = 60.0, every: float = 0.02) -> float:
    """How long it took for `condition` to hold."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it never came to pass"
        time.sleep(every)
    return time.monotonic() - began
