"""The life of a worker process: it takes a run, tells how it goes, and takes the next.

Who starts workers, hands out runs and ends them is in `workers`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path

from pfl_bench.base import UserError, obey_parent
from pfl_bench.execution.observer import Checkpointed, Event, Observer
from pfl_bench.execution.options import Execution
from pfl_bench.execution.request import Request, carry_out
from pfl_bench.plugins import load_plugin
from pfl_bench.store import RunBusy, Store

STOP_SECONDS = 1.5
"""How long a stopped worker may take to save its state before it is killed. A command that is told
to stop is gone within two seconds."""


@dataclass(frozen=True)
class Done:
    """The end of a run in a worker."""

    error: str | None = None
    is_busy: bool = False
    """Another process is computing it."""


def serve(pipe: Connection, root: Path, options: Execution) -> None:
    """The life of a worker: take a run, tell how it goes, take the next."""
    obey_parent()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    store = Store(root)
    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):
        refusal = _refusal(options.plugins)
        while True:
            request: Request = pipe.recv()
            pipe.send(Done(refusal) if refusal else attempt(request, store, options, pipe))


def _refusal(plugins: Sequence[Path]) -> str | None:
    """Load the plugins; why one cannot be, if so: its file may have changed since the command
    began."""
    try:
        for plugin in plugins:
            load_plugin(plugin)
    except UserError as error:
        return str(error)
    return None


def attempt(request: Request, store: Store, options: Execution, pipe: Connection) -> Done:
    """The run carried out; whatever goes wrong in it is told and does not end the worker."""
    try:
        carry_out(request, store, options, _Sender(pipe))
    except RunBusy as error:
        return Done(str(error), is_busy=True)
    except Exception as error:
        return Done(reason_of(error))
    return Done()


def reason_of(error: Exception) -> str:
    """Why a run broke off, in a line: a user's mistake speaks for itself, others say where."""
    if isinstance(error, UserError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{reason} ({where})"


class _Sender(Observer):
    """Sends every event on, save checkpoints, which lie in the store that both sides see."""

    def __init__(self, pipe: Connection):
        self._pipe = pipe

    def tell(self, event: Event) -> None:
        if not isinstance(event, Checkpointed):
            self._pipe.send(event)


def _end_with_parent() -> None:
    """When the command dies without a word, its workers save their state and go too."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)
