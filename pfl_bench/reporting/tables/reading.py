"""The YAML file of a table, read and checked.

A spec is a YAML file (the paper's are in tables/, a user's own anywhere):

    caption: what the table shows
    compared: rows                            what competes: the rows of a column, or `columns`
    method: Ours                              the competitor to test against the best other one
    run: {options for every cell}            set: {hyper-parameters for every cell}
    columns:
      - {name: N=10, group: a heading over several columns, run: {…}, set: {…}}
    rows:
      - {name: Ours, rule: true, run: {algo: ours}, set: {…}, published: [[58.36, 0.02], …]}

A cell runs the table's options, overridden by its column's and then by its row's. `published` has
one entry per column: [mean, std], a bare number, `skipped`, `diverged`, or null where the paper is
silent. `rule` draws a line above the row. With `metric: overhead` each column names its `measure`;
with `metric: psnr` an `attack` names knobs of the attack (`threat`), for the table and, as
options do, for a column or a row.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Iterable, Mapping
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
from pfl_bench.config import checked, parse_ratio
from pfl_bench.privacy import Threat
from pfl_bench.reporting.metrics import METRICS, SCORES, SIMILARITIES, brought_metrics
from pfl_bench.reporting.tables.spec import Cell, Published, TableSpec

TABLES = "pfl_bench.tables"
KINDS = ("accuracy", "overhead", "psnr")
COMPARED = ("rows", "columns")
MOST_CELLS = 10_000
LONGEST_NAME = 200

_TABLE_KEYS = (
    "caption", "metric", "score", "compared", "method", "attack", "run", "set", "columns", "rows",
)  # fmt: skip
_COLUMN_KEYS = ("name", "group", "measure", "attack", "run", "set")
_ROW_KEYS = ("name", "rule", "attack", "run", "set", "published")


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
    spec = TableSpec(
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
    try:
        return spec.scored_as_written(content.get("score", spec.score))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


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

    options = checked(chosen, where)
    try:
        if "algo" not in options:
            raise UserError("no algo is given, in the table, its column or its row")
        if "model" in options:
            model_spec(options["model"])
        if "joining_ratio" in options:
            parse_ratio(options["joining_ratio"])
        algorithm = load_algorithm(options["algo"])
        resolve(algorithm.Hyper, options.get("model", ""), hyper, options["algo"])
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
