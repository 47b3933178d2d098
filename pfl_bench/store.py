"""The result store: one folder per run, named by the content of its configuration.

    <slug>-<key>/
        config.json                     the configuration, sealed with a digest
        rounds.jsonl                    one record per round, each line with its checksum
        checkpoint-<round>.safetensors  the last two, while the run is unfinished
        summary.json                    figures, provenance and rounds.jsonl's digest, sealed
        state.safetensors               the state after the last round, where it was asked for
        attack-<key>.json               what an attack on that state found, sealed
        run.lock, owner.lock            who is computing this run now
        fresh/                          a repetition under way, of the same files
        replay/                         a store of its own: the run once more, for its state alone

A run is whole if and only if its summary.json is sound and rounds.jsonl has the digest it names;
summary.json is written last and in one piece. Everything else is a run to resume. A finished result
is never touched before its successor is whole: a repetition is computed in `fresh/` and takes its
place only when complete, in steps that any later reader or writer can finish.

The lock is the operating system's, so it dies with its process, and a copied folder is not locked.
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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from filelock import FileLock, Timeout

from pfl_bench import checkpoint
from pfl_bench.errors import UserError, shown
from pfl_bench.files import write_atomically
from pfl_bench.provenance import peak_memory, provenance, utc_now
from pfl_bench.records import (
    DamagedError,
    RoundRecord,
    check_summary,
    read_lines,
    seal,
    summarise,
    unseal,
)

if TYPE_CHECKING:
    import torch

FINAL = ("finished", "diverged", "skipped")
CHECKPOINTS_KEPT = 2

_CONFIG = "config.json"
_RECORDS = "rounds.jsonl"
_SUMMARY = "summary.json"
_STATE = "state.safetensors"
_RESULT = (_RECORDS, _STATE, _SUMMARY)
_FRESH = "fresh"
_LOCK = "run.lock"
_OWNER = "owner.lock"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)\.safetensors")
_RUN_FOLDER = re.compile(r".*-(?P<key>[0-9a-f]{16})")


class Configuration(Protocol):
    """What the store needs to know of a run's configuration."""

    def to_dict(self) -> dict[str, Any]: ...

    @property
    def key(self) -> str: ...

    @property
    def slug(self) -> str: ...


class RunBusy(UserError):
    """Another live process is computing this run."""


def fullest(remarks: Iterable[str]) -> str:
    """What must be said of data on which several runs have a remark, or none: the fullest of them,
    since a note may have come later than the first runs."""
    return max(remarks, key=len, default="")


