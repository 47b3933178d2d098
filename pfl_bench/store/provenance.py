"""Where a result comes from: versions, source commit, machine, time, memory.

Nothing here is part of a run's name. What can change its last bits (`ARITHMETIC`) is what tells two
results of one configuration apart; nothing names the user or the host."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pfl_bench.base import VERSION, printable

_LIBRARIES = ("torch", "numpy", "torchvision")

_VARIABLES = (
    "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "MKL_THREADING_LAYER",
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE", "ATEN_CPU_CAPABILITY", "TORCH_CPU_CAPABILITY",
    "OPENBLAS_CORETYPE", "OPENBLAS_VERBOSE", "BLIS_ARCH_TYPE", "NPY_DISABLE_CPU_FEATURES",
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PFL_BENCH_TF32",
)  # fmt: skip
"""With which the libraries are told to compute in another way, and so to round otherwise."""
LONGEST_VALUE = 100

ARITHMETIC = (
    "torch", "numpy", "cpu", "platform", "instructions", "environment", "device", "wide_layers",
)  # fmt: skip
"""What decides the last bits of a result beside its configuration."""


def current_provenance() -> dict[str, Any]:
    """Everything worth knowing about the process that computes a run, as of now."""
    return {
        "pfl_bench": VERSION,
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
        "source": source_commit(),
        "machine": {**machine(), "instructions": _instructions()},
        "environment": numeric_environment(),
        "started": utc_now(),
    }


def numeric_environment() -> dict[str, str]:
    """The variables that are set of those that change how the libraries round."""
    found = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return {name: printable(value)[:LONGEST_VALUE] for name, value in found.items()}


def arithmetic(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a stored result says of `ARITHMETIC`; None for what an older one does not say."""
    known = {**summary, **_mapping(summary.get("provenance"))}
    known |= _mapping(known.get("machine"))
    return {name: known.get(name) or None for name in ARITHMETIC}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


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
    """Processor and who makes it, cores, memory in bytes and operating system."""
    return {
        "cpu": _cpu_model(),
        "vendor": _cpu_vendor(),
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
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpu_vendor() -> str:
    """As the processor names it ("GenuineIntel", "AuthenticAMD"); nothing where it does not."""
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.vendor") or ""
    # Windows names it last, after a comma.
    return _cpuinfo("vendor_id") or platform.processor().rpartition(", ")[2]


def _cpuinfo(name: str) -> str | None:
    """What Linux says of the first processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _instructions() -> str | None:
    """The widest vector instructions that torch uses here, where torch is at work."""
    torch = sys.modules.get("torch")
    return torch.backends.cpu.get_cpu_capability() if torch else None


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
