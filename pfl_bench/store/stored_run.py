"""A run as it is found in its folder: read, verified, never changed but for attachments."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pfl_bench.base import UserError, irregularity, write_atomically
from pfl_bench.store.folder import (
    CONFIG,
    FRESH,
    RECORDS,
    RESULT,
    STATE,
    SUMMARY,
    Checkpoint,
    bytes_of,
    check_records,
    document_at,
    explained,
    read_state,
)
from pfl_bench.store.records import (
    DamagedError,
    Ending,
    RoundRecord,
    digests,
    ends_after,
    read_lines,
    seal,
    sound_records,
    summarise,
)
from pfl_bench.store.summary import Summary

FINAL = ("finished", "diverged", "skipped")


@dataclass(frozen=True)
class StoredRun:
    """A run as found on disk. `status` is one of FINAL, "interrupted", "damaged" or "begun";
    `damage` says what is wrong with a damaged one. A run that was killed before it was described is
    begun: of its configuration no more is known than the name of its folder."""

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any] | None
    status: str
    damage: str | None = None
    home: Path | None = None  # the folder of the summary: `path`, or within it a repetition's
    shown: int | None = None  # how many of its rounds this is, where it is a longer run's beginning

    @property
    def key(self) -> str:
        return self.path.name[-16:]

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def remark(self) -> str:
        """What must be said of its data wherever its figures appear; often nothing."""
        return self.end.data

    @cached_property
    def end(self) -> Summary:
        """What its summary says, typed; of a run that has none, nothing."""
        return Summary.of(self.summary)

    def records(self) -> list[RoundRecord]:
        """The rounds recorded so far, up to the first damaged one; none of what cannot be read at
        all, which is why the run counts as damaged."""
        places = (self.home or self.path, self.path)
        try:
            found = (bytes_of(place / RECORDS) for place in places)
            data = next((content for content in found if content is not None), b"")
        except DamagedError:
            return []
        except OSError as error:
            if self.status == "damaged":
                return []
            raise UserError(f"cannot read {self.path / RECORDS}: {error.strerror}") from error
        lines = data.split(b"\n")[:-1][: self.shown]
        digest = hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()
        if self.is_final and digest == self.end.records_sha256:
            # A run is final if every one of these lines was found to be sound.
            return sound_records(digest, lines)
        return read_lines(data, self.shown)[0]

    def until(self, rounds: int, patience: int | None) -> StoredRun | None:
        """This run as it would have ended after so many rounds or so little patience; None where it
        has not come as far."""
        ends = {"rounds": rounds, "patience": patience}
        if self.status == "skipped" or ends.items() <= self.config.items():
            return self
        if self.status == "finished" and patience is None and self.end.rounds < rounds:
            return None
        records = self.records()
        whole = len(records)
        end = ends_after(records, Ending(rounds, patience, self.end.untrained))
        if end is None:
            return self if self.status == "diverged" else None
        config = {**self.config, **ends}
        if end == whole:
            return replace(self, config=config)
        summary = {
            **(self.summary or {}),
            **summarise(records[:end]),
            "status": "finished",
            "reason": None,
            "records_sha256": digests(records[:end], timed=True)[-1],
        }
        return replace(self, config=config, summary=summary, status="finished", shown=end)

    def state(self) -> Checkpoint | None:
        """The state after the last round; None where it was not kept, is damaged, or belongs to
        other records than these."""
        if self.summary is None or self.shown is not None:
            return None
        for place in (self.home or self.path, self.path):
            try:
                return read_state(place / STATE, self.summary)
            except (DamagedError, FileNotFoundError):
                continue
            except OSError as error:
                raise UserError(f"cannot read {place / STATE}: {error.strerror}") from error
        return None

    @property
    def model_bytes(self) -> int:
        """The size of the kept state, sound or not; 0 where there is none of this result."""
        if self.summary is None or self.shown is not None:
            return 0
        places = (place / STATE for place in (self.home or self.path, self.path))
        return max(path.lstat().st_size if path.exists() else 0 for path in places)

    @cached_property
    def _bonds(self) -> list[str]:
        """What an attachment must name to belong to the beginning of each length, the last to all
        of this."""
        return digests(self.records())

    def attachment(self, name: str) -> dict[str, Any] | None:
        """What was attached to this result, or to one of the same bits; None where there is nothing
        sound. A longer run that begins like this has attachments of its own."""
        # The bonds last: they ask for the records, which of thousands of runs takes seconds.
        if self.summary is None or not any(self.path.glob(f"{name}*.json")) or not self._bonds:
            return None
        bond = self._bonds[-1]
        # Before it was by its bits, a result was named by its file, with the times in it.
        for file, of in ((_attached(name, bond), bond), (name, self.summary["records_sha256"])):
            document = self._document(self.path / f"{file}.json")
            if document and document.get("of") == of:
                return document
        return None

    def attachments(self, pattern: str, beside: Path | None = None) -> list[str]:
        """The files of that pattern that are attached to this result or to a beginning of it; with
        `beside`, those in another folder that would be."""
        found = sorted((beside or self.path).glob(pattern)) if self.summary else []
        documents = {path.name: self._document(path) or {} for path in found}
        bonds = {*self._bonds, *digests(self.records(), timed=True)} if found else set()
        return [name for name, document in documents.items() if str(document.get("of")) in bonds]

    def _document(self, path: Path) -> dict[str, Any] | None:
        try:
            return document_at(path, path.parent)
        except DamagedError:
            return None
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error

    def carry(self) -> dict[str, bytes]:
        """The files of this result, by name, for `RunWriter.adopt` in another store."""
        return self.files(RESULT)

    def files(self, names: Iterable[str]) -> dict[str, bytes]:
        """Those of the named files that this result has, with their content."""
        places = (self.path, self.home or self.path)  # a repetition's files may have moved already
        found = ((name, bytes_of(place / name)) for name in names for place in places)
        return {name: data for name, data in found if data is not None}

    def attach(self, name: str, document: dict[str, Any]) -> None:
        """Put a document, sealed, beside a finished result; one of that name is replaced."""
        if self.summary is None or not self._bonds:
            raise ValueError("a document can be attached to a finished run only")
        bond = self._bonds[-1]
        with explained(self.path):
            sealed = seal({"key": self.key, "of": bond, **document})
            write_atomically(self.path / f"{_attached(name, bond)}.json", sealed)


def _attached(name: str, bond: str) -> str:
    """The name of an attachment's file: one for each result that a folder's rounds hold."""
    return f"{name}-{bond[:16]}"


def remarks(
    runs: Iterable[StoredRun], known: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """What must be said of data that are not as published, by their fingerprint. Any run on them
    tells it of all, and the fullest counts: a note may have come later than the first runs."""
    told = dict(known)
    for run in runs:
        data = str(run.config.get("data_fingerprint"))
        told[data] = max(told.get(data, ""), run.remark, key=len)
    return {data: remark for data, remark in told.items() if remark}


def read_run(folder: Path) -> StoredRun:
    """What lies in `folder`, verified; damage is reported in the answer, never raised."""
    if what := irregularity(folder, folder=True):
        return StoredRun(folder, {}, None, "damaged", what)
    try:
        run = read_once(folder)
        # A repetition may have taken its place between the reading of one file and of the next.
        return read_once(folder) if run.status == "damaged" else run
    except OSError as error:
        return StoredRun(folder, {}, None, "damaged", f"cannot be read ({error.strerror})")


def read_once(folder: Path) -> StoredRun:
    try:
        config = document_at(folder / CONFIG, folder)
        if config is None and not any((folder / name).exists() for name in (RECORDS, SUMMARY)):
            return StoredRun(folder, {}, None, "begun")
        if config is None:
            raise DamagedError(f"{CONFIG} is missing")
        settings = config["config"]
    except DamagedError as error:
        return StoredRun(folder, {}, None, "damaged", str(error))

    damage = None
    fresh = folder / FRESH
    # A finished repetition counts from the moment its summary exists, wherever its records are.
    repeated = () if irregularity(fresh, folder=True) else ((fresh, fresh), (fresh, folder))
    for home, records in (*repeated, (folder, folder)):
        try:
            summary = document_at(home / SUMMARY, folder)
            if summary is None:
                continue
            check_records(bytes_of(records / RECORDS), summary)
            own = document_at(home / CONFIG, folder) or config  # a continuation ends elsewhere
        except DamagedError as error:
            damage = str(error)
        else:
            return StoredRun(folder, own["config"], summary, summary["status"], home=home)
    if damage is not None:
        return StoredRun(folder, settings, None, "damaged", damage)
    try:
        bytes_of(folder / RECORDS)  # who continues the run, or counts its rounds, must read them
    except DamagedError as error:
        return StoredRun(folder, settings, None, "damaged", str(error))
    return StoredRun(folder, settings, None, "interrupted")
