"""The one process that computes a run: its journal, its checkpoints, its end.

What is written, and in which order, so that a process can be killed between any two steps, is told
in `pfl_bench.store.folder`.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pfl_bench.base import UserError, append_to, shown, write_atomically
from pfl_bench.store import checkpoint
from pfl_bench.store.folder import (
    CHECKPOINT,
    CONFIG,
    FRESH,
    RECORDS,
    RESULT,
    STATE,
    SUMMARY,
    Checkpoint,
    bytes_of,
    check_records,
    checkpoints_in,
    cut_links,
    document_at,
    explained,
    meta_of,
    publish,
    refuse_folders,
    write_state,
)
from pfl_bench.store.provenance import current_provenance, peak_memory, utc_now
from pfl_bench.store.records import DamagedError, RoundRecord, read_lines, seal, summarise, unseal
from pfl_bench.store.schema import mismatch
from pfl_bench.store.stored_run import FINAL, StoredRun, read_once, read_run

if TYPE_CHECKING:
    import torch

CHECKPOINTS_KEPT = 2


class Configuration(Protocol):
    """What the store needs to know of a run's configuration."""

    def to_dict(self) -> dict[str, Any]: ...

    @property
    def key(self) -> str: ...

    @property
    def slug(self) -> str: ...

    @property
    def rounds(self) -> int: ...

    @property
    def patience(self) -> int | None: ...


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
        self._config = config
        self._journal: FileIO | None = None
        self._digest = hashlib.sha256()
        self._closed = False
        with explained(folder):
            self._mend()
            fresh = folder / FRESH
            self._home = fresh if self.finished or fresh.is_dir() else folder
            self._resume()
        self._provenance = {
            **current_provenance(),
            "resumed_after_round": self.records[-1].round if self.records else None,
        }

    @property
    def answer(self) -> StoredRun | None:
        """The stored result, as far as it was asked for; None where it does not reach that far."""
        return self.finished and self.finished.until(self._config.rounds, self._config.patience)

    def extend(self) -> None:
        """Go on after the last round of a finished result. It stays until the longer one is whole;
        an earlier attempt at that is taken up where it is further on."""
        finished = self.finished
        if finished is None or finished.summary is None:
            raise ValueError("only a finished run can be extended")
        reached = finished.summary["rounds"]
        if self.checkpoint is not None and self.checkpoint.round >= reached:
            return
        state = finished.state()
        if state is None:
            if self.checkpoint is None:
                self.notes.append(
                    f"the state after round {reached} was not kept; it is computed once more"
                )
            return
        self.discard()
        lines = bytes_of(self.folder / RECORDS) or b""
        with explained(self.folder):
            self._home.mkdir(exist_ok=True)
            write_atomically(self._home / RECORDS, lines)
        self.records = finished.records()
        self._digest.update(lines)
        self.checkpoint = replace(state, meta={"timed": finished.summary.get("timed", False)})
        self._provenance["resumed_after_round"] = reached

    def append(self, record: RoundRecord) -> None:
        """Add the next round; from here on it survives the death of the process."""
        if self.records and record.round != self.records[-1].round + 1:
            raise ValueError(f"round {record.round} cannot follow {self.records[-1].round}")
        line = record.to_line().encode()
        try:
            RoundRecord.from_line(line)
        except DamagedError as error:
            raise UserError(f"round {record.round} cannot be recorded: {error}") from error
        with explained(self.folder):
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
        with explained(self.folder):
            os.fsync(self._open_journal().fileno())
            path = self._home / f"checkpoint-{round}.safetensors"
            checkpoint.write(path, tensors, {"bond": bond, "meta": meta})
            for old in checkpoints_in(self._home)[CHECKPOINTS_KEPT:]:
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
        with explained(self.folder):
            os.fsync(self._open_journal().fileno())
            self.close()
            if state is not None:
                write_state(self._home / STATE, state, summary)
            self._describe(self._home)
            write_atomically(self._home / SUMMARY, seal({**summary, **(extra or {})}))
            self._settle(has_state=state is not None)
        return self._kept()

    def keep_state(self, state: dict[str, torch.Tensor]) -> None:
        """Put the state after the last round beside a result that was finished without it."""
        if self.finished is None or self.finished.summary is None:
            raise ValueError("a state can be added to a finished run only")
        with explained(self.folder):
            write_state(self.folder / STATE, state, self.finished.summary)

    def carry(self) -> dict[str, bytes]:
        """The files, by name, from which another machine can continue this run. The checkpoint in
        memory is let go: who carries a run away does not compute it here."""
        self.checkpoint = None
        newest = [path.name for path in checkpoints_in(self._home)[:1]]
        found = {name: bytes_of(self._home / name) for name in (RECORDS, *newest)}
        return {name: data for name, data in found.items() if newest and data is not None}

    def adopt(self, files: Mapping[str, bytes]) -> StoredRun:
        """Take over what this run has reached in another store, as `carry` gave it there.

        A result is verified before anything is written, and its summary is written last: cut off
        at any point, the folder holds a run to resume."""
        for name in files:
            if name not in RESULT and not CHECKPOINT.fullmatch(name):
                raise DamagedError(f"{shown(name)} is no file of a run")
        if SUMMARY in files:
            self._check_result(files)
        with explained(self.folder):
            self._home.mkdir(exist_ok=True)
            for name in sorted(files, key=lambda name: (name == SUMMARY, name != RECORDS)):
                write_atomically(self._home / name, files[name])
            found = checkpoints_in(self._home)
            newest = next((path for path in found if path.name in files), None)
            # What is ahead of the newest belongs to records that these have replaced.
            ahead = found[: found.index(newest)] if newest else []
            for old in (*ahead, *found[len(ahead) + CHECKPOINTS_KEPT :]):
                old.unlink()
            if SUMMARY in files:
                self._describe(self._home)
                self._settle(has_state=STATE in files)
        return self._kept() if SUMMARY in files else read_run(self.folder)

    def step_back(self) -> None:
        """Give up the newest checkpoint, which is sound and does not fit, for the one before it, or
        start over where there is none."""
        if self.checkpoint is None:
            raise ValueError("there is no checkpoint to give up")
        with explained(self.folder):
            name = f"checkpoint-{self.checkpoint.round}.safetensors"
            (self._home / name).unlink(missing_ok=True)
            self.records, self.checkpoint = [], None
            self._digest = hashlib.sha256()
            self._resume()
        last = self.records[-1].round if self.records else None
        self._provenance["resumed_after_round"] = last

    def discard(self) -> None:
        """Start over from nothing. A finished result stays until this run is finished too."""
        with explained(self.folder):
            if self._journal is not None:
                self._journal.close()
                self._journal = None
            for path in (*checkpoints_in(self._home), self._home / RECORDS):
                path.unlink(missing_ok=True)
        self.records, self.checkpoint = [], None
        self._digest = hashlib.sha256()
        self._provenance["resumed_after_round"] = None

    def close(self) -> None:
        """No more writing; what was appended stays for the next process to resume from."""
        self._closed = True
        if self._journal is not None:
            self._journal.close()

    def _kept(self) -> StoredRun:
        """The result as the next reader finds it; a sentence where somebody took it away."""
        ended = read_run(self.folder)
        if not ended.is_final:
            lost = ended.damage or "its files are gone"
            raise UserError(f"the run was computed but is not kept in {self.folder}: {lost}")
        return ended

    def _settle(self, has_state: bool) -> None:
        """Put a result whose summary is written in its place, and tidy up."""
        if self._home != self.folder:
            publish(self.folder)
        for path in checkpoints_in(self.folder):
            path.unlink()
        if not has_state:
            (self.folder / STATE).unlink(missing_ok=True)

    def _check_result(self, files: Mapping[str, bytes]) -> None:
        summary = unseal(files[SUMMARY])
        if summary.get("key") != self._key:
            raise DamagedError(f"{SUMMARY} belongs to the run {shown(summary.get('key'))}")
        if problem := mismatch("summary", summary):
            raise DamagedError(f"{SUMMARY} is not what it must be ({problem})")
        check_records(files.get(RECORDS), summary)

    def _describe(self, home: Path) -> None:
        """Say in `home` what is run there and where it ends."""
        config = self._config
        document = {"key": config.key, "slug": config.slug, "config": config.to_dict()}
        write_atomically(home / CONFIG, seal(document))

    def _mend(self) -> None:
        """Bring the folder to a state that has no trace of an interrupted or damaged write."""
        self.notes += cut_links(self.folder)
        for home in (self.folder, self.folder / FRESH):
            refuse_folders(home)
        for leftover in (*self.folder.glob(".*.tmp"), *self.folder.glob(f"{FRESH}/.*.tmp")):
            leftover.unlink()
        try:
            described = document_at(self.folder / CONFIG, self.folder)
        except DamagedError as error:
            self.notes.append(f"{error}; written anew")
            described = None
        if described is None:
            self._describe(self.folder)

        run = read_once(self.folder)
        if run.home == self.folder / FRESH:
            publish(self.folder)
            run = read_once(self.folder)
        (self.folder / FRESH / SUMMARY).unlink(missing_ok=True)
        if run.is_final:
            self.finished = run
            for path in checkpoints_in(self.folder):
                path.unlink()
        elif run.damage:
            self.notes.append(f"{run.damage}; the stored result is dropped")
            (self.folder / SUMMARY).unlink(missing_ok=True)
        if not run.is_final and run.config != self._config.to_dict():
            self._describe(self.folder)  # it is to end elsewhere

    def _resume(self) -> None:
        """Find the newest checkpoint that is sound and fits the records; drop all that is newer."""
        data = self._recorded()
        records, problem = read_lines(data)
        if problem:
            self.notes.append(f"{RECORDS}: {problem}; it and what follows is dropped")
        found = checkpoints_in(self._home)
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
        journal = self._home / RECORDS
        # A file of more names than this one is not ours to change: it becomes a copy.
        if len(kept) < len(data) or (data and journal.stat().st_nlink > 1):
            write_atomically(journal, kept)
        self._digest.update(kept)

    def _recorded(self) -> bytes:
        try:
            return bytes_of(self._home / RECORDS) or b""
        except DamagedError as error:
            self.notes.append(f"{error}; it is removed")
            (self._home / RECORDS).unlink()
            return b""

    def _open_journal(self) -> FileIO:
        if self._closed:
            raise ValueError("this run is closed")
        if self._journal is not None and not _is_at(self._journal, self._home / RECORDS):
            problem = "it was moved or removed while the run was computed"
            raise FileNotFoundError(errno.ENOENT, problem)
        if self._journal is None:
            self._home.mkdir(exist_ok=True)
            self._journal = append_to(self._home / RECORDS)
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
    return Checkpoint(records[count - 1].round, tensors, meta_of(envelope)), kept


def _is_at(file: FileIO, path: Path) -> bool:
    """Whether an open file is the one at `path`. What is written beside it would else be put into a
    new folder of that name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _append(file: FileIO, data: bytes) -> None:
    """Add all of `data`, or leave the file as it was."""
    end = file.seek(0, os.SEEK_END)
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        file.truncate(end)
        raise