@dataclass(frozen=True)
class StoredRun:
    """A run as found on disk. `status` is one of FINAL, "interrupted" or "damaged"; `problem` says
    what is wrong with a damaged one."""

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any] | None
    status: str
    problem: str | None = None
    home: Path | None = None  # the folder of the summary: `path`, or within it a repetition's

    @property
    def key(self) -> str:
        return self.path.name[-16:]

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def remark(self) -> str:
        """What must be said of its data wherever its figures appear; often nothing."""
        return (self.summary or {}).get("data", "")

    def records(self) -> list[RoundRecord]:
        """The rounds recorded so far, up to the first damaged one; none of what cannot be read at
        all, which is why the run counts as damaged."""
        places = (self.home or self.path, self.path)
        try:
            found = (_bytes_of(place / _RECORDS) for place in places)
            data = next((content for content in found if content is not None), b"")
        except OSError as error:
            if self.status == "damaged":
                return []
            raise UserError(f"cannot read {self.path / _RECORDS}: {error.strerror}") from error
        return read_lines(data)[0]

    def state(self) -> Checkpoint | None:
        """The state after the last round; None where it was not kept, is damaged, or belongs to
        other records than these."""
        if self.summary is None:
            return None
        for place in (self.home or self.path, self.path):
            try:
                return _state(place / _STATE, self.summary)
            except (DamagedError, FileNotFoundError):
                continue
            except OSError as error:
                raise UserError(f"cannot read {place / _STATE}: {error.strerror}") from error
        return None

    def attachment(self, name: str) -> dict[str, Any] | None:
        """What was attached to this result; None where there is nothing sound, or only what was
        attached to a result that this one has replaced."""
        try:
            document = _document(self.path / f"{name}.json", self.path)
        except DamagedError:
            return None
        except OSError as error:
            raise UserError(f"cannot read {self.path / name}.json: {error.strerror}") from error
        is_ours = document and self.summary and document.get("of") == self.summary["records_sha256"]
        return document if is_ours else None

    def carry(self) -> dict[str, bytes]:
        """The files of this result, by name, for `RunWriter.adopt` in another store."""
        found = {name: _bytes_of((self.home or self.path) / name) for name in _RESULT}
        return {name: data for name, data in found.items() if data is not None}

    def attach(self, name: str, document: dict[str, Any]) -> None:
        """Put a document, sealed, beside a finished result; one of that name is replaced."""
        if self.summary is None:
            raise ValueError("a document can be attached to a finished run only")
        bond = {"key": self.key, "of": self.summary["records_sha256"]}
        with _explained(self.path):
            write_atomically(self.path / f"{name}.json", seal({**bond, **document}))


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `round`, as the engine saved it."""

    round: int
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]


class Store:
    """All runs under one folder, which is created when the first run is opened."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def folder(self, config: Configuration) -> Path:
        """Where the run lies or will lie; a folder with another slug but the same key is it too."""
        return next(self._folders(config.key), self.root / f"{_tame(config.slug)}-{config.key}")

    def find(self, config: Configuration) -> StoredRun | None:
        """The finished, verified result of `config`; None where it has yet to be computed."""
        runs = (read_run(folder) for folder in self._folders(config.key))
        return next((run for run in runs if run.is_final), None)

    @contextlib.contextmanager
    def open(self, config: Configuration) -> Iterator[RunWriter]:
        """Take the run's lock and give the writer, resumed from what an earlier process left.

        Raises `RunBusy` where another live process holds the lock. A result that was finished in
        the meantime is the writer's `finished`."""
        folder = self.folder(config)
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            writer = RunWriter(folder, config)
            try:
                yield writer
            finally:
                writer.close()

    def all(self) -> Iterator[StoredRun]:
        """Every run in order of folder name, unfinished and damaged ones included."""
        yield from map(read_run, self._folders())

    def tidy(self) -> None:
        """Remove the checkpoints that a process killed in its very last step left beside a result;
        they take space and serve nobody. What another process holds is its own to tidy."""
        for folder in self._folders():
            if _checkpoints(folder) and read_run(folder).is_final:
                with contextlib.suppress(UserError), _locked(folder), _explained(folder):
                    for path in _checkpoints(folder):
                        path.unlink()

    def _folders(self, key: str | None = None) -> Iterator[Path]:
        try:
            paths = sorted(self.root.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise UserError(f"cannot read the results in {self.root}: {error.strerror}") from error
        for path in paths:
            match = _RUN_FOLDER.fullmatch(path.name)
            if match and key in (None, match["key"]) and path.is_dir():
                yield path


def read_run(folder: Path) -> StoredRun:
    """What lies in `folder`, verified; damage is reported in the answer, never raised."""
    try:
        run = _read_once(folder)
        # A repetition may have taken its place between the reading of one file and of the next.
        return _read_once(folder) if run.status == "damaged" else run
    except OSError as error:
        return StoredRun(folder, {}, None, "damaged", f"cannot be read ({error.strerror})")


def _read_once(folder: Path) -> StoredRun:
    try:
        config = _document(folder / _CONFIG, folder)
        if config is None:
            raise DamagedError(f"{_CONFIG} is missing")
        settings = _settings(config)
    except DamagedError as error:
        return StoredRun(folder, {}, None, "damaged", str(error))

    problem = None
    fresh = folder / _FRESH
    # A finished repetition counts from the moment its summary exists, wherever its records are.
    for home, records in ((fresh, fresh), (fresh, folder), (folder, folder)):
        try:
            summary = _document(home / _SUMMARY, folder)
            if summary is None:
                continue
            if summary.get("status") not in FINAL:
                raise DamagedError(f"{_SUMMARY} does not say how the run ended")
            check_summary(summary)
            _verify(records / _RECORDS, summary)
        except DamagedError as error:
            problem = str(error)
        else:
            return StoredRun(folder, settings, summary, summary["status"], home=home)
    if problem is not None:
        return StoredRun(folder, settings, None, "damaged", problem)
    _bytes_of(folder / _RECORDS)  # who continues the run, or counts its rounds, must read them
    return StoredRun(folder, settings, None, "interrupted")


class RunWriter:
    """The one process that computes a run. Made by `Store.open`, which holds the lock.

    `records` and `checkpoint` say where to resume: the rounds up to the newest sound checkpoint and
    that checkpoint, or nothing of either. `notes` says what was found damaged and dropped.
    The checkpoint is let go at the first `append`, so that its memory is not held any longer.
    """

    def __init__(self, folder: Path, config: Configuration) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.records: list[RoundRecord] = []
        self.checkpoint: Checkpoint | None = None
        self.finished: StoredRun | None = None
        self._key = config.key
        self._journal: FileIO | None = None
        self._digest = hashlib.sha256()
        self._closed = False
        with _explained(folder):
            self._mend(config)
            fresh = folder / _FRESH
            self._home = fresh if self.finished or fresh.is_dir() else folder
            self._resume()
        self._provenance = {
            **provenance(),
            "resumed_after_round": self.records[-1].round if self.records else None,
        }

    def append(self, record: RoundRecord) -> None:
        """Add the next round; from here on it survives the death of the process."""
        if self.records and record.round != self.records[-1].round + 1:
            raise ValueError(f"round {record.round} cannot follow {self.records[-1].round}")
        line = record.to_line().encode()
        with _explained(self.folder):
            _append(self._open_journal(), line)
        self._digest.update(line)
        self.records.append(record)
        self.checkpoint = None

    def save_checkpoint(
        self, round: int, tensors: dict[str, torch.Tensor], meta: dict[str, Any]
    ) -> None:
        """Save the state after `round`, whose record must have been appended just before."""
        if not self.records or self.records[-1].round != round:
            raise ValueError(f"a checkpoint of round {round} needs its record to be the last one")
        bond = {"round": round, "records": len(self.records), "sha256": self._digest.hexdigest()}
        with _explained(self.folder):
            os.fsync(self._open_journal().fileno())
            path = self._home / f"checkpoint-{round}.safetensors"
            checkpoint.write(path, tensors, {"bond": bond, "meta": meta})
            for old in _checkpoints(self._home)[CHECKPOINTS_KEPT:]:
                old.unlink()

    def finish(
        self,
        status: str,
        reason: str | None = None,
        extra: dict[str, Any] | None = None,
        state: dict[str, torch.Tensor] | None = None,
    ) -> StoredRun:
        """Make the run whole: write its summary, put it in place of an older result, tidy up.

        `extra` adds fields of the caller's own to the summary. `state`, after the last round, is
        kept beside it."""
        if status not in FINAL:
            raise ValueError(f"a run ends as one of {', '.join(FINAL)}, not {status!r}")
        summary = {
            "key": self._key,
            "status": status,
            "reason": reason,
            **summarise(self.records),
            "records_sha256": self._digest.hexdigest(),
            "provenance": {
                **self._provenance,
                "finished": utc_now(),
                "peak_memory": peak_memory(),
            },
        }
        if taken := summary.keys() & (extra or {}).keys():
            raise ValueError(f"the summary has its own {', '.join(sorted(taken))}")
        with _explained(self.folder):
            os.fsync(self._open_journal().fileno())
            self.close()
            if state is not None:
                _write_state(self._home / _STATE, state, summary)
            write_atomically(self._home / _SUMMARY, seal({**summary, **(extra or {})}))
            self._settle(has_state=state is not None)
        return read_run(self.folder)

    def keep_state(self, state: dict[str, torch.Tensor]) -> None:
        """Put the state after the last round beside a result that was finished without it."""
        if self.finished is None or self.finished.summary is None:
            raise ValueError("a state can be added to a finished run only")
        with _explained(self.folder):
            _write_state(self.folder / _STATE, state, self.finished.summary)

    def carry(self) -> dict[str, bytes]:
        """The files, by name, from which another machine can continue this run. The checkpoint in
        memory is let go: who carries a run away does not compute it here."""
        self.checkpoint = None
        newest = [path.name for path in _checkpoints(self._home)[:1]]
        found = {name: _bytes_of(self._home / name) for name in (_RECORDS, *newest)}
        return {name: data for name, data in found.items() if newest and data is not None}

    def adopt(self, files: Mapping[str, bytes]) -> StoredRun:
        """Take over what this run has reached in another store, as `carry` gave it there.

        A result is verified before anything is written, and its summary is written last: cut off
        at any point, the folder holds a run to resume."""
        for name in files:
            if name not in _RESULT and not _CHECKPOINT.fullmatch(name):
                raise DamagedError(f"{shown(name)} is no file of a run")
        if _SUMMARY in files:
            self._check_result(files)
        with _explained(self.folder):
            self._home.mkdir(exist_ok=True)
            for name in sorted(files, key=lambda name: (name == _SUMMARY, name != _RECORDS)):
                write_atomically(self._home / name, files[name])
            found = _checkpoints(self._home)
            newest = next((path for path in found if path.name in files), None)
            # What is ahead of the newest belongs to records that these have replaced.
            ahead = found[: found.index(newest)] if newest else []
            for old in (*ahead, *found[len(ahead) + CHECKPOINTS_KEPT :]):
                old.unlink()
            if _SUMMARY in files:
                self._settle(has_state=_STATE in files)
        return read_run(self.folder)

    def discard(self) -> None:
        """Start over from nothing. A finished result stays until this run is finished too."""
        with _explained(self.folder):
            if self._journal is not None:
                self._journal.close()
                self._journal = None
            for path in (*_checkpoints(self._home), self._home / _RECORDS):
                path.unlink(missing_ok=True)
        self.records, self.checkpoint = [], None
        self._digest = hashlib.sha256()
        self._provenance["resumed_after_round"] = None

    def close(self) -> None:
        """No more writing; what was appended stays for the next process to resume from."""
        self._closed = True
        if self._journal is not None:
            self._journal.close()

    def _settle(self, has_state: bool) -> None:
        """Put a result whose summary is written in its place, and tidy up."""
        if self._home != self.folder:
            _publish(self.folder)
        for path in _checkpoints(self.folder):
            path.unlink()
        if not has_state:
            (self.folder / _STATE).unlink(missing_ok=True)

    def _check_result(self, files: Mapping[str, bytes]) -> None:
        summary = unseal(files[_SUMMARY])
        if summary.get("key") != self._key:
            raise DamagedError(f"{_SUMMARY} belongs to the run {shown(summary.get('key'))}")
        if hashlib.sha256(files.get(_RECORDS, b"")).hexdigest() != summary.get("records_sha256"):
            raise DamagedError(f"{_RECORDS} is not the one that {_SUMMARY} was made from")

    def _mend(self, config: Configuration) -> None:
        """Bring the folder to a state that has no trace of an interrupted or damaged write."""
        for leftover in (*self.folder.glob(".*.tmp"), *self.folder.glob(f"{_FRESH}/.*.tmp")):
            leftover.unlink()
        try:
            described = _document(self.folder / _CONFIG, self.folder) is not None
        except DamagedError as error:
            self.notes.append(f"{error}; written anew")
            described = False
        if not described:
            document = {"key": config.key, "slug": config.slug, "config": config.to_dict()}
            write_atomically(self.folder / _CONFIG, seal(document))

        run = _read_once(self.folder)
        if run.home == self.folder / _FRESH:
            _publish(self.folder)
            run = _read_once(self.folder)
        (self.folder / _FRESH / _SUMMARY).unlink(missing_ok=True)
        if run.is_final:
            self.finished = run
            for path in _checkpoints(self.folder):
                path.unlink()
        elif run.problem:
            self.notes.append(f"{run.problem}; the stored result is dropped")
            (self.folder / _SUMMARY).unlink(missing_ok=True)

    def _resume(self) -> None:
        """Find the newest checkpoint that is sound and fits the records; drop all that is newer."""
        data = _bytes_of(self._home / _RECORDS) or b""
        records, problem = read_lines(data)
        if problem:
            self.notes.append(f"{_RECORDS}: {problem}; it and what follows is dropped")
        found = _checkpoints(self._home)
        kept = b""
        for path in found:
            try:
                self.checkpoint, kept = _fitting(path, records, data)
            except DamagedError as error:
                self.notes.append(f"{path.name}: {error}; it is dropped")
                path.unlink()
            else:
                self.records = records[: kept.count(b"\n")]
                break
        if found and self.checkpoint is None:
            self.notes.append("no checkpoint is usable; the run starts over")
        if len(kept) < len(data):
            os.truncate(self._home / _RECORDS, len(kept))
        self._digest.update(kept)

    def _open_journal(self) -> FileIO:
        if self._closed:
            raise ValueError("this run is closed")
        if self._journal is None:
            self._home.mkdir(exist_ok=True)
            # Unbuffered, so that a full disk is an error of the write and not of a later close.
            self._journal = FileIO(self._home / _RECORDS, "a")
        return self._journal


def _fitting(path: Path, records: list[RoundRecord], data: bytes) -> tuple[Checkpoint, bytes]:
    """The checkpoint at `path` and the part of the records' bytes that it was saved after."""
    tensors, envelope = checkpoint.read(path)
    bond = envelope.get("bond")
    if not isinstance(bond, dict) or type(count := bond.get("records")) is not int:
        raise DamagedError("it does not say which records it belongs to")
    kept = b"".join(line + b"\n" for line in data.split(b"\n")[:count])
    if not 0 < count <= len(records) or hashlib.sha256(kept).hexdigest() != bond.get("sha256"):
        raise DamagedError("the records it was saved with are gone")
    return Checkpoint(records[count - 1].round, tensors, _meta(envelope)), kept


def _write_state(path: Path, tensors: dict[str, torch.Tensor], summary: dict[str, Any]) -> None:
    bond = {"round": summary["rounds"], "sha256": summary["records_sha256"]}
    checkpoint.write(path, tensors, {"bond": bond, "meta": {}})


def _state(path: Path, summary: dict[str, Any]) -> Checkpoint:
    """The kept state at `path`, checked to be the one of the run with this summary."""
    tensors, envelope = checkpoint.read(path)
    if envelope.get("bond") != {"round": summary["rounds"], "sha256": summary["records_sha256"]}:
        raise DamagedError("it belongs to other records")
    return Checkpoint(summary["rounds"], tensors, _meta(envelope))


def _meta(envelope: dict[str, Any]) -> dict[str, Any]:
    """What the engine saved with the tensors of a checkpoint."""
    if not isinstance(meta := envelope.get("meta"), dict):
        raise DamagedError("it does not say how it was made")
    return meta


def _publish(folder: Path) -> None:
    """Put a finished repetition in the place of the older result. Killed between any two steps,
    `read_run` still sees the new result, and calling this again completes the move."""
    fresh = folder / _FRESH
    for path in _checkpoints(fresh):
        path.unlink()
    for name in (_RECORDS, _STATE):
        if (fresh / name).exists():
            (fresh / name).replace(folder / name)
    (fresh / _SUMMARY).replace(folder / _SUMMARY)
    shutil.rmtree(fresh)


def _document(path: Path, folder: Path) -> dict[str, Any] | None:
    """The sealed document at `path`, checked to belong to `folder`; None where there is none."""
    data = _bytes_of(path)
    if data is None:
        return None
    try:
        document = unseal(data)
    except DamagedError as error:
        raise DamagedError(f"{path.name} is damaged ({error})") from error
    if document.get("key") != folder.name[-16:]:
        raise DamagedError(f"{path.name} belongs to the run {document.get('key')}")
    return document


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """The settings in a sealed configuration, of which readers may rely on these types."""
    settings = config.get("config")
    if not isinstance(settings, dict) or not isinstance(settings.get("hyper", {}), dict):
        raise DamagedError(f"{_CONFIG} does not hold the settings of a run")
    for name in ("beta", "seed"):
        if type(settings.get(name)) not in (int, float, type(None)):
            raise DamagedError(f"{_CONFIG} does not hold a number as {name}")
    return settings


def _verify(records: Path, summary: dict[str, Any]) -> None:
    data = _bytes_of(records)
    if data is None:
        raise DamagedError(f"{_RECORDS} is missing")
    if hashlib.sha256(data).hexdigest() != summary.get("records_sha256"):
        raise DamagedError(f"{_RECORDS} is not the one that {_SUMMARY} was made from")


def _bytes_of(path: Path) -> bytes | None:
    """The file's content; None where there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoint files of `folder`, newest first."""
    rounds = {
        path: int(match[1])
        for path in folder.glob("checkpoint-*")
        if (match := _CHECKPOINT.fullmatch(path.name))
    }
    return sorted(rounds, key=rounds.__getitem__, reverse=True)


def _tame(slug: str) -> str:
    """A slug that is a safe and not too long part of a folder name on every system."""
    return re.sub(r"[^\w.+=-]", "_", slug)[:100]


def _append(file: FileIO, data: bytes) -> None:
    """Add all of `data`, or leave the file as it was."""
    end = file.seek(0, os.SEEK_END)
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        file.truncate(end)
        raise


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn the system's refusal to write (disk full, read-only, no permission) into a sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the run's lock, or raise `RunBusy` at once."""
    lock = FileLock(str(folder / _LOCK), timeout=0, thread_local=False)
    owner = folder / _OWNER
    try:
        lock.acquire()
    except Timeout as error:
        raise RunBusy(f"the run {folder.name} is being computed by {_holder(owner)}") from error
    except OSError as error:
        raise UserError(f"cannot lock {folder}: {error.strerror or error}") from error
    try:
        with _explained(folder):
            write_atomically(owner, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        with contextlib.suppress(OSError):
            owner.unlink()
        lock.release()


def _holder(owner: Path) -> str:
    """Who holds the lock, as far as its note can be read."""
    try:
        note = json.loads(owner.read_bytes())
        return f"process {note['pid']} on {note['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
