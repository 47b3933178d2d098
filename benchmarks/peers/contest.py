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
from benchmarks.peers.environments import PEERS, Peer, python_of
from benchmarks.peers.problem import export
from pfl_bench.base import UserError
from pfl_bench.plugins import load_algorithm

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
    method: str
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


def shared() -> list[str]:
    """Our methods that the driver of some peer runs."""
    return list(dict.fromkeys(method for peer in PEERS for method in peer.methods))


def measure(
    folder: Path,
    samples: int,
    workers: int,
    repeats: int,
    only: str,
    told: Callable[[str], None],
    methods: Sequence[str] = ("fedavg",),
    sources: Mapping[str, Path] | None = None,
) -> tuple[list[PeerRow], dict[str, str]]:
    """A row for everyone who could be run, method by method, and why the others could not.

    `sources` are the folders of peers that the package index does not have, by their names.
    """
    sources = sources or {}
    found: list[PeerRow] = []
    failed: dict[str, str] = {}
    peers = []
    folder.mkdir(parents=True, exist_ok=True)
    for peer in (peer for peer in PEERS if only in peer.name):
        lacking = [title(method) for method in methods if method not in peer.methods]
        if peer.source and peer.name not in sources:
            failed[peer.name] = f"is left out; a folder with its source adds it: {peer.option} DIR"
            continue
        if lacking:
            failed[peer.name] = f"is left out of {', '.join(lacking)}: no driver of it runs that"
        peers.append(peer)
    for method in methods:
        told(f"{title(method)}:")
        able = [peer for peer in peers if method in peer.methods]
        with tempfile.TemporaryDirectory() as scratch:
            problem = Path(scratch) / "problem.npz"
            try:
                export(problem, samples, method)
            except UserError as error:
                failed[title(method)] = f"is left out: {error}"
                continue
            laps, why = _turns(method, able, sources, folder, problem, workers, repeats, told)
        failed |= {f"{name}, {title(method)},": reason for name, reason in why.items()}
        if OURS in laps:
            found += rows(laps, {peer.name: peer.differs_in(method) for peer in able}, method)
    return found, failed


def title(method: str) -> str:
    return load_algorithm(method).title


def _turns(
    method: str,
    peers: Sequence[Peer],
    sources: Mapping[str, Path],
    folder: Path,
    problem: Path,
    workers: int,
    repeats: int,
    told: Callable[[str], None],
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """The laps of those who ran them all, and why the others did not."""
    failed: dict[str, str] = {}
    laps: dict[str, list[dict[str, Any]]] = {}
    logs: dict[str, Path] = {}
    running: dict[str, Driver] = {}
    with ExitStack() as stack:

        def start(name: str, python: str | Path, driver: str, threads: int) -> None:
            command = [python, DRIVERS / f"{driver}.py", problem, str(workers)]
            if name in sources:
                command.append(sources[name])
            logs[name] = folder / f"{driver}-{method}.log"
            running[name] = stack.enter_context(driven(command, logs[name], threads))

        start(OURS, sys.executable, "ours", 1)
        for peer in peers:
            told(f"{peer.name} …")
            try:
                start(peer.name, python_of(peer, folder), peer.driver, workers)
            except subprocess.CalledProcessError as error:
                failed[peer.name] = f"cannot be installed: {_last_line(error.stderr)}"
            except RuntimeError:
                failed[peer.name] = "does not start: " + _last_line(_text(logs[peer.name]))
        for repeat in range(repeats + 1):
            for name in list(running):
                try:
                    lap = running[name].lap()
                except (RuntimeError, OSError):
                    failed[name] = "ended in a round: " + _last_line(_text(logs[name]))
                    del running[name]
                    continue
                told(f"  {name}: {lap['seconds']:.2f} s")
                if repeat:
                    laps.setdefault(name, []).append(lap)
    return {name: each for name, each in laps.items() if name not in failed}, failed


def rows(
    laps: Mapping[str, list[dict[str, Any]]], differs: Mapping[str, str], method: str = "fedavg"
) -> list[PeerRow]:
    """What is told of everyone, ours first."""
    ours = laps[OURS]

    def values(name: str, what: str) -> list[float]:
        return [lap[what] for lap in laps[name]]

    def ratio(name: str, what: str) -> Ratio:
        return Ratio.of(values(name, what), [lap[what] for lap in ours])

    return [
        PeerRow(
            title(method),
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


def _text(log: Path) -> str:
    return log.read_text(errors="replace")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it does not say why"
