"""One run on a node of a cluster, from what is sent there to what is sent back.

A node needs this package and nothing else: data, plugins and the checkpoint to continue from arrive
with the order, and the run is computed in a temporary folder of the node's own. Who orders runs and
keeps their results is in `backend`; the cluster's software appears here as a way to post letters.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

import pfl_bench.algorithms
import pfl_bench.datasets
from pfl_bench.base import VERSION
from pfl_bench.config import RunConfig
from pfl_bench.data import Dataset, Partition
from pfl_bench.execution.observer import Checkpointed, Event, Observer, Round
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.execution.worker import reason_of
from pfl_bench.plugins import check_plugin, load_plugin
from pfl_bench.store import Store

ROUND_SECONDS = 0.25
"""Rounds are told at most this often: a display does not show more."""

STALE_SECONDS = 60.0
"""A folder that is older and not locked belongs to a process that is gone."""
_FOLDER = "pfl-bench-run-"
_LOCK = "alive.lock"

Files = Mapping[str, bytes]
"""What a run has reached, as the files of its folder."""


@dataclass(frozen=True)
class Order:
    """A run to carry out, in plain values."""

    config: dict[str, Any]
    installation: Mapping[str, str]
    """What the one who orders has installed."""
    plugins: Mapping[str, bytes] = field(default_factory=dict)
    """The content of each plugin's file, by the name of its algorithm."""
    workers: int = 1
    device: str = "auto"
    is_timed: bool = False
    keep_state: bool = False
    checkpoint_every: int | None = None


@dataclass(frozen=True)
class Saved:
    """The state after a round is saved, in these files."""

    round: int
    files: Files


@dataclass(frozen=True)
class Answer:
    """What came of an order: the files of the result, or why there is none."""

    files: Files | None = None
    error: str | None = None
    mismatch: str | None = None
    """Why nothing can be ordered from this node."""


Post = Callable[[Event | Saved], None]


def carry_out(
    order: Order, dataset: Dataset, partition: Partition, files: Files, post: Post
) -> Answer:
    """Compute the run, continued from `files`, and tell on the way how it goes."""
    if mismatch := difference(order.installation, installation()):
        return Answer(mismatch=mismatch)
    # Data shared by the runs of a node cannot be written to; no run does.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    config = RunConfig.from_dict(order.config)
    options = Execution(
        data_dir=Path(),
        workers=order.workers,
        device=order.device,
        timed=order.is_timed,
        checkpoint_every=order.checkpoint_every,
        keep_state=order.keep_state,
        given=(dataset, partition),
    )
    try:
        equip(config, order.plugins)
        with _folder_of_its_own() as folder:
            store = Store(folder)
            if files:
                with store.open(config) as writer:
                    writer.adopt(files)
            return Answer(files=execute(config, store, options, _Reporter(post)).carry())
    except Exception as error:  # whatever goes wrong is the run's, not the node's
        return Answer(error=reason_of(error))


@contextlib.contextmanager
def _folder_of_its_own() -> Iterator[Path]:
    """A folder on this node while the run lasts. Those of runs that were killed are removed: they
    are not locked any more."""
    places = Path(tempfile.gettempdir()).glob(f"{_FOLDER}*")
    for old in filter(_is_ours_and_old, places):
        with contextlib.suppress(OSError, Timeout), FileLock(old / _LOCK, timeout=0):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    try:
        with FileLock(folder / _LOCK):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_ours_and_old(place: Path) -> bool:
    """Not a link or another user's folder: everybody may put such there."""
    try:
        found = place.lstat()
    except OSError:
        return False
    is_ours = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    is_old = time.time() - found.st_mtime > STALE_SECONDS
    return stat.S_ISDIR(found.st_mode) and is_ours and is_old


class _Reporter(Observer):
    """Posts how the run goes."""

    def __init__(self, post: Post):
        self._post = post
        self._told = 0.0

    def tell(self, event: Event) -> None:
        if isinstance(event, Checkpointed):
            self._post(Saved(event.writer.records[-1].round, event.writer.carry()))
        elif not isinstance(event, Round):
            self._post(event)
        elif time.monotonic() - self._told >= ROUND_SECONDS:
            self._told = time.monotonic()
            self._post(event)


# --- the same code on both sides ------------------------------------------------------------------


@functools.cache
def installation() -> dict[str, str]:
    """The versions on which the bits of a result depend, and a digest of this package's code."""
    return {
        "pfl-bench": VERSION,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        # Without the build, which differs between a machine with a GPU and one without.
        **{name: metadata.version(name).partition("+")[0] for name in ("torch", "numpy")},
        "the code of pfl-bench": _code_digest(),
    }


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """What differs between the caller's installation and a node's, the first that does."""
    for name, version in ours.items():
        if theirs.get(name) != version:
            return f"{name} is {version} here and {theirs.get(name)} there"
    return None


def _code_digest() -> str:
    """Eight hexadecimal digits over every module, wherever setuptools has put its folder."""
    packages = (pfl_bench, pfl_bench.algorithms, pfl_bench.datasets)
    files = {
        f"{package.__name__.replace('.', '/')}/{path.relative_to(root).as_posix()}": path
        for package in packages
        for root in map(Path, package.__path__)
        for path in root.rglob("*.py")
    }
    digest = hashlib.sha256()
    for name in sorted(files):
        content = files[name].read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:8]


def equip(config: RunConfig, plugins: Mapping[str, bytes]) -> None:
    """Make the run's algorithm known, and make sure that it is the one that was ordered."""
    for name, content in plugins.items():
        _load(name, content)
    check_plugin(config.algo, config.plugin)


@functools.cache
def _load(name: str, content: bytes) -> None:
    """Once in the life of a process: the same plugin serves the next run too."""
    with tempfile.TemporaryDirectory(prefix="pfl-bench-") as folder:
        path = Path(folder) / f"{name}.py"
        path.write_bytes(content)
        load_plugin(path)
