"""A store read once, for commands that put many questions to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from pfl_bench.store import Configuration, Store, StoredRun, remarks


class ReadStore(Store):
    """Answers from what it read when it was first asked; of a run that was not there then, from the
    disk. Who runs something needs a `Store`, which always looks."""

    def __init__(self, root: Path, runs: Iterable[StoredRun] | None = None) -> None:
        super().__init__(root)
        self._given = None if runs is None else tuple(runs)

    def find(self, config: Configuration) -> StoredRun | None:
        run = self._final.get(config.key)
        return super().find(config) if run is None else run.until(config.rounds, config.patience)

    def all(self) -> Iterator[StoredRun]:
        return iter(self._runs)

    def remarks(self) -> dict[str, str]:
        return remarks(self._runs)

    @cached_property
    def _runs(self) -> tuple[StoredRun, ...]:
        return tuple(super().all()) if self._given is None else self._given

    @cached_property
    def _final(self) -> dict[str, StoredRun]:
        return {run.key: run for run in self._runs if run.is_final}
