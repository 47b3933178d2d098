"""Scores by validation and of clients never seen: figures by hand, and what tables say of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakeplans import ORIGIN, cell_plan, stored, table_plan
from toy import toy_config

from pfl_bench.base.errors import UserError
from pfl_bench.reporting.metrics import metric
from pfl_bench.reporting.tables.caption import facts
from pfl_bench.reporting.tables.plan import TablePlan
from pfl_bench.reporting.tables.reading import load_table, read_table
from pfl_bench.store.records import NEWCOMERS, VALIDATION, RoundRecord, summarise
from pfl_bench.store.stored_run import StoredRun


def run(folder: Path, *rounds: dict[str, list[int]]) -> StoredRun:
    """A run of two clients with ten test samples each; `test`, `held` (of 5) and `new` (of 4 and
    of 8) are the correct ones."""
    records = [
        RoundRecord(
            number,
            [0, 1],
            each["test"],
            [10, 10],
            [1.0, 1.0],
            extras={
                key: {"correct": each[name], "total": total}
                for name, key, total in (("held", VALIDATION, [5, 5]), ("new", NEWCOMERS, [4, 8]))
                if name in each
            },
        )
        for number, each in enumerate(rounds, start=1)
    ]
    home = folder / f"run-{toy_config().key}"
    home.mkdir(parents=True)
    (home / "rounds.jsonl").write_text("".join(record.to_line() for record in records))
    summary = {**summarise(records), "status": "finished", "reason": None, "provenance": ORIGIN}
    return StoredRun(home, toy_config().to_dict(), summary, "finished", home=home)


def test_scores_are_read_in_the_round_that_validation_chose(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        {"test": [9, 9], "held": [1, 1], "new": [4, 8]},
        {"test": [6, 3], "held": [4, 5], "new": [1, 6]},
        {"test": [8, 8], "held": [2, 5], "new": [4, 4]},
    )
    assert metric("accuracy").read(found) == pytest.approx(45.0)
    assert metric("validated_accuracy").read(found) == pytest.approx(45.0)
    assert metric("validation_accuracy").read(found) == pytest.approx(90.0)
    assert metric("mean_over_clients").read(found) == pytest.approx(45.0)
    assert metric("new_accuracy").read(found) == pytest.approx(100 * 7 / 12)
    assert metric("new_mean_over_clients").read(found) == pytest.approx(50.0)


def test_a_run_that_holds_nothing_back_has_no_validated_score(tmp_path: Path) -> None:
    found = run(tmp_path, {"test": [6, 3]})
    assert metric("accuracy").read(found) == pytest.approx(45.0)
    for name in ("validated_accuracy", "validation_accuracy", "new_accuracy"):
        assert metric(name).read(found) is None


def plan(validation: float, new_clients: int = 0, score: str = "best") -> TablePlan:
    cell = cell_plan(("FedAvg", "toy"), [None])
    changes = {"validation": validation, "new_clients": new_clients}
    configs = tuple(replace(config, **changes) for config in cell.configs)
    return table_plan([replace(cell, configs=configs)], score=score)


def test_the_caption_says_what_chose_the_best_round() -> None:
    assert facts(plan(0.0))["Best round"] == "chosen by test accuracy, as published"
    assert facts(plan(0.25))["Best round"].startswith("chosen by the accuracy on 25 % of each")
    assert "Best round" not in facts(plan(0.25, score="last"))


def test_the_caption_says_how_many_never_join() -> None:
    assert facts(plan(0.0, 2))["New clients"].startswith("2 of 4 clients never join")
    assert "New clients" not in facts(plan(0.0))


def test_what_takes_no_training_is_not_told_of_clients_for_whom_it_is_not_known() -> None:
    known = {"classes": 4, "majority_correct": [3, 2], "tested": 10}
    told = stored(toy_config(), 40.0, reference=known)
    cell = cell_plan(("FedAvg", "toy"), [None], runs=[told])
    assert "50.00 and 25.00 %" in facts(table_plan([cell]))["Without training"]
    assert "Without training" not in facts(table_plan([cell], score="new"))


def test_a_table_can_name_its_score() -> None:
    spec = load_table("new_clients")
    assert spec.score == "new" and spec.stem == "new_clients"
    assert {cell.measure for cell in spec.cells.values()} == {"new_accuracy"}
    seen = spec.scored("best")
    assert seen.stem == "new_clients-best"
    assert {cell.measure for cell in seen.cells.values()} == {"accuracy"}


def test_a_table_that_names_no_score_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("score: bset\nrun: {algo: fedavg}\ncolumns: [{name: a}]\nrows: [{name: b}]\n")
    with pytest.raises(UserError, match=r"mine.yaml.*unknown score 'bset'; did you mean 'best'"):
        read_table(path)


def test_methods_can_stand_below_the_rows_of_a_table() -> None:
    spec = load_table("main").extended(["fedavg_ft", "fedprox-ft"])
    assert spec.rows == (*load_table("main").rows, "FedAvg + FT", "FedProx + FT")
    assert spec.rules - load_table("main").rules == {"FedAvg + FT"}
    added = [cell for (row, _), cell in spec.cells.items() if row == "FedProx + FT"]
    assert {cell.chosen["algo"] for cell in added} == {"fedprox_ft"}
    assert len(added) == len(spec.columns) and not any(cell.published for cell in added)
    assert spec.arguments == "main --add-rows fedavg_ft,fedprox_ft"


@pytest.mark.parametrize(
    ("name", "algo", "said"),
    [
        ("main", "fedavg_tf", "unknown algorithm 'fedavg_tf'; did you mean 'fedavg_ft'"),
        ("main", "fedavg", "--add-rows fedavg does not go with 'main'"),
        ("ablation", "fedavg", "--add-rows fedavg does not go with 'ablation'"),
    ],
)
def test_methods_that_cannot_stand_there_are_refused(name: str, algo: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_table(name).extended([algo])


def test_settings_for_every_cell_win_and_are_part_of_the_command() -> None:
    spec = load_table("main").running({"validation": "0.2", "new_clients": None})
    assert {cell.chosen["validation"] for cell in spec.cells.values()} == {"0.2"}
    assert spec.arguments == "main --validation 0.2"
    with pytest.raises(UserError, match=r"validation cannot be '2'; allowed: .* from 0 to 0.9"):
        load_table("main").running({"validation": "2"})
