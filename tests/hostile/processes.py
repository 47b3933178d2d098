"""Processes to be killed. They are forked from a server that has torch imported already, so that a
hundred of them cost seconds; each leads a session of its own, like a command in a terminal."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from commands import wait_until

fork_server = multiprocessing.get_context("forkserver")
fork_server.set_forkserver_preload(
    [
        "pytest",
        "pfl_bench.cli",
        "pfl_bench.privacy.audit",
        "pfl_bench.reporting.tables.files",
        "pfl_bench.execution.trained_model",
    ]
)

CHANGES = ("open", "os.chmod", "os.mkdir", "os.remove", "os.rename", "os.truncate", "shutil.rmtree")
"""What the interpreter announces before it touches a file."""

started: list[Child] = []
"""All children of the test at hand."""

Attack = Callable[[], None]
"""Something a process does to itself before it begins."""


class Child:
    """A process under way, what it has printed, and how it ended."""

    def __init__(self, output: Path, attack: Attack | None, target: Callable[..., Any], *args: Any):
        self.output = output
        self.process = fork_server.Process(target=_live, args=(output, attack, target, args))
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid
        started.append(self)

    def send(self, number: signal.Signals, group: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def wait(self, seconds: float = 60.0) -> int:
        """The exit code, negative for a signal."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running: {self.said}"
        return self.process.exitcode

    @property
    def is_alive(self) -> bool:
        return self.process.is_alive()

    @property
    def said(self) -> str:
        return self.output.read_text(encoding="utf-8") if self.output.exists() else ""


def end_all() -> None:
    """Leave no process behind, also where a test failed."""
    while started:
        child = started.pop()
        if child.is_alive:
            child.send(signal.SIGKILL)
        for pid in members(child.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.process.join()


def _live(output: Path, attack: Attack | None, target: Callable[..., Any], args: Any) -> None:
    os.setsid()
    with output.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    if attack is not None:
        attack()
    target(*args)


def command(*arguments: object) -> None:
    """The command line, with worker processes as quick to start as this one was."""
    from pfl_bench.cli import main

    multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment,return-value]
    main([str(argument) for argument in arguments], prog_name="pfl-bench")


fork = multiprocessing.get_context("fork")


until = partial(wait_until, seconds=30.0, every=0.002)


def members(session: int) -> list[int]:
    """The processes of a session that are still at work."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found


# --- what a process does to itself ----------------------------------------------------------------


@dataclass(frozen=True)
class DieAtStep:
    """Killed just before the `step`-th time that a file below `root` is touched."""

    root: Path
    step: int

    def __call__(self) -> None:
        at_step(self.root, self.step, lambda event: os.kill(os.getpid(), signal.SIGKILL))


@dataclass(frozen=True)
class FailAtStep:
    """The disk refuses the `step`-th touch of a file below `root`, or all from there on."""

    root: Path
    step: int
    number: int
    forever: bool = False

    def __call__(self) -> None:
        def refuse(event: str) -> None:
            raise OSError(self.number, os.strerror(self.number), str(self.root))

        at_step(self.root, self.step, refuse, self.forever)


def at_step(
    root: Path, step: int, act: Callable[[str], None], forever: bool = False
) -> Callable[[], int]:
    """Let `act` happen before the `step`-th touch; gives back how many touches there were."""
    place, touches = str(root), 0

    def hook(event: str, details: tuple[Any, ...]) -> None:
        nonlocal touches
        if event not in CHANGES or not str(details[0]).startswith(place):
            return
        touches += 1
        if touches == step or (forever and touches > step):
            act(event)

    sys.addaudithook(hook)
    return lambda: touches


@dataclass(frozen=True)
class DieWriting:
    """Killed in the middle of the `number`-th piece of content that is written in a store."""

    number: int
    share: float

    def __call__(self) -> None:
        from pfl_bench.base import files

        pieces = 0

        def is_last(size: int) -> int | None:
            """How much of a piece of this size is written, if it is the last one."""
            nonlocal pieces
            pieces += 1
            return int(self.share * size) if pieces == self.number else None

        class Torn(FileIO):
            def write(self, data: Any) -> int:
                if (part := is_last(len(data))) is not None:
                    super().write(data[:part])
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().write(data)

        def write_bytes(path: Path, data: Any) -> int:
            with Torn(path, "w") as file:
                return file.write(data)

        def save_file(tensors: Any, path: Path, metadata: Any = None) -> None:
            write_bytes(path, safetensors.torch.save(tensors, metadata))

        import safetensors.torch

        files.FileIO = Torn  # type: ignore[misc]
        Path.write_bytes = write_bytes  # type: ignore[assignment,method-assign]
        safetensors.torch.save_file = save_file  # type: ignore[assignment]


def moments(seed: object, longest: float) -> Iterator[float]:
    """Random waiting times, the same in every session."""
    rng = random.Random(str(seed))
    while True:
        yield rng.uniform(0, longest)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
