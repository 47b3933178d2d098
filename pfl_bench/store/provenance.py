"""Where a result comes from: versions, source commit, machine, time, memory.

Nothing here can change a result, and nothing names the user or the host."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pfl_bench.base import VERSION

_LIBRARIES = ("torch", "numpy", "torchvision")


def current_provenance() -> dict[str, Any]:
    """Everything worth knowing about the process that computes a run, as of now."""
    return {
        "pfl_bench": VERSION,
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
        "source": source_commit(),
        "machine": machine(),
        "started": utc_now(),
    }


def utc_now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def peak_memory() -> int | None:
    """The most memory this process has held, in bytes; None where the system does not tell."""
    # On Linux ru_maxrss of a spawned process begins with its parent's; VmHWM is its own.
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        for line in lines:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@functools.cache
def source_commit() -> dict[str, Any] | None:
    """Commit of the checkout this package is run from and whether it was edited; None elsewhere."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    status = ("--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
    edited = _output("git", "-C", str(root), *status)
    return {"commit": commit, "edited": bool(edited)} if commit else None


@functools.cache
def machine() -> dict[str, Any]:
    """Processor, cores, memory in bytes and operating system."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory": _memory(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _output(*command: str) -> str | None:
    """What `command` prints; None if it is not installed, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
