"""Stored runs as a Python user wants them: figures, data frames, a choice among many."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.base import UserError, data_dir, plain, results_dir, shown, unknown, user_path
from pfl_bench.reporting import round_row, run_row
from pfl_bench.store import Store as AnyStore
from pfl_bench.store import StoredRun, read_run

if TYPE_CHECKING:
    import pandas as pd

    from pfl_bench.api.client_model import ClientModel

SHORT_KEY = 8
"""The characters of a key that are shown where many are."""


@dataclass(frozen=True)
class Result:
    """What one run came to. Accuracies lie in [0, 1]."""

    stored: StoredRun
    data: Path | None = field(default=None, compare=False)
    """Where its data lie, if that is not the usual place."""
    partition: str | None = field(default=None, compare=False)
    """Where its PFLlib partition lies, if it uses one."""

    @property
    def config(self) -> dict[str, Any]:
        """Every setting that can change the result, spelt out."""
        return dict(self.stored.config)

    @property
    def summary(self) -> dict[str, Any]:
        """Best and last round, time, traffic, versions, machine; empty for an unfinished run."""
        return dict(self.stored.summary or {})

    @property
    def status(self) -> str:
        """finished, diverged, skipped, interrupted, damaged or begun."""
        return self.stored.status

    @property
    def path(self) -> Path:
        """Its folder in the store."""
        return self.stored.path

    @property
    def best(self) -> float | None:
        """The accuracy in the best round; None where no round was scored."""
        return self._accuracy("best")

    @property
    def last(self) -> float | None:
        """The accuracy after the last scored round."""
        return self._accuracy("last")

    @property
    def curve(self) -> pd.DataFrame:
        """A row for each round: accuracy, losses, bytes, seconds; series over clients are JSON
        texts, as in `pfl-bench results export --rounds`."""
        import pandas as pd

        return pd.DataFrame([round_row(record) for record in self.stored.records()])

    @property
    def clients(self) -> pd.DataFrame:
        """A row for each client and scored round: its test samples, and how many it got right."""
        import pandas as pd

        rows = [
            {"round": record.round, "client": client, "correct": correct, "total": total}
            for record in self.stored.records()
            for client, (correct, total) in enumerate(
                zip(record.correct or (), record.total or (), strict=True)
            )
        ]
        return pd.DataFrame(rows, columns=["round", "client", "correct", "total"])

    def model(
        self, client: int, *, data: str | Path | None = None, partition: str | None = None
    ) -> ClientModel:
        """The trained model of a client, where it was kept (`keep_model=True`, `--keep-model`): a
        torch module that gives logits as the method predicts, in the state after the last round.

        The run's data must be here, because methods look at them: in the usual folder, or in
        `data`; `partition` is where those of a PFLlib run lie, as pfllib:PATH."""
        from pfl_bench.api.client_model import ClientModel
        from pfl_bench.execution import Execution, kept_simulator

        count = int(self.stored.config.get("clients", 0))
        if not 0 <= client < count:
            raise UserError(f"client cannot be {client}; allowed: 0 to {count - 1}")
        folder = data_dir(self.data if data is None else data)
        simulator = kept_simulator(
            self.stored, Execution(folder, workers=1, partition=partition or self.partition)
        )
        if simulator is None:
            raise UserError(
                f"the trained model of {self.path.name} is not kept; the same run with "
                "keep_model=True, or --keep-model, keeps it"
            )
        return ClientModel(simulator, client)

    def _accuracy(self, name: str) -> float | None:
        score = self.summary.get(name)
        return None if score is None else float(score["accuracy"])

    def __repr__(self) -> str:
        best = "" if self.best is None else f", best accuracy {self.best:.2%}"
        return f"<Result {self.path.name}: {self.status}{best}>"


class Store(AnyStore):
    """The results in a folder or an archive; by default those of `pfl-bench` itself."""

    def __init__(self, root: str | Path | None = None) -> None:
        super().__init__(results_dir(root))

    def run(self, key: str) -> Result:
        """The run with this key, or the beginning of one, as `pfl-bench results list` prints it; or
        the name of its folder."""
        return Result(named_run(key, self))

    def runs(self, **wanted: Any) -> list[Result]:
        """The runs with these values in their configuration, as `dataset="cifar10"`, or of this
        `status`; a list means any of its values. Names may be spelt as on the command line."""
        return list(map(Result, self._chosen(wanted)))

    def frame(self, **wanted: Any) -> pd.DataFrame:
        """The same runs as a data frame, one row each: configuration and summary."""
        import pandas as pd

        return pd.DataFrame([run_row(run) for run in self._chosen(wanted)])

    def _chosen(self, wanted: dict[str, Any]) -> Iterator[StoredRun]:
        runs = list(self.all())
        known = {"status", *(name for run in runs for name in run.config)}
        for name in wanted:
            if runs and name not in known:
                raise unknown("setting of the stored runs", name, sorted(known))
        for run in runs:
            values = {**run.config, "status": run.status}
            if all(_is(values.get(name), value) for name, value in wanted.items()):
                yield run

    def __repr__(self) -> str:
        return f"<Store {self.root}>"


def _is(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Iterable) and not isinstance(wanted, str):
        return any(_is(value, one) for one in wanted) or value == wanted
    if isinstance(value, str) and isinstance(wanted, str):
        return plain(value) == plain(wanted)
    return bool(value == wanted)


def named_run(name: str, store: AnyStore) -> StoredRun:
    """The run that `name` means: a folder or a folder's name in the store, or the beginning of
    exactly one key."""
    if name and (folder := user_path(name) / "config.json").is_file():
        return read_run(folder.parent.resolve())
    runs = {run.key: run for run in store.all()}
    matches = [
        key
        for key, run in runs.items()
        if name and (key.startswith(name.lower()) or run.path.name == name)
    ]
    if len(matches) == 1:
        return runs[matches[0]]
    if matches:
        listing = ", ".join(matches[:5]) + (", …" if len(matches) > 5 else "")
        raise UserError(f"{shown(name)} is the beginning of {len(matches)} keys: {listing}")
    beginnings = {key[: max(len(name), SHORT_KEY)]: run for key, run in runs.items()}
    near = difflib.get_close_matches(name.lower(), beginnings, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r} ({beginnings[near[0]].path.name})?" if near else ""
    raise UserError(f"no run {shown(name)} among the {len(runs)} in {store.root}{hint}")
