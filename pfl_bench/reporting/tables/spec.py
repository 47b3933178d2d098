"""What a table is: rows, columns, what each cell runs, and the figure the paper gives.

A spec is a YAML file (the paper's are in tables/, a user's own anywhere):

    caption: what the table shows
    compared: rows                            what competes: the rows of a column, or `columns`
    method: Ours                              the competitor to test against the best other one
    run: {settings for every cell}            set: {hyper-parameters for every cell}
    columns:
      - {name: N=10, group: a heading over several columns, run: {…}, set: {…}}
    rows:
      - {name: Ours, rule: true, run: {algo: ours}, set: {…}, published: [[58.36, 0.02], …]}

A cell runs the table's settings, overridden by its column's and then by its row's. `published` has
one entry per column: [mean, std], a bare number, `skipped`, `diverged`, or null where the paper is
silent. `rule` draws a line above the row. With `metric: overhead` each column names its `measure`;
with `metric: psnr` an `attack` names knobs of the attack (`threat`), for the table and, as
settings do, for a column or a row.
How cells are run and shown is in `plan` and `render`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfl_bench.base import (
    UserError,
    find_yaml,
    packaged_names,
    plain,
    plain_text,
    read_yaml,
    shown,
    unknown,
)
from pfl_bench.config import as_dict, checked, parse_ratio
from pfl_bench.privacy import Threat
from pfl_bench.reporting.metrics import METRICS, SCORES, SIMILARITIES, brought_metrics, metric

TABLES = "pfl_bench.tables"
KINDS = ("accuracy", "overhead", "psnr")
COMPARED = ("rows", "columns")
PAPERS = ("best", "last", "late")
"""The scores that the paper's accuracies may stand beside."""
MOST_CELLS = 10_000
LONGEST_NAME = 200

_TABLE_KEYS = (
    "caption", "metric", "compared", "method", "attack", "run", "set", "columns", "rows",
)  # fmt: skip
_COLUMN_KEYS = ("name", "group", "measure", "attack", "run", "set")
_ROW_KEYS = ("name", "rule", "attack", "run", "set", "published")


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

    @property
    def is_attacked(self) -> bool:
        """Whether the table shows what attacks recover."""
        return self.metric == "psnr"

    @property
    def stem(self) -> str:
        """What its files are called."""
        return self.name if self.score == "best" else f"{self.name}-{self.score}"

    def restricted(self, rows: tuple[str, ...], columns: tuple[str, ...]) -> TableSpec:
        """The same table with some rows and columns only, by their names or what they run.

        Names as printed, in any spelling (`lambda=5`, `fed-avg`); the name of an algorithm or a
        dataset means every row (or column) that runs it, and a part of a name all that have it."""
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


def table_names() -> list[str]:
    return packaged_names(TABLES)


def load_table(name: str) -> TableSpec:
    """A table of the paper by name, or one of the user's own by the path of its file."""
    spec = read_table(find_yaml("table", name, TABLES))
    return dataclasses.replace(spec, arguments=shlex.quote(name))


def read_table(path: Path) -> TableSpec:
    """Read and check a spec; an error names file, key and the nearest valid one."""
    content = read_yaml(path)
    where = repr(str(path))
    _check_keys(content, _TABLE_KEYS, where)
    metric = _choice(content, "metric", KINDS, where)
    compared = _choice(content, "compared", COMPARED, where)
    columns = _entries(content, "columns", _COLUMN_KEYS, where)
    rows = _entries(content, "rows", _ROW_KEYS, where)
    if len(rows) * len(columns) > MOST_CELLS:
        raise UserError(
            f"{where}: {len(rows)} rows × {len(columns)} columns are too many; "
            f"allowed: {MOST_CELLS:,} cells"
        )
    cells = {}
    for row in rows:
        published = _published(row, len(columns), where)
        for column, figure in zip(columns, published, strict=True):
            place = row["name"], column["name"]
            here = f"{where}, row {place[0]!r}, column {place[1]!r}"
            chosen = _layered("run", (content, column, row), where)
            hyper = _layered("set", (content, column, row), where)
            _check_run(chosen, hyper, here)
            measure = _measure(column, metric, where)
            threat = _threat((content, column, row), metric, where)
            cells[place] = Cell(*place, chosen, hyper, figure, measure, threat)
    competitors = [entry["name"] for entry in (rows if compared == "rows" else columns)]
    method = content.get("method")
    if method is not None and method not in competitors:
        raise UserError(f"{where}: {unknown('method', method, competitors)}")
    return TableSpec(
        path.stem,
        plain_text(content.get("caption", path.stem), f"{where}: the caption"),
        metric,
        tuple(row["name"] for row in rows),
        tuple(column["name"] for column in columns),
        cells,
        compared,
        method,
        {
            column["name"]: plain_text(column["group"], f"{where}: a group of columns")
            for column in columns
            if column.get("group")
        },
        frozenset(row["name"] for row in rows if row.get("rule")),
        shlex.quote(str(path)),
    )


