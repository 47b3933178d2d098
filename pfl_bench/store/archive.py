"""A store in one file: a zip with the same layout, read-only, for results that are shared.

    <slug>-<key>/config.json, rounds.jsonl, summary.json, attack-<key>.json, state.safetensors

Only finished runs go in, without checkpoints, with trained models on request, in an order and with
times that are always the same: equal results make equal bytes. An archive is somebody else's file.
It is read by unpacking it once, under its own checksum, into the cache; what is unpacked is decided
here, member by member: names of this layout alone, plain files, each and all of bearable size.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pfl_bench.base import (
    UserError,
    cache_dir,
    open_regular,
    replacing,
    shown,
    write_atomically,
)
from pfl_bench.store.folder import CONFIG, RECORDS, STATE, SUMMARY, explained, locked
from pfl_bench.store.stored_run import StoredRun, read_run

SUFFIX = ".zip"
LARGEST_ARCHIVE = 2**32
LARGEST_MEMBER = 2**28
LARGEST_CONTENT = 2**34
"""In bytes: of the file, of a file in it, of all together. A table of the paper with five seeds and
2,000 rounds a run has a tenth of that."""
MOST_MEMBERS = 400_000

_ATTACK = re.compile(r"attack-[\w-]{1,80}\.json")
_MEMBER = re.compile(
    r"[\w.+=-]{1,120}-[0-9a-f]{16}/(config\.json|rounds\.jsonl|summary\.json"
    rf"|{_ATTACK.pattern}|state\.safetensors)"
)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_METHOD = zipfile.ZIP_LZMA
_UNSOUND = (
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    NotImplementedError,  # a way of compressing that zipfile does not know
    RuntimeError,  # encrypted
    EOFError,
    ValueError,
)


@dataclass(frozen=True)
class Merged:
    """The runs of an archive by what became of them, by the names of their folders."""

    added: list[str]
    known: list[str]
    conflicts: list[str]
    models: list[str]
    """Of those known, the ones that had no trained model here and have the archive's now."""
    attacks: list[str]
    """Those there already, the same to the bit or longer, that have more attacks now."""


def is_archive(path: Path) -> bool:
    return path.suffix == SUFFIX and not path.is_dir()


def pack(
    runs: Iterable[StoredRun], target: Path, with_models: bool = False
) -> tuple[int, list[str]]:
    """Write the finished runs to `target`; how many there are, and what else was left out."""
    left_out: list[str] = []
    count = 0
    try:
        with replacing(target) as temporary, zipfile.ZipFile(temporary, "w", _METHOD) as archive:
            for run in runs:
                if not run.is_final:
                    left_out.append(f"{run.path.name} ({run.damage or run.status})")
                    continue
                count += 1
                files = contents(run) | (_model(run, left_out) if with_models else {})
                for name, content in sorted(files.items()):
                    entry = zipfile.ZipInfo(f"{run.path.name}/{name}", _EPOCH)
                    # Weights look like noise: to compress them takes long and gains nothing.
                    entry.compress_type = zipfile.ZIP_STORED if name == STATE else _METHOD
                    entry.external_attr = 0o644 << 16
                    archive.writestr(entry, content)
            if not count:
                raise UserError(f"there is no finished run to pack into {target}")
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}") from error
    return count, left_out


def contents(run: StoredRun) -> dict[str, bytes]:
    """The files of a finished run that are worth sharing, by name."""
    return run.files((CONFIG, RECORDS, SUMMARY, *_attacks(run)))


def _attacks(run: StoredRun, beside: Path | None = None) -> set[str]:
    """The files of the attacks on a run, or on its beginning before it went on; with `beside`, of
    those that another folder has of the same bits."""
    return {name for name in run.attachments("attack-*.json", beside) if _ATTACK.fullmatch(name)}


def _model(run: StoredRun, left_out: list[str]) -> dict[str, bytes]:
    """The trained model of a run, where a sound one is kept and an archive can hold it."""
    if run.model_bytes > LARGEST_MEMBER:
        left_out.append(f"the model of {run.path.name} ({run.model_bytes / 1e6:.0f} MB)")
        return {}
    return {} if run.state() is None else run.files([STATE])


def merge(source: Iterable[StoredRun], target: Path) -> Merged:
    """Copy the finished runs of one store into another. What is there already stays; where it is
    another result under the same name, that is told."""
    merged = Merged([], [], [], [], [])
    for run in source:
        if not run.is_final or run.summary is None:
            continue
        there = next(iter(target.glob(f"*-{run.key}")), target / run.path.name)
        known = read_run(there)
        if known.summary is not None:
            is_same = known.summary["records_sha256"] == run.summary["records_sha256"]
            (merged.known if is_same else merged.conflicts).append(run.path.name)
            if is_same and known.state() is None and run.state() is not None:
                _write(there, run.files([STATE]))
                merged.models.append(run.path.name)
            if new := _attacks(known, beside=run.path) - _attacks(known):
                _write(there, run.files(new))
                merged.attacks.append(run.path.name)
            continue
        with explained(there):
            there.mkdir(parents=True, exist_ok=True)
        _write(there, contents(run) | (run.files([STATE]) if run.state() is not None else {}))
        merged.added.append(run.path.name)
    return merged


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put files into the folder of a run, its summary last."""
    with locked(folder), explained(folder):
        for name in sorted(files, key=lambda name: (name == SUMMARY, name)):
            write_atomically(folder / name, files[name])


def unpacked(path: Path) -> Path:
    """The folder in the cache that holds what is in an archive, unpacked on first use."""
    try:
        with open_regular(path, LARGEST_ARCHIVE) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
            folder = cache_dir() / "archives" / digest
            if not folder.is_dir():
                file.seek(0)
                with zipfile.ZipFile(file) as archive:
                    _unpack(archive, path, folder)
            return folder
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except _UNSOUND as error:
        raise UserError(f"{path} is no sound archive of results: {error}") from error


def _unpack(archive: zipfile.ZipFile, path: Path, folder: Path) -> None:
    members = archive.infolist()
    check_members(members, path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        whole = Path(temporary) / "whole"
        whole.mkdir()
        for member in members:
            target = whole / member.filename
            target.parent.mkdir(exist_ok=True)
            with archive.open(member) as source, target.open("xb") as written:
                shutil.copyfileobj(source, written)  # checks the member's checksum at its end
        try:
            whole.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise


def check_members(members: list[zipfile.ZipInfo], path: Path) -> None:
    """Refuse an archive that holds anything but results, before a byte of it is unpacked."""
    names = [member.filename for member in members]
    for member in members:
        kind = member.external_attr >> 16 & 0o170000
        if not _MEMBER.fullmatch(member.filename) or kind not in (0, 0o100000):
            raise UserError(f"{path} holds {shown(member.filename)}, which is no file of a result")
        if member.file_size > LARGEST_MEMBER:
            raise UserError(f"{path} holds {shown(member.filename)} of {member.file_size:,} bytes")
    if len(names) > MOST_MEMBERS or sum(m.file_size for m in members) > LARGEST_CONTENT:
        raise UserError(f"{path} holds {len(names):,} files, more than any store of results")
    if len({os.path.normcase(name) for name in names}) < len(names):
        raise UserError(f"{path} holds a file twice")
