"""The file of tuned values: written by `tune`, read by `table --tuned`.

It says for which table the values were found and how, and is small enough to be printed in an
appendix. Nothing in it is executed; what it sets is checked as if it had been typed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pfl_bench.base import UserError, read_yaml, shown, unknown, write_atomically
from pfl_bench.config import checked, resolve
from pfl_bench.plugins import load_algorithm
from pfl_bench.reporting.tables import Cell, Place, TableSpec
from pfl_bench.tuning.draws import LR
from pfl_bench.tuning.trials import Choice, Effort

_KEYS = ("table", "profile", "budget", "halving", "validation", "seeds", "command", "cells")
_NEEDED = ("table", "profile", "budget", "seeds", "cells")
_CELL_KEYS = (
    "row", "column", "run", "set", "validation_accuracy", "at_defaults", "searched", "untuned",
)  # fmt: skip


@dataclass(frozen=True)
class Tuned:
    """Tuned values as a file has them."""

    path: Path
    table: str
    profile: str
    budget: int
    halving: bool
    seeds: tuple[int, ...]
    values: Mapping[Place, tuple[Mapping[str, Any], Mapping[str, Any]]]
    """For each cell, options and hyper-parameters."""
    untuned: Mapping[Place, str]
    """The cells for which nothing was found, with the reason."""

    def applied(self, spec: TableSpec) -> TableSpec:
        """The table with these values in its cells, which all must have some."""
        where = repr(str(self.path))
        if self.table != spec.name:
            raise UserError(
                f"{where}: these values were tuned for the table {self.table!r}, not for "
                f"{spec.name!r}"
            )
        for place in spec.cells:
            if place not in self.values and place not in self.untuned:
                raise UserError(
                    f"{where}: nothing was tuned for the row {place[0]!r}, column {place[1]!r}; "
                    "tune it too, or leave it out with --rows and --columns"
                )
        cells = {place: self._set(cell, where) for place, cell in spec.cells.items()}
        left = [f"{row} in {column}" for row, column in spec.cells if (row, column) in self.untuned]
        return spec.tuned(cells, self._told(left), self.seeds, str(self.path))

    def _set(self, cell: Cell, where: str) -> Cell:
        run, hyper = self.values.get((cell.row, cell.column), ({}, {}))
        here = f"{where}, row {cell.row!r}, column {cell.column!r}"
        options = checked(run, here)
        for name in options:
            if name != LR:
                raise UserError(f"{here}: {unknown('tuned setting', name, [LR])}")
        algo = cell.chosen["algo"]
        try:
            resolve(load_algorithm(algo).Hyper, cell.chosen.get("model", ""), hyper, algo)
        except UserError as error:
            raise UserError(f"{here}: {error}") from None
        return dataclasses.replace(
            cell, chosen={**cell.chosen, **options}, hyper={**cell.hyper, **hyper}
        )

    def _told(self, left: Sequence[str]) -> str:
        halving = " with successive halving" if self.halving else ""
        seeds = ", ".join(map(str, self.seeds))
        exceptions = f"; untuned: {', '.join(left)}" if left else ""
        return (
            f"tuned, budget {self.budget}{halving}: the best of {self.budget} configurations of "
            f"every cell by validation accuracy, under the profile {self.profile} with the seed"
            f"{'s' if len(self.seeds) > 1 else ''} {seeds}, which no run of this table has"
            f"{exceptions}"
        )


def write_tuned(
    path: Path,
    spec: TableSpec,
    profile: str,
    effort: Effort,
    validation: float,
    choices: Sequence[Choice],
    command: str,
) -> None:
    content = {
        "table": spec.name,
        "profile": profile,
        "budget": effort.budget,
        "halving": effort.halving,
        "validation": validation,
        "seeds": effort.seed_list,
        "command": command,
        "cells": [_written(choice) for choice in choices],
    }
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    write_atomically(path, text)


def _written(choice: Choice) -> dict[str, Any]:
    row, column = choice.place
    found: dict[str, Any] = {"row": row, "column": column}
    if choice.draw is None:
        return {**found, "untuned": choice.reason, "searched": dict(choice.ranges)}
    return {
        **found,
        "run": dict(choice.draw.run),
        "set": dict(choice.draw.hyper),
        "validation_accuracy": _percent(choice.score),
        "at_defaults": _percent(choice.default_score),
        "searched": dict(choice.ranges),
    }


def _percent(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def read_tuned(path: Path) -> Tuned:
    """Read and check a file of tuned values; whether they fit a table is for `applied` to say."""
    content, where = read_yaml(path), repr(str(path))
    for key in content:
        if key not in _KEYS:
            raise UserError(f"{where}: {unknown('key', key, _KEYS)}")
    for key in _NEEDED:
        if key not in content:
            raise UserError(f"{where}: it does not say {key!r}; is it a file that `tune` wrote?")
    budget, seeds, cells = (content[key] for key in ("budget", "seeds", "cells"))
    if not _is_count(budget) or budget < 1:
        raise UserError(f"{where}: budget cannot be {shown(budget)}; allowed: 1 or more")
    if not isinstance(seeds, list) or not seeds or not all(map(_is_count, seeds)):
        raise UserError(f"{where}: seeds cannot be {shown(seeds)}; allowed: a list of numbers")
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise UserError(f"{where}: cells must be a list of rows and columns with their values")
    values, untuned = {}, {}
    for cell in cells:
        place = _place(cell, where)
        if place in values or place in untuned:
            raise UserError(f"{where}: the cell {place[0]!r}, {place[1]!r} is there twice")
        if "untuned" in cell:
            untuned[place] = str(cell["untuned"])
        else:
            values[place] = (_block(cell, "run", where), _block(cell, "set", where))
    return Tuned(
        path,
        str(content["table"]),
        str(content["profile"]),
        budget,
        content.get("halving") is True,
        tuple(seeds),
        values,
        untuned,
    )


def _place(cell: Mapping[str, Any], where: str) -> Place:
    for key in cell:
        if key not in _CELL_KEYS:
            raise UserError(f"{where}: {unknown('key of a cell', key, _CELL_KEYS)}")
    row, column = cell.get("row"), cell.get("column")
    if not isinstance(row, str) or not isinstance(column, str):
        raise UserError(f"{where}: a cell needs a row and a column, not {shown(dict(cell))}")
    return row, column


def _block(cell: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    block = cell.get(key) or {}
    if not isinstance(block, dict) or not all(isinstance(name, str) for name in block):
        raise UserError(f"{where}: {key!r} must hold names and values, not {shown(block)}")
    return block


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