def _threat(layers: Iterable[Mapping[str, Any]], metric: str, where: str) -> Threat | None:
    """The attack of a cell that shows one, which no other may name."""
    layers = tuple(layers)
    if metric != "psnr":
        if any("attack" in layer for layer in layers):
            raise UserError(f"{where}: 'attack' belongs to tables with 'metric: psnr'")
        return None
    chosen = _layered("attack", layers, where)
    try:
        return Threat.of(chosen)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _choice(content: Mapping[str, Any], key: str, allowed: tuple[str, ...], where: str) -> str:
    """One of a few words, the first if none is given."""
    value = content.get(key, allowed[0])
    if value not in allowed:
        raise UserError(f"{where}: {unknown(key, value, allowed)}")
    return value


def _entries(
    content: Mapping[str, Any], key: str, allowed: tuple[str, ...], where: str
) -> list[dict[str, Any]]:
    entries = content.get(key)
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{where}: {key!r} must be a list of at least one entry with a name")
    seen = set()
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise UserError(
                f"{where}: each entry of {key!r} needs a name (text), not {shown(entry)}"
            )
        name = entry["name"]
        _check_keys(entry, allowed, f"{where}, {key} {shown(name)}")
        if "," in name or not name.strip():
            raise UserError(
                f"{where}: the name {shown(name)} in {key!r} must not be empty or hold a comma, "
                f"which separates names in --{key}"
            )
        if not name.isprintable() or len(name) > LONGEST_NAME:
            raise UserError(
                f"{where}: the name {shown(name)} in {key!r} must be one line of at most "
                f"{LONGEST_NAME} characters"
            )
        if plain(name) in seen:
            raise UserError(f"{where}: {key!r} has two entries named {shown(name)}")
        seen.add(plain(name))
    return entries


def _check_keys(content: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    for key in content:
        if key not in allowed:
            raise UserError(f"{where}: {unknown('key', key, allowed)}")


def _layered(key: str, layers: Iterable[Mapping[str, Any]], where: str) -> dict[str, Any]:
    """The blocks under `key`, each overriding those before it."""
    merged: dict[str, Any] = {}
    for entry in layers:
        block = entry.get(key) or {}
        if not isinstance(block, dict):
            raise UserError(f"{where}: {key!r} must hold names and values, not {shown(block)}")
        merged |= block
    return merged


def _check_run(chosen: Mapping[str, Any], hyper: Mapping[str, Any], where: str) -> None:
    """Refuse what no run can take. Whether the dataset is there is for the planning to say."""
    from pfl_bench.config import resolve
    from pfl_bench.models import model_spec
    from pfl_bench.plugins import load_algorithm

    settings = checked(chosen, where)
    try:
        if "algo" not in settings:
            raise UserError("no algo is given, in the table, its column or its row")
        if "model" in settings:
            model_spec(settings["model"])
        if "joining_ratio" in settings:
            parse_ratio(settings["joining_ratio"])
        algorithm = load_algorithm(settings["algo"])
        resolve(algorithm.Hyper, settings.get("model", ""), hyper, settings["algo"])
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _measure(column: Mapping[str, Any], metric: str, where: str) -> str:
    """What a column's cells show: the table's metric, or one of the measures of overhead."""
    measure = column.get("measure")
    here = f"{where}, column {column['name']!r}"
    if metric != "overhead":
        if measure is not None:
            raise UserError(f"{here}: 'measure' belongs to tables with 'metric: overhead'")
        return metric
    allowed = [n for n in METRICS if n not in (*KINDS, *SCORES.values(), *SIMILARITIES)]
    allowed += brought_metrics()
    if measure not in allowed:
        raise UserError(f"{here}: {unknown('measure', measure, allowed)}")
    return measure


def _published(row: Mapping[str, Any], columns: int, where: str) -> list[Published | None]:
    figures = row.get("published")
    if figures is None:
        return [None] * columns
    if not isinstance(figures, list) or len(figures) != columns:
        raise UserError(
            f"{where}, row {row['name']!r}: 'published' must have one entry per column ({columns})"
        )
    return [_figure(figure, f"{where}, row {row['name']!r}") for figure in figures]


def _figure(figure: Any, where: str) -> Published | None:
    match figure:
        case None:
            return None
        case "skipped" | "diverged":
            return Published(status=figure)
        case int() | float() if _is_number(figure):
            return Published(float(figure))
        case [mean, std] if _is_number(mean) and _is_number(std):
            return Published(float(mean), float(std))
    raise UserError(
        f"{where}: {shown(figure)} is no figure; "
        "allowed: [mean, std], a number, skipped, diverged, null"
    )


def _is_number(value: Any) -> bool:
    """Whether it can be printed as a figure, unlike `true`, which is an integer too, and NaN."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


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
