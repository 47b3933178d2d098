"""The result store: one folder per run, named by the content of its configuration; or an archive
of such folders, which is read and never written.

What lies in such a folder is told in `pfl_bench.store.folder`; who reads and who writes it is in
`pfl_bench.store.stored_run` and `pfl_bench.store.writer`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from pfl_bench.base import UserError, irregularity, shown
from pfl_bench.config import ENDS
from pfl_bench.store import archive
from pfl_bench.store.folder import STATE, checkpoints_in, explained, holder, locked
from pfl_bench.store.index import SETTLED, indexed
from pfl_bench.store.stored_run import StoredRun, read_run, remarks
from pfl_bench.store.writer import Configuration, RunWriter

_RUN_FOLDER = re.compile(r".*-(?P<key>[0-9a-f]{16})")
_REMOVED = re.compile(r"\.[0-9a-f]{16}-[0-9a-f]{8}\.removed")
"""What is left of a run where its removal was killed half-way."""


class Store:
    """All runs under one folder, made when the first run is opened, or in an archive."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.is_archive = archive.is_archive(self.root)
        self._listed: tuple[int, dict[str, list[Path]]] | None = None

    @cached_property
    def _place(self) -> Path:
        """The folder that the runs are read from."""
        return archive.unpacked(self.root) if self.is_archive else self.root

    def folder(self, config: Configuration) -> Path:
        """Where the run lies or will lie; a folder with another slug but the same key is it too."""
        return next(self._named(config), self.root / _name(config))

    def find(self, config: Configuration) -> StoredRun | None:
        """The finished, verified result of `config`, as far as it was asked for; None where it has
        yet to be computed, or to go on."""
        runs = map(read_run, self._named(config))
        found = (run.until(config.rounds, config.patience) for run in runs if run.is_final)
        return next((run for run in found if run is not None), None)

    @contextlib.contextmanager
    def open(self, config: Configuration) -> Iterator[RunWriter]:
        """Take the run's lock and give the writer, resumed from what an earlier process left.

        Raises `RunBusy` where another live process holds the lock. A result that was finished in
        the meantime is the writer's `finished`."""
        if self.is_archive:
            raise UserError(
                f"{self.root} is an archive, from which results are read and never written; "
                f"`pfl-bench results merge {self.root} --results DIR` makes a folder of it"
            )
        folder = self.folder(config)
        check_same(read_run(folder), config)
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            writer = RunWriter(folder, config)
            try:
                yield writer
            finally:
                writer.close()

    def holder(self, run: Configuration | StoredRun) -> str | None:
        """The process that is computing the run now, as a user would call it; None for nobody."""
        return holder(run.path if isinstance(run, StoredRun) else self.folder(run))

    def remove(self, run: StoredRun) -> None:
        """Take a run out of the store for good. A link goes, and what it leads to stays.

        Raises `RunBusy` where a live process computes it. Killed half-way it is no run any more,
        and the next `tidy` removes the rest."""
        folder = self._within(run)
        with explained(folder):
            if irregularity(folder, folder=True):
                folder.unlink()
                return
            with locked(folder):
                rest = folder.with_name(f".{run.key}-{secrets.token_hex(4)}.removed")
                folder.rename(rest)
            shutil.rmtree(rest)

    def remove_model(self, run: StoredRun) -> None:
        """Take the trained model out of a run's folder; the result stays. Raises as `remove`."""
        folder = self._within(run)
        with locked(folder), explained(folder):
            for place in {folder, run.home or folder}:
                (place / STATE).unlink(missing_ok=True)

    def _within(self, run: StoredRun) -> Path:
        """The folder of a run of this store, and of no other place."""
        if self.is_archive:
            raise UserError(f"{self.root} is an archive, and nothing is removed from one")
        folder = self.root / run.path.name
        is_ours = run.path.parent.resolve() == self.root.resolve()
        if not is_ours or not _RUN_FOLDER.fullmatch(folder.name):
            raise UserError(f"{run.path} is no run in {self.root}, and stays")
        return folder

    def all(self) -> Iterator[StoredRun]:
        """Every run in order of folder name, unfinished and damaged ones included."""
        yield from indexed(self._place, self._folders())

    def remarks(self) -> dict[str, str]:
        """What its runs say of data that are not as published, by their fingerprint."""
        return remarks(self.all())

    def tidy(self) -> None:
        """Remove the checkpoints that a process killed in its very last step left beside a result,
        and the rest of runs that were being removed; they take space and serve nobody. What another
        process holds is its own to tidy."""
        for rest in () if self.is_archive else self._removed():
            shutil.rmtree(rest, ignore_errors=True)
        for folder in () if self.is_archive else self._folders():
            if checkpoints_in(folder) and read_run(folder).is_final:
                with contextlib.suppress(UserError), locked(folder), explained(folder):
                    for path in checkpoints_in(folder):
                        path.unlink()

    def _named(self, config: Configuration) -> Iterator[Path]:
        """The folders that are the run's by their name; usually the first is there and is it, and
        the store is not listed."""
        usual = self._place / _name(config)
        if usual.is_symlink() or usual.is_dir():
            yield usual
        yield from (path for path in self._by_key().get(config.key, ()) if path != usual)

    def _by_key(self) -> dict[str, list[Path]]:
        """The folders by key, listed anew when one has come or gone."""
        try:
            changed = self._place.stat().st_mtime_ns
        except OSError:
            changed = 0
        is_settled = time.time_ns() - changed > SETTLED  # else the next change may not show
        if not is_settled or self._listed is None or self._listed[0] != changed:
            found: dict[str, list[Path]] = {}
            for path in self._folders():
                found.setdefault(path.name[-16:], []).append(path)
            self._listed = (changed, found)
        return self._listed[1]

    def _removed(self) -> list[Path]:
        with contextlib.suppress(OSError), os.scandir(self.root) as listing:
            return [
                Path(entry.path)
                for entry in listing
                if _REMOVED.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
        return []

    def _folders(self) -> Iterator[Path]:
        try:
            with os.scandir(self._place) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise UserError(f"cannot read the results in {self.root}: {error.strerror}") from error
        for entry in entries:
            # A link is no run, and is said to be none where it is read.
            if _RUN_FOLDER.fullmatch(entry.name) and (entry.is_symlink() or entry.is_dir()):
                yield Path(entry.path)


def check_same(run: StoredRun, config: Configuration) -> None:
    """Refuse a run that has another configuration under the same name: what stood at its default
    when it was stored stands no longer."""
    asked = config.to_dict()
    for name, value in run.config.items():
        now = asked.get(name, value)
        if name not in ENDS and now != value and name != "standing":
            raise UserError(
                f"the run in {run.path} has {name} {shown(value)} and would now have {shown(now)}; "
                "the default has changed since: move it away, or give the old value"
            )


def _name(config: Configuration) -> str:
    return f"{_tame(config.slug)}-{config.key}"


def _tame(slug: str) -> str:
    """A slug that is a safe and not too long part of a folder name on every system."""
    return re.sub(r"[^\w.+=-]", "_", slug)[:100]
