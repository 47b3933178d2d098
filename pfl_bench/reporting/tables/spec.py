"""What a table is: rows, columns, what each cell runs, and the value the paper gives.

How a spec is written down is in `reading`, how cells are run in `plan`, what they say in
`content`.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pfl_bench.base import (
    UserError,
    meant,
    plain,
    unknown,
)
from pfl_bench.config import as_dict, checked
from pfl_bench.privacy import Threat
from pfl_bench.reporting.intervals import OVER
from pfl_bench.reporting.metrics import SCORES, SIMILARITIES, brought_metrics, metric

PAPERS = ("best", "validation", "last", "late")
"""The scores that the paper's accuracies may stand beside."""


@dataclass(frozen=True)
class Published:
    """A figure of the paper: a value, or the word it prints instead."""

    mean: float | None = None
    std: float | None = None
    status: str = "value"  # or "skipped" or "diverged"


@dataclass(frozen=True)
class Cell:
    """One combination of row and column."""

    row: str
    column: str
    chosen: Mapping[str, Any]
    hyper: Mapping[str, Any]
    published: Published | None
    measure: str = "accuracy"
    threat: Threat | None = None
    """The attack whose outcome the cell shows, where it shows one."""


@dataclass(frozen=True)
class TableSpec:
    name: str
    caption: str
    metric: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell] = field(repr=False)
    compared: str = "rows"
    method: str | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    """The heading over a column, where it has one."""
    rules: frozenset[str] = frozenset()
    """The rows with a line above them."""
    arguments: str = ""
    """What stands after `pfl-bench table` to get this table."""
    score: str = "best"
    """One of `metrics.SCORES` or a plugin's metric, for a table of accuracies; for a table of an
    attack one of `metrics.SIMILARITIES`, whose first is `best` too."""
    own_score: str = "best"
    """The one that its file names."""
    tuning: str = ""
    """How its hyper-parameters were tuned; nothing where they were not."""
    tuning_seeds: frozenset[int] = frozenset()
    """The seeds that they were chosen by, which must not score them."""
    interval: str = ""
    """One of `intervals.OVER`, where cells show confidence intervals."""

    @property
    def is_attacked(self) -> bool:
        """Whether the table shows what attacks recover."""
        return self.metric == "psnr"

    @property
    def stem(self) -> str:
        """What its files are called."""
        return self.name if self.score == self.own_score else f"{self.name}-{self.score}"

    def restricted(self, rows: tuple[str, ...], columns: tuple[str, ...]) -> TableSpec:
        """The same table with some rows and columns only, by their names or what they run.

        Names as printed, in any spelling (`lambda=5`, `fed-avg`); the name of an algorithm or a
        dataset means every row (or column) that runs it, and a part of a name all that have it.
        Where the rows are methods, another algorithm gets a row of its own."""
        if further := self._lacking(rows):
            return self._with_rows(further).restricted(rows, columns)
        kept_rows = _selected("row", rows, self.rows, self._running(axis=0))
        kept_columns = _selected("column", columns, self.columns, self._running(axis=1))
        asked = (("--rows", rows, kept_rows), ("--columns", columns, kept_columns))
        options = [(option, ",".join(kept)) for option, some, kept in asked if some]
        return dataclasses.replace(
            self,
            rows=kept_rows,
            columns=kept_columns,
            cells={
                (row, column): cell
                for (row, column), cell in self.cells.items()
                if row in kept_rows and column in kept_columns
            },
            arguments=self._called(options),
        )

    def extended(self, algos: Sequence[str]) -> TableSpec:
        """The same table with these methods below its own rows, where those are methods."""
        if not algos:
            return self
        from pfl_bench.plugins import load_algorithm

        for algo in algos:
            load_algorithm(algo)  # which says what there is
        further = self._lacking(algos)
        if len(further) < len(algos):
            raise UserError(
                f"--add-rows {','.join(algos)} does not go with {self.name!r}: its rows are no "
                "methods, or it has such a row"
            )
        options = [("--add-rows", ",".join(further))]
        return dataclasses.replace(self._with_rows(further), arguments=self._called(options))

    def joined(self, algos: Iterable[str]) -> TableSpec:
        """The same table with the methods of plugins below its own rows, save those it runs
        anyway."""
        running = {cell.chosen.get("algo") for cell in self.cells.values()}
        guests = [algo for algo in algos if algo not in running]
        if strangers := set(guests).difference(self._lacking(guests)):
            raise UserError(
                f"the plugin {min(strangers)!r} has no place in {self.name!r}, whose rows are no "
                "methods; a table of your own can name it"
            )
        return self._with_rows(guests) if guests else self

    def _lacking(self, asked: Iterable[str]) -> list[str]:
        """The algorithms that are asked for and have no row, in a table whose rows are methods."""
        from pfl_bench.plugins import algorithm_names

        running = [
            {str(self.cells[row, c].chosen.get("algo")) for c in self.columns} for row in self.rows
        ]
        present = {algo for algos in running for algo in algos}
        if self.compared != "rows" or not len(present) == len(running) == sum(map(len, running)):
            return []
        known = {*map(plain, self.rows), *map(plain, present)}
        found = (meant(name, algorithm_names()) for name in asked if plain(name) not in known)
        return [name for name in found if name in algorithm_names()]

    def _with_rows(self, algos: Sequence[str]) -> TableSpec:
        """The same table with further methods below a rule; the paper has nothing on them."""
        from pfl_bench.plugins import load_algorithm

        titles = {algo: load_algorithm(algo).title for algo in algos}
        cells = {
            (title, column): dataclasses.replace(
                self.cells[self.rows[0], column],
                row=title,
                chosen={**self.cells[self.rows[0], column].chosen, "algo": algo},
                hyper={},
                published=None,
            )
            for algo, title in titles.items()
            for column in self.columns
        }
        return dataclasses.replace(
            self,
            rows=(*self.rows, *titles.values()),
            rules=self.rules | {titles[algos[0]]},
            cells={**self.cells, **cells},
        )

    def attacked(self, chosen: Mapping[str, str]) -> TableSpec:
        """The same table under an attack with other knobs than the table's own."""
        if not chosen:
            return self
        if not self.is_attacked:
            raise UserError(f"--attack does not go with {self.name!r}, which shows no attack")
        options = [("--attack", f"{name}={value}") for name, value in chosen.items()]

        def under(cell: Cell) -> Cell:
            threat = Threat.of({**as_dict(cell.threat), **chosen})
            return dataclasses.replace(cell, threat=threat)

        return dataclasses.replace(
            self,
            cells={place: under(cell) for place, cell in self.cells.items()},
            arguments=self._called(options),
        )

    def scored(self, score: str) -> TableSpec:
        """The same table by another score than the paper's, whose losses nobody published."""
        if score == self.score:
            return self
        if self.is_attacked:
            return self._compared_by(score)
        brought = {} if score in SCORES else brought_metrics()
        if score not in SCORES and score not in brought:
            raise unknown("score", score, [*SCORES, *brought])
        if self.metric != "accuracy":
            raise UserError(f"--score does not go with {self.name!r}, which shows no accuracy")
        measure = SCORES.get(score, score)

        def rescored(cell: Cell) -> Cell:
            published = cell.published if score in PAPERS else None
            return dataclasses.replace(cell, measure=measure, published=published)

        return dataclasses.replace(
            self,
            caption=f"{self.caption} Here: {metric(measure).label}.",
            cells={place: rescored(cell) for place, cell in self.cells.items()},
            score=score,
            arguments=self._called([("--score", score)]),
        )

    def scored_as_written(self, score: str) -> TableSpec:
        """The table by the score that its file names, which needs no option then."""
        found = self.scored(score)
        return dataclasses.replace(
            found, caption=self.caption, arguments=self.arguments, own_score=score
        )

    def _compared_by(self, score: str) -> TableSpec:
        """The same table of an attack by another similarity; nobody published an SSIM."""
        if score not in SIMILARITIES:
            raise unknown("score", score, SIMILARITIES)

        def rescored(cell: Cell) -> Cell:
            published = None if score == "ssim" else cell.published
            return dataclasses.replace(cell, measure=score, published=published)

        return dataclasses.replace(
            self,
            caption=f"{self.caption} Here: {metric(score).label}.",
            cells={place: rescored(cell) for place, cell in self.cells.items()},
            score=score,
            arguments=self._called([("--score", score)]),
        )

    def running(self, options: Mapping[str, Any]) -> TableSpec:
        """The same table, every cell run with these options, which win over its own."""
        said = {name: value for name, value in options.items() if value is not None}
        checked(said, "this table")
        cells = {
            place: dataclasses.replace(cell, chosen={**cell.chosen, **said})
            for place, cell in self.cells.items()
        }
        flags = [(f"--{name.replace('_', '-')}", str(value)) for name, value in said.items()]
        return dataclasses.replace(self, cells=cells, arguments=self._called(flags))

    def tuned(
        self, cells: Mapping[tuple[str, str], Cell], told: str, seeds: Iterable[int], file: str
    ) -> TableSpec:
        """The same table with tuned values in its cells, from a file, and how they were found."""
        return dataclasses.replace(
            self,
            cells=cells,
            tuning=told,
            tuning_seeds=frozenset(seeds),
            arguments=self._called([("--tuned", file)]),
        )

    def with_intervals(self, over: str | None) -> TableSpec:
        """The same table with a confidence interval in each cell, where one is asked for."""
        if over is None:
            return self
        if over not in OVER:
            raise unknown("interval", over, OVER)
        arguments = self._called([("--interval", over)])
        return dataclasses.replace(self, interval=over, arguments=arguments)

    def with_plugins(self, files: Iterable[str]) -> TableSpec:
        """The same table, its command naming the files that its algorithms lie in."""
        return dataclasses.replace(self, arguments=self._called(("--plugin", f) for f in files))

    def on_real_data(self) -> TableSpec:
        """The same table on real data, save cells that name their own source or partition."""
        cells = {
            place: cell
            if "partition" in cell.chosen
            else dataclasses.replace(cell, chosen={"source": "real", **cell.chosen})
            for place, cell in self.cells.items()
        }
        return dataclasses.replace(self, cells=cells)

    def _called(self, options: Iterable[tuple[str, str]]) -> str:
        """The arguments, with further options."""
        return " ".join((self.arguments or self.name, *map(shlex.join, options)))

    def lines(self) -> dict[str, list[Cell]]:
        """The cells that compete with one another: by column, or by row if columns compete."""
        if self.compared == "columns":
            return {row: [self.cells[row, column] for column in self.columns] for row in self.rows}
        return {column: [self.cells[row, column] for row in self.rows] for column in self.columns}

    def competitor(self, cell: Cell) -> str:
        """The name under which a cell competes in its line."""
        return cell.column if self.compared == "columns" else cell.row

    def label(self, column: str) -> str:
        """A column's name as printed under its heading, which it need not repeat."""
        return column.removeprefix(self.groups.get(column, "")).strip() or column

    def _running(self, axis: int) -> dict[str, set[str]]:
        """For each algorithm and dataset, the rows (axis 0) or columns (axis 1) that run nothing
        else."""
        runs: dict[tuple[str, str], set[str]] = {}
        for place, cell in self.cells.items():
            for key in {"algo", "dataset"} & cell.chosen.keys():
                runs.setdefault((place[axis], key), set()).add(str(cell.chosen[key]))
        found: dict[str, set[str]] = {}
        for (name, _), values in runs.items():
            if len(values) == 1:
                found.setdefault(values.pop(), set()).add(name)
        return found


def _selected(
    kind: str,
    asked: tuple[str, ...],
    names: tuple[str, ...],
    running: Mapping[str, Collection[str]],
) -> tuple[str, ...]:
    if not asked:
        return names
    meant = {plain(one): some for one, some in running.items()}
    meant |= {plain(name): (name,) for name in names}
    wanted: set[str] = set()
    for one in asked:
        found = meant.get(plain(one)) or _holding(plain(one), names)
        if not found:
            raise unknown(kind, one, (*names, *running))
        wanted |= set(found)
    return tuple(name for name in names if name in wanted)


def _holding(part: str, names: Iterable[str]) -> list[str]:
    """The names that have a part; cifar10 is no part of Cifar100."""
    whole = re.compile(rf"(?<!\d){re.escape(part)}(?!\d)")
    return [name for name in names if part and whole.search(plain(name))]
