"""What is kept so that it need not be made again: drawn stand-ins, tokenised texts, and what
prepared files said of themselves when they were last read.

All of it lies in the cache folder and can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
from pathlib import Path

import numpy as np

from pfl_bench.base import UserError, cache_dir, open_regular, write_atomically
from pfl_bench.data import prepared, text
from pfl_bench.data.dataset import Arrays, Card, DatasetSpec, Owned

log = logging.getLogger(__name__)

Stamp = dict[str, str | int]
"""What changes when a file changes."""


def standin_file(spec: DatasetSpec) -> Path:
    if spec.standin is None:
        raise UserError(f"{spec.title} has no stand-in: use the real data")
    key = hashlib.sha256(spec.standin_key.encode()).hexdigest()[:16]
    path = cache_dir() / "standins" / f"{spec.name}-{key}.npz"
    if not path.exists():
        render(spec, path)
    return path


def render(spec: DatasetSpec, path: Path) -> None:
    assert spec.standin is not None
    log.info("Drawing the stand-in of %s, once.", spec.title)
    x, y, vocabulary = spec.standin()
    arrays = {"x": x, "y": y}
    if vocabulary is not None:
        arrays["vocabulary"] = np.array(vocabulary)
    try:
        prepared.write_arrays(path, **arrays)
    except OSError as error:
        raise UserError(
            f"cannot keep the stand-in in {path.parent} ({error.strerror}); "
            "set PFL_BENCH_CACHE to a folder that can be written"
        ) from error


def read_standin(spec: DatasetSpec, path: Path) -> Arrays:
    """The cached rendering; a damaged one is drawn again."""
    try:
        return _standin_arrays(path)
    except (UserError, KeyError):
        render(spec, path)
        return _standin_arrays(path)


def _standin_arrays(path: Path) -> Arrays:
    arrays = prepared.read_arrays(path)
    vocabulary = arrays.get("vocabulary")
    return arrays["x"], arrays["y"], None if vocabulary is None else int(vocabulary)


def read_text(path: Path) -> Owned:
    """Tokenising takes seconds, so its outcome is kept under the checksum of the file."""
    try:
        with open_regular(path, text.LARGEST_BYTES) as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    cached = cache_dir() / "tokens" / f"{checksum}-{text.VERSION}.npz"
    with contextlib.suppress(UserError, KeyError):
        kept = prepared.read_arrays(cached)
        x = text.pad(kept["tokens"], kept["lengths"])
        return x, kept["y"], int(kept["vocabulary"]), kept.get("owners")
    log.info("Tokenising %s, once.", path)
    table = text.read_table(path)
    y = text.number_classes(table.labels, path)
    owners = None if table.clients is None else text.numbered(table.clients)
    encoded = text.encode(table.texts, path)
    with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
        prepared.write_arrays(
            cached,
            tokens=encoded.tokens,
            lengths=encoded.lengths,
            y=y,
            vocabulary=np.array(encoded.vocabulary),
            **({} if owners is None else {"owners": owners}),
        )
    return text.pad(encoded.tokens, encoded.lengths), y, encoded.vocabulary, owners


def stamp_of(path: Path) -> Stamp:
    """What changes when a file changes. Copying may bring the modification time of another machine
    along, or of another version; the time of the last change on this disk tells them apart."""
    status = path.stat()
    return {
        "path": str(path.resolve()),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
    }


def _sidecar(stamp: Stamp) -> Path:
    place = hashlib.sha256(str(stamp["path"]).encode()).hexdigest()[:32]
    return cache_dir() / "fingerprints" / f"{place}.json"


def remember(path: Path, stamp: Stamp, card: Card) -> None:
    if stamp_of(path) != stamp:
        return  # the file changed while it was read
    content = {"stamp": stamp, "version": text.VERSION, "card": dataclasses.asdict(card)}
    with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
        write_atomically(_sidecar(stamp), json.dumps(content))


def recall(path: Path) -> Card | None:
    stamp = stamp_of(path)
    try:
        content = json.loads(_sidecar(stamp).read_text())
        if content["stamp"] != stamp or content["version"] != text.VERSION:
            return None
        shape = content["card"].pop("shape")
        return Card(**content["card"], shape=tuple(shape) if shape else None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
