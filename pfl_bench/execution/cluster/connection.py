"""Ray itself: found, connected to, and its failures in words."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from pfl_bench.base import UserError, install_command, shown, terminable
from pfl_bench.execution.cluster.guard import guarded_processes
from pfl_bench.execution.options import default_workers

OLDEST = (2, 56)
"""Ray asks for a token since 2.52; up to 2.55 known holes are open."""
CONNECT_SECONDS = 5.0
_OWN_TOKEN = secrets.token_hex(32)


def require_ray(own: bool = False) -> ModuleType:
    """The library, or one sentence on how to get it. A Ray of this command's `own` listens on the
    loopback interface alone."""
    # All are read when it is imported: it reports to nobody unless asked to, what its processes
    # say is not mixed into a table on its way to a file, and it obeys nobody without a token.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    if mode.lower() != "token":
        raise UserError(
            f"RAY_AUTH_MODE is {shown(mode)}: whoever reaches such a Ray can run code as you; "
            "allowed: token, which is used where it is unset"
        )
    if own:  # what Ray does unasked on systems where a firewall would ask the user
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        import ray.util.queue
        import ray.util.scheduling_strategies
    except ImportError:
        raise UserError(
            f"--backend ray needs the package ray; install it with: {install_command('ray')}"
        ) from None
    if tuple(map(int, ray.__version__.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UserError(
            f"--backend ray needs ray {oldest} or newer, which asks for a token, not "
            f"{ray.__version__}; install it with: {install_command('ray')}"
        )
    return ray


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[ModuleType]:
    """Ray, connected to a running cluster or to one of this process's own."""
    with contextlib.ExitStack() as own:
        if address is None:
            own.enter_context(guarded_processes())
            own.enter_context(_private())
        yield own.enter_context(_initialised(address))


@contextlib.contextmanager
def _private() -> Iterator[None]:
    """A Ray of this command's own obeys a token that only its own processes know. Ray itself would
    write one that lasts into the home folder."""
    given = os.environ.get("RAY_AUTH_TOKEN")
    os.environ["RAY_AUTH_TOKEN"] = given or _OWN_TOKEN
    try:
        yield
    finally:
        if given is None:
            os.environ.pop("RAY_AUTH_TOKEN", None)


@contextlib.contextmanager
def _initialised(address: str | None) -> Iterator[ModuleType]:
    ray = require_ray(own=address is None)
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
    except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:
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
