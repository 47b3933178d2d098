"""The result store: one folder per run, named by the content of its configuration; or an archive
of such folders, which is read and never written.

What lies in such a folder is told in `pfl_bench.store.folder`; who reads and who writes it is in
`pfl_bench.store.stored_run` and `pfl_bench.store.writer`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from pfl_bench.base import UserError, shown
from pfl_bench.config import ENDS
from pfl_bench.store import archive
from pfl_bench.store.folder import checkpoints_in, explained, holder, locked
from pfl_bench.store.stored_run import StoredRun, read_run, remarks
from pfl_bench.store.writer import Configuration, RunWriter

_RUN_FOLDER = re.compile(r".*-(?P<key>[0-9a-f]{16})")


class Store:
    """All runs under one folder, made when the first run is opened, or in an archive."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.is_archive = archive.is_archive(self.root)

    @cached_property
    def _place(self) -> Path:
        """The folder that the runs are read from."""
        return archive.unpacked(self.root) if self.is_archive else self.root

    def folder(self, config: Configuration) -> Path:
        """Where the run lies or will lie; a folder with another slug but the same key is it too."""
        return next(self._folders(config.key), self.root / f"{_tame(config.slug)}-{config.key}")

    def find(self, config: Configuration) -> StoredRun | None:
        """The finished, verified result of `config`, as far as it was asked for; None where it has
        yet to be computed, or to go on."""
        runs = (read_run(folder) for folder in self._folders(config.key))
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

    def holder(self, config: Configuration) -> str | None:
        """The process that is computing the run now, as a user would call it; None for nobody."""
        return holder(self.folder(config))

    def all(self) -> Iterator[StoredRun]:
        """Every run in order of folder name, unfinished and damaged ones included."""
        yield from map(read_run, self._folders())

    def remarks(self) -> dict[str, str]:
        """What its runs say of data that are not as published, by their fingerprint."""
        return remarks(self.all())

    def tidy(self) -> None:
        """Remove the checkpoints that a process killed in its very last step left beside a result;
        they take space and serve nobody. What another process holds is its own to tidy."""
        for folder in () if self.is_archive else self._folders():
            if checkpoints_in(folder) and read_run(folder).is_final:
                with contextlib.suppress(UserError), locked(folder), explained(folder):
                    for path in checkpoints_in(folder):
                        path.unlink()

    def _folders(self, key: str | None = None) -> Iterator[Path]:
        try:
            paths = sorted(self._place.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise UserError(f"cannot read the results in {self.root}: {error.strerror}") from error
        for path in paths:
            match = _RUN_FOLDER.fullmatch(path.name)
            # A link is no run, and is said to be none where it is read.
            if match and key in (None, match["key"]) and (path.is_symlink() or path.is_dir()):
                yield path


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


def _tame(slug: str) -> str:
    """A slug that is a safe and not too long part of a folder name on every system."""
    return re.sub(r"[^\w.+=-]", "_", slug)[:100]
