"""The folder of one run: its files by name, their reading and checking, and its lock.

    <slug>-<key>/
        config.json                     the configuration, sealed with a digest
        rounds.jsonl                    one record per round, each line with its checksum
        checkpoint-<round>.safetensors  the last two, while the run is unfinished
        summary.json                    figures, provenance and rounds.jsonl's digest, sealed
        state.safetensors               the state after the last round, where it was asked for or
                                        would take long to compute again
        attack-<key>.json               what an attack on that state found, sealed
        run.lock, owner.lock            who is computing this run now
        fresh/                          a repetition or a continuation under way, of the same files
        replay/                         a store of its own: the run once more, for its state alone

A run is whole if and only if its summary.json is sound and rounds.jsonl has the digest it names;
summary.json is written last and in one piece. Everything else is a run to resume. A finished result
is never touched before its successor is whole: a repetition, or the same run with more rounds, is
computed in `fresh/` and takes its place only when complete, in steps that any later reader or
writer can finish.

The lock is the operating system's, so it dies with its process, and a copied folder is not locked.
A folder may come from anybody: nothing in it is followed out of it, and what is no regular file, or
is larger than such a file can be, counts as damage.
How records and checkpoints look inside is the business of `records` and `checkpoint`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from pfl_bench.base import (
    IrregularFile,
    UserError,
    irregularity,
    is_alive,
    read_regular,
    write_atomically,
)
from pfl_bench.store import checkpoint
from pfl_bench.store.records import (
    DamagedError,
    from_json,
    read_lines,
    remember_sound,
    unseal,
)
from pfl_bench.store.schema import mismatch

if TYPE_CHECKING:
    import torch

CONFIG = "config.json"
RECORDS = "rounds.jsonl"
SUMMARY = "summary.json"
STATE = "state.safetensors"
_KINDS = {CONFIG: "config", SUMMARY: "summary"}
RESULT = (RECORDS, STATE, SUMMARY)
"""The files of a finished run that another store can adopt."""
FRESH = "fresh"
REPLAY = "replay"
CHECKPOINT = re.compile(r"checkpoint-(\d+)\.safetensors")
_LOCK = "run.lock"
_OWNER = "owner.lock"

LARGEST_DOCUMENT = 64 * 2**20
"""In bytes; the largest are attacks, with the images that they recovered."""
LARGEST_RECORDS = 2**30
"""In bytes: thousands of rounds of thousands of clients."""
_LARGEST_NOTE = 4096


class RunBusy(UserError):
    """Another live process is computing this run."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `round`, as the engine saved it."""

    round: int
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]


def document_at(path: Path, folder: Path) -> dict[str, Any] | None:
    """The sealed document at `path`, checked to be of its kind and of `folder`; None where there is
    none."""
    data = bytes_of(path)
    if data is None:
        return None
    try:
        document = unseal(data)
    except DamagedError as error:
        raise DamagedError(f"{path.name} is damaged ({error})") from error
    if problem := mismatch(_KINDS.get(path.name, "attack"), document):
        raise DamagedError(f"{path.name} is not what it must be ({problem})")
    if document["key"] != folder.name[-16:]:
        raise DamagedError(f"{path.name} belongs to the run {document['key']}")
    return document


def check_records(data: bytes | None, summary: dict[str, Any]) -> None:
    """Refuse records that are not those of the summary, or no records at all."""
    if data is None:
        raise DamagedError(f"{RECORDS} is missing")
    digest = hashlib.sha256(data).hexdigest()
    if digest != summary.get("records_sha256"):
        raise DamagedError(f"{RECORDS} is not the one that {SUMMARY} was made from")
    records, problem = read_lines(data)
    if problem:
        raise DamagedError(f"{RECORDS}: {problem}")
    if len(records) != summary["rounds"]:
        raise DamagedError(f"{RECORDS} has {len(records)} rounds, {SUMMARY} {summary['rounds']}")
    rounds = {record.round for record in records}
    if any(summary.get(n) and summary[n]["round"] not in rounds for n in ("best", "last")):
        raise DamagedError(f"{SUMMARY} has a score of a round that {RECORDS} has not")
    remember_sound(digest, records)


