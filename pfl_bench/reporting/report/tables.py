"""What the report says of the tables: every table of which something is stored, as plain values.

What a table says is decided in `content`. The data itself is not needed: which runs a cell means is
told from the fingerprints that the stored runs bear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pfl_bench import data
from pfl_bench.config import Profile, RunConfig
from pfl_bench.reporting.metrics import metric
from pfl_bench.reporting.read_store import ReadStore
from pfl_bench.reporting.report.runs import UNREADABLE, checked_config, method_title
from pfl_bench.reporting.tables import (
    CellPlan,
    Content,
    Entry,
    TablePlan,
    TableSpec,
    blocks,
    fingerprints,
    lay_out,
    plan_table,
)
from pfl_bench.store import Configuration, StoredRun

MOST_SEEDS = 1000
SCORES = ("best", "last", "clients", "spread", "worst")
"""What a table of accuracies can be switched to: all that the summaries of runs say."""


class ReadResults(ReadStore):
    """The results that can be shown: those whose configuration can be read."""

    def __init__(self, root: Path, runs: Iterable[StoredRun]) -> None:
        readable: dict[str, StoredRun] = {}
        self._seeds: dict[str, set[int]] = {}
        for run in runs:
            if not run.is_final:
                continue
            try:
                config = checked_config(run)
            except UNREADABLE:
                continue
            readable[run.key] = run
            self._seeds.setdefault(_seedless(config), set()).add(config.seed)
        super().__init__(root, readable.values())
        self._prints = fingerprints(readable.values())

    def find(self, config: Configuration) -> StoredRun | None:
        run = self._final.get(config.key)
        return run and run.until(config.rounds, config.patience)

    def fingerprint(self, name: str, source: str, data_dir: Path) -> str:
        """Of the data that most stored runs have used; no stored run bears an empty one."""
        return next(iter(self._prints.get((name, source), [])), "")

    def seeds(self, first: RunConfig) -> int:
        """How many seeds from `first` on it takes to reach the last stored one."""
        stored = self._seeds.get(_seedless(first), set())
        beyond = [1 + seed - first.seed for seed in stored if seed >= first.seed]
        return min(MOST_SEEDS, max(beyond, default=0))


def _seedless(config: RunConfig) -> str:
    return replace(config, seed=0).key


def tables(
    results: ReadResults, specs: Sequence[TableSpec], profiles: Sequence[Profile], data_dir: Path
) -> list[dict[str, Any]]:
    """Every table under every profile that has something to show, the fullest first."""
    with_intervals = [spec.with_intervals("seeds") for spec in specs]
    plans = (
        _plan(results, spec, profile, data_dir) for profile in profiles for spec in with_intervals
    )
    contents = (lay_out(plan) for plan in plans if plan is not None)
    weighed = [
        (sum(map(_says_something, content.entries.values())), content) for content in contents
    ]
    weighed.sort(key=lambda pair: -pair[0])
    return [_switched(content) for weight, content in weighed if weight]


def _switched(content: Content) -> dict[str, Any]:
    """A table, with what it says by other scores under `others`."""
    plan, spec = content.plan, content.plan.spec
    scores = SCORES if spec.metric == "accuracy" and spec.score in SCORES else ()
    specs = {score: spec.scored(score) for score in scores}
    return {
        **_told(content),
        "score": spec.score,
        "scores": {score: _title(by) for score, by in specs.items()},
        "others": {
            score: _told(lay_out(plan.retold(by))) for score, by in specs.items() if by != spec
        },
    }


def _title(spec: TableSpec) -> str:
    return metric(next(iter(spec.cells.values())).measure).title


def _plan(
    results: ReadResults, spec: TableSpec, profile: Profile, data_dir: Path
) -> TablePlan | None:
    """The table with as many seeds as its fullest cell has; None where nothing is stored of it."""
    first = plan_table(spec, profile, 1, results, data_dir, results.fingerprint)
    seeds = max(
        (results.seeds(c) for cell in first.cells.values() for c in cell.configs), default=0
    )
    if not seeds:
        return None
    plan = plan_table(spec, profile, seeds, results, data_dir, results.fingerprint)
    return replace(_trimmed(plan), remarks=results.remarks())


def _trimmed(plan: TablePlan) -> TablePlan:
    """Without the seeds that no cell shows, though another table may."""
    last = (k for cell in plan.cells.values() for k, run in enumerate(cell.runs) if run is not None)
    seeds = 1 + max(last, default=0)
    cells = {
        place: replace(cell, configs=cell.configs[:seeds], runs=cell.runs[:seeds])
        for place, cell in plan.cells.items()
    }
    return replace(plan, seeds=seeds, cells=cells)


def _says_something(entry: Entry) -> bool:
    return entry.mean is not None or entry.mark is not None


def _told(content: Content) -> dict[str, Any]:
    plan, spec = content.plan, content.plan.spec
    return {
        "id": f"{spec.name}-{plan.profile.name}",
        "name": spec.name,
        "profile": plan.profile.name,
        "standin": any(entry.standin for entry in content.entries.values()),
        "caption": spec.caption,
        "terms": content.facts.get("Data", ""),
        "corner": "" if spec.compared == "columns" else "method",
        "columns": [
            {"name": column, "group": spec.groups.get(column, ""), "label": spec.label(column)}
            for column in spec.columns
        ],
        "rows": [
            {
                "name": row,
                "rule": row in spec.rules and row != spec.rows[0],
                "cells": [
                    _cell(content.entries[row, column], plan.cells[row, column])
                    for column in spec.columns
                ],
            }
            for row in spec.rows
        ],
        "footnotes": list(content.footnotes.items()),
        "facts": [(n, text) for n, text in content.facts.items() if n not in ("Command", "Data")],
        "command": content.facts.get("Command"),
        "compared": [asdict(block) for block in blocks(content)],
    }


def _cell(entry: Entry, plan: CellPlan) -> dict[str, Any]:
    """A cell's two lines, what it is sorted by, and what it is filtered by."""
    config = plan.configs[0] if plan.configs else None
    return {
        "figure": replace(entry, interval=None).text,
        "interval": entry.span,
        "beside": entry.beside,
        "mark": entry.mark,
        "best": entry.is_best,
        "value": entry.mean,
        "paper": _paper(entry),
        "better": "low" if entry.measure.lower_is_better else "high",
        "method": method_title(config.algo) if config else "",
        "dataset": data.title(config.dataset, config.source) if config else "",
        "setting": config.setting_label if config else "",
        "keys": [run.key for run in plan.runs if run is not None],
    }


def _paper(entry: Entry) -> float | None:
    """What stands for the paper in sorting: its figure, or on stand-in data its rank."""
    if not entry.standin:
        return entry.published.mean if entry.published else None
    if entry.ranks is None:
        return None
    return float(entry.ranks.paper if entry.measure.lower_is_better else -entry.ranks.paper)
