"""Ray itself: found, connected to, and its failures in words."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from pfl_bench.base import UserError, shown, terminable
from pfl_bench.execution.options import default_workers

INSTALL = "pip install 'pfl-bench[ray]'"
CONNECT_SECONDS = 5.0


def require_ray() -> ModuleType:
    """The library, or one sentence on how to get it."""
    # Both are read when it is imported: it reports to nobody unless asked to, and what its
    # processes say is not mixed into a table on its way to a file.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    try:
        import ray
        import ray.util.queue
        import ray.util.scheduling_strategies
    except ImportError:
        raise UserError(
            f"--backend ray needs the package ray; install it with: {INSTALL}"
        ) from None
    return ray


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[ModuleType]:
    """Ray, connected to a running cluster or to one of this process's own."""
    ray = require_ray()
    if address is None:
        where: dict[str, Any] = {
            "address": "local",
            "num_cpus": default_workers(),
            "include_dashboard": False,
        }
    else:
        _check_address(address)
        where = {"address": address}
    try:
        # Other processes' output would tear the display apart.
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot use the Ray cluster {shown(address)}: {reason}") from error
    try:
        with terminable():  # Ray puts a handler of its own in place of ours
            yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse at once what Ray would wait for, for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UserError(
            f"--address cannot be {shown(address)}; allowed: HOST:PORT of a running Ray cluster, "
            "or auto on one of its machines"
        )
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at {shown(address)} ({error}); start one with `ray start "
            "--head`, or leave --address out to use this machine"
        ) from None


def what_happened(ray: ModuleType, error: Exception) -> str:
    """A failure of the cluster rather than of the run, in a line."""
    kinds = {
        "NodeDiedError": "its node was lost",
        "OutOfMemoryError": "its worker was killed, because its node ran out of memory",
        "WorkerCrashedError": "its worker died",
        "ObjectLostError": "its data was lost with a node",
    }
    for kind, sentence in kinds.items():
        if isinstance(error, getattr(ray.exceptions, kind, ())):
            return sentence
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else 'no reason given'}"