def bytes_of(path: Path) -> bytes | None:
    """The file's content; None where there is no such file."""
    limits = {".json": LARGEST_DOCUMENT, ".jsonl": LARGEST_RECORDS}
    try:
        return read_regular(path, limits.get(path.suffix) or checkpoint.largest())
    except FileNotFoundError:
        return None
    except IrregularFile as error:
        raise DamagedError(f"{path.name} is refused ({error.strerror})") from error


def cut_links(folder: Path) -> list[str]:
    """Remove what would lead a writer out of `folder`, and say what that was. A link goes, not what
    it points to."""
    notes = []
    for name in (FRESH, REPLAY):
        if what := irregularity(folder / name, folder=True):
            notes.append(f"{name} is removed ({what})")
            (folder / name).unlink()
    return notes


def refuse_folders(folder: Path) -> None:
    """Say before anything is computed that a folder stands where a file is to be. It is not ours
    to remove, whatever is in it."""
    for path in (folder / CONFIG, *(folder / name for name in RESULT), *checkpoints_in(folder)):
        if path.is_dir() and not path.is_symlink():
            raise UserError(f"nothing is written to {folder}: {path.name} is a folder")


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoint files of `folder`, newest first."""
    rounds = {
        path: int(match[1])
        for path in folder.glob("checkpoint-*")
        if (match := CHECKPOINT.fullmatch(path.name))
    }
    return sorted(rounds, key=rounds.__getitem__, reverse=True)


def write_state(path: Path, tensors: dict[str, torch.Tensor], summary: dict[str, Any]) -> None:
    bond = {"round": summary["rounds"], "sha256": summary["records_sha256"]}
    checkpoint.write(path, tensors, {"bond": bond, "meta": {}})


def read_state(path: Path, summary: dict[str, Any]) -> Checkpoint:
    """The kept state at `path`, checked to be the one of the run with this summary."""
    tensors, envelope = checkpoint.read(path)
    if envelope.get("bond") != {"round": summary["rounds"], "sha256": summary["records_sha256"]}:
        raise DamagedError("it belongs to other records")
    return Checkpoint(summary["rounds"], tensors, meta_of(envelope))


def meta_of(envelope: dict[str, Any]) -> dict[str, Any]:
    """What the engine saved with the tensors of a checkpoint."""
    if not isinstance(meta := envelope.get("meta"), dict):
        raise DamagedError("it does not say how it was made")
    return meta


def publish(folder: Path) -> None:
    """Put a finished repetition in the place of the older result. Killed between any two steps,
    `read_run` still sees the new result, and calling this again completes the move."""
    fresh = folder / FRESH
    for path in checkpoints_in(fresh):
        path.unlink()
    for name in (CONFIG, RECORDS, STATE):
        if (fresh / name).exists():
            (fresh / name).replace(folder / name)
    (fresh / SUMMARY).replace(folder / SUMMARY)
    shutil.rmtree(fresh)


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn the system's refusal to write (disk full, read-only, no permission) into a sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run's lock, or raise `RunBusy` at once."""
    lock = FileLock(str(folder / _LOCK), timeout=0, thread_local=False)
    owner = folder / _OWNER
    try:
        if what := irregularity(folder, folder=True):
            raise UserError(f"nothing is written to {folder}: {what}")
        if irregularity(folder / _LOCK):
            (folder / _LOCK).unlink()
        lock.acquire()
    except Timeout as error:
        raise RunBusy(f"the run {folder.name} is being computed by {_holder(owner)}") from error
    except OSError as error:
        raise UserError(f"cannot lock {folder}: {error.strerror or error}") from error
    try:
        with explained(folder):
            write_atomically(owner, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        with contextlib.suppress(OSError):
            owner.unlink()
        lock.release()


def holder(folder: Path) -> str | None:
    """Who is computing the run, by the note beside its lock; None where nobody is, or where that
    process is known to be dead. The lock itself is not touched, which would keep others from it."""
    try:
        note = from_json(read_regular(folder / _OWNER, _LARGEST_NOTE))
        if note["host"] == socket.gethostname() and not is_alive(int(note["pid"])):
            return None
    except PermissionError:  # somebody else's
        pass
    except (OSError, DamagedError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return _holder(folder / _OWNER)


def _holder(owner: Path) -> str:
    """Who holds the lock, as far as its note can be read."""
    try:
        note = from_json(read_regular(owner, _LARGEST_NOTE))
        return f"process {note['pid']} on {note['host']}"
    except (OSError, DamagedError, KeyError, TypeError):
        return "another process"
