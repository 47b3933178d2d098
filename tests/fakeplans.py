"""Table plans made by hand for tests: runs with given accuracies, as if they had been stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toy import toy_config

from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.reporting.tables.plan import CellPlan, TablePlan
from pfl_bench.reporting.tables.spec import Cell, Published, TableSpec
from pfl_bench.store.records import RoundRecord, summarise
from pfl_bench.store.stored_run import StoredRun

Place = tuple[str, str]
PROFILE = Profile("quick", "for tests", {}, {}, {})
ORIGIN = {
    "pfl_bench": "0.1.0",
    "python": "3.12.1",
    "torch": "2.9.0",
    "finished": "2024-05-06T07:08:09+00:00",
    "peak_memory": 2_500_000_000,
}
NOWHERE = Path("no-folder")


def stored(
    config: RunConfig, accuracy: float | None = None, status: str = "finished", **summary: Any
) -> StoredRun:
    """A run whose best round has `accuracy` percent."""
    best = None if accuracy is None else {"accuracy": accuracy / 100, "round": 1}
    content = {"best": best, "status": status, "reason": None, "provenance": ORIGIN, **summary}
    return StoredRun(NOWHERE / f"run-{config.key}", config.to_dict(), content, status)


def stored_rounds(
    folder: Path, config: RunConfig, correct: Sequence[int], seconds: Sequence[float], **each: Any
) -> StoredRun:
    """A run on disk with so many correct of 1000 test samples, and so many seconds, per round."""
    records = [
        RoundRecord(
            number, [0, 1], [right], [1000], [1.0], 1.0, seconds={"total": took}, **each
        )
        for number, (right, took) in enumerate(zip(correct, seconds, strict=True), start=1)
    ]  # fmt: skip
    home = folder / f"run-{config.key}"
    home.mkdir(parents=True)
    (home / "rounds.jsonl").write_text("".join(record.to_line() for record in records))
    summary = {**summarise(records), "status": "finished", "reason": None, "provenance": ORIGIN}
    return StoredRun(home, config.to_dict(), summary, "finished", home=home)


def cell_plan(
    place: Place,
    accuracies: Sequence[float | None],
    published: Published | None = None,
    *,
    source: str = "real",
    measure: str = "accuracy",
    runs: Sequence[StoredRun | None] | None = None,
    impossible: str | None = None,
) -> CellPlan:
    """A cell with one seed per accuracy; None is a seed that has not run."""
    base = toy_config(source=source)
    configs = tuple(replace(base, seed=seed) for seed in range(len(accuracies)))
    made = [
        None if value is None else stored(config, value)
        for config, value in zip(configs, accuracies, strict=True)
    ]
    cell = Cell(*place, {"algo": "fedavg"}, {}, published, measure)
    return CellPlan(cell, configs, tuple(made if runs is None else runs), impossible)


def table_plan(cells: Sequence[CellPlan], seeds: int = 5, **spec: Any) -> TablePlan:
    """A table of the given cells, its rows and columns in the order in which they appear."""
    places: Mapping[Place, CellPlan] = {(one.cell.row, one.cell.column): one for one in cells}
    facts = {
        "name": "toy",
        "caption": "A toy table.",
        "metric": "accuracy",
        "rows": tuple(dict.fromkeys(row for row, _ in places)),
        "columns": tuple(dict.fromkeys(column for _, column in places)),
        "cells": {place: one.cell for place, one in places.items()},
        **spec,
    }
    return TablePlan(TableSpec(**facts), PROFILE, seeds, places)
