"""What the last look at a store found, so that the next one need not read every run again.

Only a cache, in the user's own folder for caches and not in the store, which may be a stranger's or
read-only. An entry counts while the files that it was made from are the same ones with the same
sizes and times; anything else, a damaged index included, is read anew from the run's folder.
Finished runs alone are kept: others change, and damage is looked at each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pfl_bench.base import VERSION, cache_dir, read_regular, write_atomically
from pfl_bench.store.folder import CONFIG, FRESH, RECORDS, SUMMARY
from pfl_bench.store.schema import edition
from pfl_bench.store.stored_run import StoredRun, read_run

_LARGEST = 2**30
SETTLED = 2 * 10**9
"""Nanoseconds after which a further change shows in a file's times, however coarse the clock."""

Signature = list[list[int]]


def indexed(place: Path, folders: Iterable[Path]) -> Iterator[StoredRun]:
    """Every run of the store at `place`, from the index where that is still true."""
    path = cached_at(place)
    known = load_cached(path)
    kept: dict[str, Any] = {}
    try:
        for folder in folders:
            now = time.time_ns()
            signature = _signature(folder)
            entry = known.get(folder.name)
            if entry and signature == entry["files"]:
                kept[folder.name] = entry
                yield _remembered(folder, entry)
                continue
            run = read_run(folder)
            if run.is_final and signature and signature == _signature(folder):
                entry = {"files": signature, "config": run.config, "summary": run.summary}
                if now - max(time for file in signature for time in file[2:]) > SETTLED:
                    kept[folder.name] = entry
            yield run
    except GeneratorExit:
        kept = {**known, **kept}
        raise
    finally:
        if kept != known:
            save_cached(path, kept)


def _remembered(folder: Path, entry: dict[str, Any]) -> StoredRun:
    summary = entry["summary"]
    return StoredRun(folder, entry["config"], summary, summary["status"], home=folder)


def _signature(folder: Path) -> Signature | None:
    """What tells the files of a finished run from any others; None where there is more to look at
    than these."""
    found = []
    try:
        if (folder / FRESH).exists():
            return None
        for path in (folder, *(folder / name for name in (CONFIG, RECORDS, SUMMARY))):
            about = os.lstat(path)
            size = 0 if path is folder else about.st_size
            found.append([about.st_ino, size, about.st_mtime_ns, about.st_ctime_ns])
    except OSError:
        return None
    return found


def cached_at(place: Path, what: str = "") -> Path:
    """The file in the user's cache for the store at `place`, of the index or of something else that
    was worked out from its runs."""
    name = hashlib.sha256(os.fsencode(place.resolve())).hexdigest()[:16]
    return cache_dir() / "stores" / f"{name}{what}.json"


def _edition() -> str:
    """What the entries were judged by."""
    return f"{VERSION} {edition()}"


def load_cached(path: Path) -> dict[str, Any]:
    """What `save_cached` put there; nothing of another version, or damaged."""
    try:
        checksum, _, content = read_regular(path, _LARGEST).partition(b"\n")
        if int(checksum, 16) != zlib.crc32(content):
            return {}
        index = json.loads(content)
        return index["runs"] if index["edition"] == _edition() else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def save_cached(path: Path, runs: dict[str, Any]) -> None:
    """Put it in its place; where that cannot be, the next look takes as long as this."""
    content = json.dumps({"edition": _edition(), "runs": runs}, separators=(",", ":")).encode()
    with contextlib.suppress(OSError):
        write_atomically(path, b"%08x\n" % zlib.crc32(content) + content)
