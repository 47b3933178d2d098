"""Simulators that take turns at a round, each a process of its own that is told when to run one."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.laps import Ratio
from benchmarks.peers.environments import PEERS, python_of
from benchmarks.peers.problem import export

DRIVERS = Path(__file__).with_name("drivers")
OURS = "pfl-bench"


@dataclass(frozen=True)
class Driver:
    """A running script that answers with a line of JSON for each lap."""

    process: subprocess.Popen[str]

    def told(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("it ended")
        return json.loads(line)

    def lap(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("lap\n")
        self.process.stdin.flush()
        return self.told()


@contextmanager
def driven(command: Sequence[str | Path], log: Path, threads: int) -> Iterator[Driver]:
    """A driver, ready for its first lap."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with log.open("w") as errors, subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        env=environment,
    ) as process:  # fmt: skip
        try:
            driver = Driver(process)
            driver.told()
            yield driver
        finally:
            process.kill()


@dataclass(frozen=True)
class PeerRow:
    name: str
    seconds: float
    """The median of a round."""
    low: float
    high: float
    ratio: Ratio
    """Its seconds over ours of the same lap."""
    processor: Ratio
    """The same of the processor's seconds, which other work on the machine changes less."""
    memory: float
    accuracy: float
    differs: str


def measure(
    folder: Path, samples: int, workers: int, repeats: int, only: str, told: Callable[[str], None]
) -> tuple[list[PeerRow], dict[str, str]]:
    """A row for everyone who could be run, and why the others could not."""
    failed: dict[str, str] = {}
    laps: dict[str, list[dict[str, Any]]] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        problem = Path(scratch) / "problem.npz"
        export(problem, samples)
        running: dict[str, Driver] = {}

        def start(name: str, python: str | Path, driver: str, threads: int) -> None:
            command = [python, DRIVERS / f"{driver}.py", problem, str(workers)]
            log = folder / f"{driver}.log"
            running[name] = stack.enter_context(driven(command, log, threads))

        start(OURS, sys.executable, "ours", 1)
        for peer in PEERS:
            if only not in peer.name:
                continue
            told(f"{peer.name} …")
            try:
                start(peer.name, python_of(peer, folder), peer.driver, workers)
            except subprocess.CalledProcessError as error:
                failed[peer.name] = f"cannot be installed: {_last_line(error.stderr)}"
            except RuntimeError:
                failed[peer.name] = "does not start: " + _last_line(_log(folder, peer.driver))
        for repeat in range(repeats + 1):
            for name in list(running):
                try:
                    lap = running[name].lap()
                except (RuntimeError, OSError):
                    failed[name] = "ended in a round; its log says why"
                    del running[name]
                    continue
                told(f"  {name}: {lap['seconds']:.2f} s")
                if repeat:
                    laps.setdefault(name, []).append(lap)
    whole = {name: each for name, each in laps.items() if name not in failed}
    return rows(whole, {peer.name: peer.differs for peer in PEERS}), failed


def rows(laps: Mapping[str, list[dict[str, Any]]], differs: Mapping[str, str]) -> list[PeerRow]:
    """What is told of everyone, ours first."""
    ours = laps[OURS]

    def values(name: str, what: str) -> list[float]:
        return [lap[what] for lap in laps[name]]

    def ratio(name: str, what: str) -> Ratio:
        return Ratio.of(values(name, what), [lap[what] for lap in ours])

    return [
        PeerRow(
            name,
            statistics.median(values(name, "seconds")),
            min(values(name, "seconds")),
            max(values(name, "seconds")),
            ratio(name, "seconds"),
            ratio(name, "processor"),
            max(values(name, "memory")),
            laps[name][-1]["accuracy"],
            differs.get(name, ""),
        )
        for name in laps
    ]


def _log(folder: Path, driver: str) -> str:
    return (folder / f"{driver}.log").read_text(errors="replace")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it does not say why"
