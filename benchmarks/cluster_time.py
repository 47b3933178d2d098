"""How long the main table of the paper profile takes on many GPUs: the figures of docs/cluster.md.

    python benchmarks/cluster_time.py [RESULTS]

An estimate by this model: minutes = rounds × minutes per round, for every run. The paper measured
the minutes per round of each method on Tiny-ImageNet with ResNet-18, on one GPU (its overhead
table); other columns follow by the ratio of seconds per trained sample that stored runs have
(RESULTS, by default the reference results of the quick profile) and of the number of samples.
The floor is what no order can beat: all hours shared evenly, or the longest run. Nothing is run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from pfl_bench import data
from pfl_bench.config import RunConfig
from pfl_bench.execution import makespan, work_per_round
from pfl_bench.reporting.tables import load_table
from pfl_bench.store import Store

ROUNDS, SEEDS = 2000, 5
ANCHOR = ("tinyimagenet", "resnet18")


def main() -> None:
    results = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    minutes = minutes_per_round(Store(results))
    # As `plan` lists them: the first seed of every cell, then the second.
    runs = [ROUNDS * each / 60 for _ in range(SEEDS) for each in minutes.values()]
    longest = max(minutes, key=minutes.__getitem__)
    print(f"{len(runs)} runs of {ROUNDS} rounds: {sum(runs):,.0f} GPU hours in all")
    print(f"the longest run: {', '.join(longest)}: {max(runs):,.0f} h")
    print("GPUs   floor   longest first   by the model alone   as listed   (hours)")
    for workers in (8, 16, 32, 64):
        floor = max(sum(runs) / workers, max(runs))
        orders = (sorted(runs, reverse=True), by_model(minutes), runs)
        shown = [f"{hours:,.0f} (+{hours / floor - 1:.1%})" for hours in spans(orders, workers)]
        print(f"{workers:>4}  {floor:6,.0f}   " + "   ".join(shown))


def by_model(minutes: Mapping[tuple[str, str], float]) -> list[float]:
    """Hours in the order chosen before anything is measured: methods are taken to cost the same."""
    columns = list(dict.fromkeys(column for _, column in minutes))
    means = {c: fmean(m for (_, column), m in minutes.items() if column == c) for c in columns}
    places = sorted(list(minutes) * SEEDS, key=lambda place: -means[place[1]])
    return [ROUNDS * minutes[place] / 60 for place in places]


def spans(orders: Iterable[Sequence[float]], workers: int) -> list[float]:
    return [makespan(order, workers) for order in orders]


def minutes_per_round(store: Store) -> dict[tuple[str, str], float]:
    """Of every cell of the main table, by row and column, in the order of the table."""
    paper, measured = published_minutes(), seconds_per_sample(store)
    minutes = {}
    for (row, column), cell in load_table("main").cells.items():
        algo, dataset = cell.chosen["algo"], cell.chosen["dataset"]
        model = cell.chosen.get("model") or data.specs()[dataset].model
        ratio = measured[algo, dataset, model] / measured[algo, *ANCHOR]
        size = whole(dataset) / whole(ANCHOR[0])
        minutes[row, column] = paper.get(algo, paper["fedavg"]) * ratio * size
    return minutes


def whole(dataset: str) -> int:
    """All samples of a dataset."""
    samples = data.specs()[dataset].samples
    assert samples is not None
    return samples


def published_minutes() -> dict[str, float]:
    """The paper's minutes per iteration, by algorithm."""
    cells = load_table("overhead").cells.items()
    return {
        cell.chosen["algo"]: cell.published.mean
        for (_, column), cell in cells
        if column == "minutes per iteration" and cell.published is not None
    }


def seconds_per_sample(store: Store) -> dict[tuple[str, str, str], float]:
    """Of training on it once, evaluation included, by algorithm, dataset and model."""
    spent: dict[tuple[str, str, str], tuple[float, float]] = {}
    for run in store.all():
        if run.status == "finished" and run.summary:
            config = RunConfig.from_dict(run.config)
            name = (config.algo, config.dataset, config.model)
            work, seconds = spent.get(name, (0.0, 0.0))
            samples = data.card(config.dataset, config.source, Path()).samples
            work += run.summary["rounds"] * work_per_round(config) * samples
            spent[name] = (work, seconds + run.summary["total_seconds"])
    return {name: seconds / work for name, (work, seconds) in spent.items()}


if __name__ == "__main__":
    main()
