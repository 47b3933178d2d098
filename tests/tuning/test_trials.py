"""What is taken: the best by validation, found again here by running everything by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from smalltables import CHOSEN, PROFILE

from pfl_bench.base.errors import UserError
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.reporting.tables.spec import Cell, TableSpec
from pfl_bench.store.records import VALIDATION, same_result
from pfl_bench.store.store import Store
from pfl_bench.tuning.draws import Draw, draws
from pfl_bench.tuning.trials import FIRST_SEED, Choice, Effort, planned_runs, tune

NOWHERE = Path("no-data")
OPTIONS = Execution(NOWHERE, workers=1)
ROUNDS = 4
RUNS = replace(PROFILE, run={**PROFILE.run, "rounds": ROUNDS, "fraction": 0.05})


def spec(*algos: str, **run: object) -> TableSpec:
    chosen = {**CHOSEN, "validation": 0.3, **run}
    cells = {(a, "only"): Cell(a, "only", {**chosen, "algo": a}, {}, None) for a in algos}
    return TableSpec("mine", "a table", "accuracy", algos, ("only",), cells)


def by_hand(table: TableSpec, algo: str, draw: Draw, seeds: int, folder: Path) -> float:
    """The mean over seeds of the best validation accuracy, from records of runs of its own."""
    cell, scores = table.cells[algo, "only"], []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        chosen = {**cell.chosen, **draw.run, "seed": seed}
        config = configure(RUNS, chosen, dict(draw.hyper), NOWHERE)
        records = execute(config, Store(folder), OPTIONS).records()
        counts = [record.extras[VALIDATION] for record in records]
        scores.append(max(sum(c["correct"]) / sum(c["total"]) for c in counts))
    return 100 * sum(scores) / len(scores)


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_best_by_validation_is_taken(tmp_path: Path, seeds: int) -> None:
    table = spec("fedavg", "fedprox")
    found, failures = tune(table, RUNS, Effort(3, seeds), Store(tmp_path / "a"), OPTIONS)
    assert not failures
    for choice, algo in zip(found, ("fedavg", "fedprox"), strict=True):
        tried = draws(table.cells[algo, "only"], 3)
        scores = [by_hand(table, algo, draw, seeds, tmp_path / "b") for draw in tried]
        assert choice.score == pytest.approx(max(scores))
        assert choice.draw == tried[scores.index(max(scores))]
        assert choice.default_score == pytest.approx(scores[0])


def test_halving_gives_up_the_worse_half_after_a_part_of_the_rounds(tmp_path: Path) -> None:
    """By hand: four for two rounds, the better two of them for all four."""
    table, store = spec("fedavg"), Store(tmp_path / "a")
    (choice,), _ = tune(table, RUNS, Effort(4, halving=True), store, OPTIONS)
    tried = draws(table.cells["fedavg", "only"], 4)
    early = spec("fedavg", rounds=2)
    first = [by_hand(early, "fedavg", draw, 1, tmp_path / "b") for draw in tried]
    better = sorted(range(4), key=lambda k: (-first[k], k))[:2]
    last = {k: by_hand(table, "fedavg", tried[k], 1, tmp_path / "b") for k in better}
    best = max(sorted(last), key=last.__getitem__)
    assert choice.draw == tried[best] and choice.score == pytest.approx(last[best])
    lengths = sorted(len(run.records()) for run in store.all())
    assert lengths == [2, 2, ROUNDS, ROUNDS]


def test_what_goes_on_is_the_run_that_was_begun(tmp_path: Path) -> None:
    table, store = spec("fedper"), Store(tmp_path / "a")
    (choice,), _ = tune(table, RUNS, Effort(4, halving=True), store, OPTIONS)
    assert choice.draw is not None
    chosen = {**table.cells["fedper", "only"].chosen, **choice.draw.run, "seed": FIRST_SEED}
    config = configure(RUNS, chosen, {}, NOWHERE)
    continued, fresh = store.find(config), execute(config, Store(tmp_path / "b"), OPTIONS)
    assert continued is not None
    assert continued.summary["provenance"]["resumed_after_round"] == 2  # type: ignore[index]
    for a, b in zip(continued.records(), fresh.records(), strict=True):
        assert same_result(a, b)


@pytest.mark.parametrize(
    ("budget", "halving", "rungs"),
    [
        (8, True, [(8, 4), (4, 2), (2, 1)]),
        (8, False, [(8, 1)]),
        (5, True, [(5, 2), (3, 1)]),
        (3, True, [(3, 1)]),
        (1, True, [(1, 1)]),
    ],
)
def test_the_rungs_of_halving(budget: int, halving: bool, rungs: list[tuple[int, int]]) -> None:
    assert Effort(budget, halving=halving).rungs == rungs


def test_tuning_again_runs_nothing(tmp_path: Path) -> None:
    table, store, effort = spec("fedavg"), Store(tmp_path), Effort(2)
    assert planned_runs(table, RUNS, effort, store, OPTIONS) == (2, 2)
    first = tune(table, RUNS, effort, store, OPTIONS)
    assert planned_runs(table, RUNS, effort, store, OPTIONS) == (2, 0)
    assert tune(table, RUNS, effort, store, OPTIONS) == first


def test_a_method_that_cannot_run_is_left_untuned_with_the_reason(tmp_path: Path) -> None:
    (choice,), _ = tune(
        spec("perfedavg", batch_size=100), RUNS, Effort(2), Store(tmp_path), OPTIONS
    )
    assert isinstance(choice, Choice) and choice.draw is None
    assert "needs two batches" in (choice.reason or "")


@pytest.mark.parametrize("budget", [0, -1, 1001])
def test_a_budget_of_nothing_is_refused(budget: int) -> None:
    with pytest.raises(UserError, match=f"budget cannot be {budget}; allowed: a whole number from"):
        Effort(budget)


def test_a_table_that_holds_nothing_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be tuned: it holds back no training samples"):
        tune(spec("fedavg", validation=0), RUNS, Effort(1), Store(tmp_path), OPTIONS)


def test_no_seed_of_a_table_is_a_seed_of_tuning() -> None:
    assert not set(range(1000)) & set(Effort(1, 1000).seed_list)
