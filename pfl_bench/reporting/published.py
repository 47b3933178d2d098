"""The paper's accuracy for an experiment, found in its tables."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from pfl_bench.config import RunConfig, load_profile
from pfl_bench.execution import configure
from pfl_bench.models import model_spec
from pfl_bench.reporting.tables import load_table, table_names


def published_accuracy(config: RunConfig) -> float | None:
    """In percent. How much of the data, of which size, how many iterations and which seed do not
    matter, nor whether a small relative learns in the place of the paper's model."""
    return _figures().get(_experiment(config))


@cache
def _figures() -> dict[str, float]:
    """By experiment; the main table's figure where several tables give one."""
    paper = load_profile("paper")
    found: dict[str, float] = {}
    for name in sorted(table_names(), key=lambda name: name != "main"):
        table = load_table(name)
        for cell in table.cells.values() if table.metric == "accuracy" else ():
            if cell.published is not None and cell.published.mean is not None:
                config = configure(paper, cell.chosen, cell.hyper, Path(), lambda *_: "")
                found.setdefault(_experiment(config), cell.published.mean)
    return found


def _experiment(config: RunConfig) -> str:
    spec = model_spec(config.model)
    model = spec.small_relative_of or config.model
    return replace(
        config,
        model=model,
        lr=model_spec(model).lr if config.lr == spec.lr else config.lr,
        image_size=None,
        source="",
        data_fingerprint="",
        fraction=1.0,
        partition_seed=0,
        rounds=1,
        eval_every=1,
        patience=None,
        seed=0,
        record=(),
    ).key
