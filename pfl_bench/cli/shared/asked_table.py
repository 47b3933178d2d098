"""Which table a command is about, which part of it, and on which terms its cells are run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.api import COMPARING
from pfl_bench.base import paths, user_path
from pfl_bench.cli.shared import commas
from pfl_bench.reporting.tables import TableSpec, load_table

if TYPE_CHECKING:
    from pfl_bench.config import Profile
    from pfl_bench.execution import Fingerprint
    from pfl_bench.reporting.tables import TablePlan
    from pfl_bench.store import Store


@dataclass(frozen=True)
class AskedTable:
    """A table as the flags say it, which `table`, `tune` and the figures of a table have in common,
    by the names of these flags."""

    name: str
    profile: str | None = None
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    attack: tuple[str, ...] = ()
    validation: str | None = None
    new_clients: str | None = None
    adapt_epochs: str | None = None
    tuned_file: str | None = None
    interval: str | None = None
    data_dir: str | None = None

    @classmethod
    def of(cls, flags: Mapping[str, Any]) -> AskedTable:
        """From all flags of a command, which may have others."""
        return cls(**{f.name: flags[f.name] for f in fields(cls) if f.name in flags})

    def spec(self) -> TableSpec:
        """The table as it is asked for."""
        from pfl_bench.cli.run import assignments
        from pfl_bench.tuning import read_tuned

        spec = self._part()
        spec = spec.running({name: getattr(self, name) for name in COMPARING})
        if self.tuned_file is not None:
            spec = read_tuned(user_path(self.tuned_file)).applied(spec)
        spec = spec.attacked(assignments(self.attack, "--attack target=update"))
        return spec.with_plugins(self.plugins).with_intervals(self.interval)

    def _part(self) -> TableSpec:
        """The rows and columns that are asked for; what is added is wanted, whatever rows are
        named. Where none are named, the algorithms of plugins are rows too."""
        from pfl_bench.plugins import load_plugin

        joining = [load_plugin(Path(file)) for file in self.plugins]
        spec = load_table(self.name)
        if self.data_dir is not None:  # a folder of real data given by hand is meant to be used
            spec = spec.on_real_data()
        further = commas.names("--add-rows", *self.added)
        spec = spec.extended(further)
        if not self.rows:
            spec = spec.joined(joining)
        kept = commas.names("--rows", *self.rows, whole=spec.rows)
        columns = commas.names("--columns", *self.columns, whole=spec.columns)
        return spec.restricted((*kept, *further) if kept else (), tuple(columns))

    def chosen_profile(self, spec: TableSpec) -> Profile:
        from pfl_bench.api import table_profile

        return table_profile(self.profile, spec)

    def plan(
        self,
        spec: TableSpec,
        store: Store,
        seeds: int | None,
        fingerprint: Fingerprint | None = None,
    ) -> TablePlan:
        """The runs of the table, and which of them are stored; as many seeds as the profile says
        where nothing else is asked."""
        from pfl_bench.reporting.tables import plan_table

        profile, folder = self.chosen_profile(spec), paths.data_dir(self.data_dir)
        return plan_table(spec, profile, seeds or profile.seeds, store, folder, fingerprint)

    def stored(self, store: Store, seeds: int | None, score: str | None) -> TablePlan:
        """What is stored of the table, for which no data are needed."""
        from pfl_bench.reporting.tables import known_to

        spec = self.spec()
        spec = spec if score is None else spec.scored(score)
        return self.plan(spec, store, seeds, known_to(store))
