"""How a run ended: against runs whose ends are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fakeplans import cell_plan, stored, stored_rounds, table_plan
from prepared import NAME, prepare_toy
from toy import toy_config, toy_dataset, toy_partition

from pfl_bench.cli import main
from pfl_bench.reporting.tables.caption import still_rising
from pfl_bench.reporting.tables.content import lay_out
from pfl_bench.reporting.tables.files import to_csv
from pfl_bench.reporting.tables.latex import to_latex
from pfl_bench.reporting.tables.markdown import to_markdown
from pfl_bench.reporting.verdict import MARK, advice, is_rising, reference
from pfl_bench.store.records import RoundRecord
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

KEPT = {"classes": 10, "majority_correct": [30, 10], "tested": 80}


def _ended(accuracy: float, **summary: object) -> StoredRun:
    """A run that ends with so many percent, after a better round."""
    last = {"accuracy": accuracy / 100, "round": 40}
    facts = {"still_rising": False, "last": last, **summary}
    return stored(toy_config(), accuracy + 5, rounds=40, **facts)


def test_the_reference_is_told_from_what_the_run_kept() -> None:
    known = reference(_ended(60.0, reference=KEPT))
    assert known is not None
    assert (known.most_frequent, known.chance, known.correct) == (50.0, 10.0, (30, 10))


@pytest.mark.parametrize(
    "kept",
    [None, 5, {}, {**KEPT, "tested": 0}, {**KEPT, "tested": "80"}, {**KEPT, "classes": True},
     {**KEPT, "majority_correct": [100]}, {**KEPT, "majority_correct": [-1]}],
)  # fmt: skip
def test_what_is_no_reference_is_none(kept: object) -> None:
    assert reference(_ended(60.0, reference=kept)) is None


def test_a_run_below_the_most_frequent_class_is_told_what_to_try() -> None:
    (sentence,) = advice(_ended(50.0, reference=KEPT))
    assert "most frequent class" in sentence and "--rounds" in sentence and "--lr" in sentence
    assert advice(_ended(50.1, reference=KEPT)) == []
    assert advice(_ended(10.0)) == []  # nothing is known of its data


def test_a_rising_run_is_told_to_go_on() -> None:
    assert advice(_ended(60.0, still_rising=True)) == [
        "still rising after 40 rounds; try --rounds 80"
    ]
    assert advice(stored(toy_config(), status="skipped")) == []


def test_a_rising_run_that_patience_ended_is_told_to_have_more_of_it() -> None:
    run = _ended(60.0, still_rising=True)
    cut = replace(run, config={**run.config, "rounds": 100, "patience": 20})
    assert advice(cut) == ["still rising when patience ended it after 40 rounds; try --patience 40"]
    assert advice(replace(cut, config={**cut.config, "rounds": 40})) == [
        "still rising after 40 rounds; try --rounds 80"
    ]


def _with_losses(tmp_path: Path, losses: list[float | None]) -> StoredRun:
    with Store(tmp_path).open(toy_config(lr=0.05, rounds=len(losses))) as writer:
        for number, loss in enumerate(losses, start=1):
            writer.append(RoundRecord(number, [0], [9], [10], [0.5], loss))
        return writer.finish("finished", None)


def test_a_run_whose_loss_rose_is_told_so_and_what_to_try(tmp_path: Path) -> None:
    def told(name: str, losses: list[float | None]) -> list[str]:
        return [one for one in advice(_with_losses(tmp_path / name, losses)) if "loss" in one]

    rose = "the training loss rose from 1 in the first round to 3.5 at the end; try a smaller"
    assert told("rose", [1.0, *[0.5] * 17, 3.0, 4.0]) == [f"{rose} learning rate, as --lr 0.005"]
    assert told("fell", [1.0, 5.0, 0.9]) == []
    assert told("chance", [1.0, 1.04]) == [] and len(told("more", [1.0, 1.06])) == 1
    assert told("one", [1.0]) == []
    assert told("untold", [None, None]) == []


def test_runs_stored_before_the_rule_are_judged_by_their_records(tmp_path: Path) -> None:
    run = stored_rounds(tmp_path, toy_config(), [100, 200, 300], [1.0] * 3)
    assert run.summary is not None
    assert run.summary.pop("still_rising") is True
    assert is_rising(run)


def test_a_table_marks_and_counts_the_cells_that_still_rise() -> None:
    config = toy_config()
    up = stored(config, 50.0, still_rising=True, reference=KEPT)
    flat = stored(config, 60.0, still_rising=False, reference=KEPT)
    plan = table_plan(
        [
            cell_plan(("a", "x"), [50.0, 60.0], runs=[up, flat]),
            cell_plan(("b", "x"), [60.0], runs=[flat]),
        ]
    )
    entries = lay_out(plan).entries
    assert entries["a", "x"].text.endswith(MARK)
    assert entries["a", "x"].rising == 1
    assert MARK not in entries["b", "x"].text
    assert still_rising(plan).startswith(f"1 of 2 cells, marked {MARK}")
    text = to_markdown(lay_out(plan))
    assert "exceeds that of the tenth before by more than 0.5 percentage points" in text
    assert "of a guess: every line: 50.00 and 10.00 %" in text
    assert r"$\nearrow$" in to_latex(lay_out(plan))
    assert ",still_rising," in to_csv(lay_out(plan))


def test_a_flat_table_without_references_says_nothing_of_either() -> None:
    facts = lay_out(table_plan([cell_plan(("a", "x"), [50.0])])).facts
    assert not {"Still rising", "Without training"} & set(facts)


def test_columns_of_other_data_have_their_own_reference() -> None:
    other = {**KEPT, "majority_correct": [20, 0]}
    runs = [stored(toy_config(), 60.0, reference=kept) for kept in (KEPT, other)]
    cells = [cell_plan(("a", c), [60.0], runs=[run]) for c, run in zip("xy", runs, strict=True)]
    facts = lay_out(table_plan(cells)).facts
    assert facts["Without training"].endswith("x: 50.00 and 10.00 %; y: 25.00 and 10.00 %")


def test_run_keeps_what_the_data_alone_would_score_and_says_it(tmp_path: Path) -> None:
    folder = prepare_toy(tmp_path / "data", samples=80)
    flags = ("run", "--algo", "fedavg", "--dataset", NAME, "--data-dir", str(folder), "--lr", "0",
             "--setting", "iid", "--clients", "2", "--rounds", "2", "--quiet",
             "--results", str(tmp_path / "results"))  # fmt: skip
    told = CliRunner().invoke(main, flags)
    assert told.exit_code == 0, told.output
    (run,) = Store(tmp_path / "results").all()
    known = reference(run)
    assert known is not None
    assert f"reference       most frequent class {known.most_frequent:.2f} %" in told.stdout


def test_the_most_frequent_class_is_that_of_the_training_samples() -> None:
    dataset = toy_dataset()
    partition = toy_partition(toy_config(), dataset)
    by_hand = []
    for train, test in zip(partition.train, partition.test, strict=True):
        labels = dataset.y[train].tolist()
        answer = min(set(labels), key=lambda label: (-labels.count(label), label))
        by_hand.append(dataset.y[test].tolist().count(answer))
    assert partition.majority_correct(dataset.y) == by_hand
