"""Tables of one column that take a second, for tests of what runs them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pfl_bench.config.options import Profile
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.plugins import registry
from pfl_bench.plugins.registry import load_plugin
from pfl_bench.reporting.tables.plan import TablePlan, plan_table
from pfl_bench.reporting.tables.spec import Cell, TableSpec
from pfl_bench.store.records import RoundRecord
from pfl_bench.store.store import Store

PROFILE = Profile("tiny", "", {"source": "standin", "rounds": 2, "fraction": 0.02}, {}, {})
CHOSEN = {"dataset": "mnist", "clients": 3, "beta": 1.0}

PLUGIN = """
import os, signal, time
from pfl_bench.engine.algorithm import Algorithm

class Own(Algorithm):
    title, summary, citation, scored_model = "Own", "Own.", "none", "the global model"

    def train(self, client, received):
        {step}
        super().train(client, received)
"""


@contextlib.contextmanager
def loaded_plugins(folder: Path, steps: Mapping[str, str]) -> Iterator[tuple[Path, ...]]:
    """An algorithm for each of `steps`, which it takes before its training."""
    paths = tuple(folder / f"{name}.py" for name in steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_files", dict(registry._files))
        for path in paths:
            path.write_text(PLUGIN.format(step=steps[path.stem]))
            load_plugin(path)
        yield paths


def small_spec(*algos: str, metric: str = "accuracy") -> TableSpec:
    cells = {
        (algo, "only"): Cell(algo, "only", {**CHOSEN, "algo": algo}, {}, None) for algo in algos
    }
    return TableSpec("mine", "a table", metric, algos, ("only",), cells)


def small_plan(spec: TableSpec, store: Store, seeds: int = 1, rounds: int = 2) -> TablePlan:
    profile = replace(PROFILE, run={**PROFILE.run, "rounds": rounds})
    return plan_table(spec, profile, seeds, store, Path("no-data"))


def computed_here(plan: TablePlan, store: Store) -> dict[str, list[RoundRecord]]:
    """The records of the plan's runs, computed one by one in this process."""
    options = Execution(Path("no-data"), workers=1)
    configs = [run.config for run in plan.missing()]
    return {config.key: execute(config, store, options).records() for config in configs}
