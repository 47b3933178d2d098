"""The file of tuned values: what it says comes back, and what does not fit is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from pfl_bench.base.errors import UserError
from pfl_bench.cli import Commands
from pfl_bench.cli.shared import AskedTable
from pfl_bench.cli.table import table
from pfl_bench.cli.tune import tune
from pfl_bench.config.options import load_profile
from pfl_bench.reporting.tables.plan import TablePlan, plan_table
from pfl_bench.reporting.tables.reading import load_table
from pfl_bench.reporting.tables.spec import TableSpec
from pfl_bench.store.records import best_round
from pfl_bench.store.store import Store
from pfl_bench.tuning.draws import Draw
from pfl_bench.tuning.trials import Choice, Effort
from pfl_bench.tuning.tuned import read_tuned, write_tuned

COLUMN = "practical(0.1) Cifar100"
PLACES = [("FedAvg", COLUMN), ("FedCP", COLUMN)]
SPEC = """
caption: a table
run: {dataset: mnist, clients: 3, beta: 1}
columns: [{name: only}]
rows:
  - {name: FedAvg, run: {algo: fedavg}}
  - {name: FedProx, run: {algo: fedprox}}
"""


def main_table(*rows: str) -> TableSpec:
    return load_table("main").restricted(rows or ("FedAvg", "FedCP"), (COLUMN,))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tuned.yaml"
    choices = [
        Choice(PLACES[0], Draw(3, {"lr": 0.02}), 50.123, 40.0, ranges=(("lr", "a range"),)),
        Choice(PLACES[1], Draw(1, {"lr": 0.01}, {"lambda": 2.5}), 60.0, 55.0),
    ]
    write_tuned(path, main_table(), "quick", Effort(8), 0.2, choices, "pfl-bench tune …")
    return path


def changed(path: Path, change: dict[str, object], cell: dict[str, object] | None = None) -> Path:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content |= change
    if cell is not None:
        content["cells"][1] |= cell
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    return path


def test_the_values_come_back_in_their_cells(file: Path) -> None:
    spec = read_tuned(file).applied(main_table())
    avg, cp = (spec.cells[place] for place in PLACES)
    assert avg.chosen["lr"] == 0.02 and avg.hyper == {}
    assert cp.chosen["lr"] == 0.01 and cp.hyper == {"lambda": 2.5}
    assert avg.chosen["dataset"] == "cifar100" and avg.published is not None
    assert spec.tuning.startswith("tuned, budget 8: ")
    assert spec.arguments.endswith(f"--tuned {file}")


def test_values_of_another_table_are_refused(file: Path) -> None:
    other = load_table("dropout").restricted(("FedCP",), ())
    with pytest.raises(UserError, match=r"tuned for the table 'main', not for 'dropout'"):
        read_tuned(file).applied(other)


def test_an_unknown_knob_is_refused(file: Path) -> None:
    wrong = changed(file, {}, {"set": {"lamda": 1}})
    with pytest.raises(UserError, match=r"hyper-parameter of fedcp 'lamda'; did you mean 'lambda'"):
        read_tuned(wrong).applied(main_table())


def test_a_value_that_a_knob_cannot_have_is_refused(file: Path) -> None:
    wrong = changed(file, {}, {"set": {"lambda": -1}})
    with pytest.raises(UserError, match=r"fedcp cannot take lambda=-1"):
        read_tuned(wrong).applied(main_table())


def test_settings_beside_the_learning_rate_are_refused(file: Path) -> None:
    wrong = changed(file, {}, {"run": {"rounds": 9}})
    with pytest.raises(UserError, match="unknown tuned setting 'rounds'"):
        read_tuned(wrong).applied(main_table())


def test_a_cell_that_was_not_tuned_is_refused(file: Path) -> None:
    with pytest.raises(UserError, match="nothing was tuned for the row 'Ditto'"):
        read_tuned(file).applied(main_table("FedAvg", "Ditto"))


def test_a_cell_for_which_nothing_was_found_is_told(file: Path) -> None:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    content["cells"][1] = {"row": "FedCP", "column": COLUMN, "untuned": "it cannot run"}
    file.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    spec = read_tuned(file).applied(main_table())
    assert spec.cells[PLACES[1]].hyper == {}
    assert spec.tuning.endswith(f"untuned: FedCP in {COLUMN}")


def test_a_seed_of_tuning_is_none_of_the_table(file: Path, tmp_path: Path) -> None:
    def plan() -> TablePlan:
        spec = read_tuned(file).applied(main_table())
        return plan_table(spec, load_profile("quick"), 2, Store(tmp_path), tmp_path)

    assert {config.seed for cell in plan().cells.values() for config in cell.configs} == {0, 1}
    changed(file, {"seeds": [1]})
    with pytest.raises(UserError, match="'main' was tuned with the seed 1, which it would be"):
        plan()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"budget": 0}, "budget cannot be 0"),
        ({"seeds": "many"}, "seeds cannot be 'many'"),
        ({"seeds": []}, "seeds cannot be"),
        ({"cells": "none"}, "cells must be a list"),
        ({"cells": [{"row": 1}]}, "needs a row and a column"),
        ({"cells": [{"row": "a", "column": "b", "sett": {}}]}, "key of a cell 'sett'"),
        ({"cells": [{"row": "a", "column": "b", "set": 3}]}, "'set' must hold names and values"),
        ({"cells": [{"row": "a", "column": "b"} for _ in range(2)]}, "is there twice"),
        ({"tables": "main"}, "unknown key 'tables'"),
    ],
)
def test_what_is_no_such_file_is_refused(file: Path, change: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_tuned(changed(file, change))


def test_a_file_that_says_too_little_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("table: main\n")
    with pytest.raises(UserError, match="does not say 'profile'; is it a file that `tune` wrote"):
        read_tuned(path)


# --- the commands ---------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("mine.yaml").write_text(SPEC)
    Path("tiny.yaml").write_text("run: {source: standin, rounds: 2, fraction: 0.05}\n")
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(Commands(commands=[table, tune]), [*arguments])


def test_a_table_is_tuned_and_says_so(here: Path) -> None:
    mine = ("--profile", "tiny.yaml")
    done = call("tune", "--table", "mine.yaml", "--budget", "2", *mine)
    assert done.exit_code == 0, done.output
    assert "wrote tuned-mine.yaml" in done.output
    cells = yaml.safe_load(Path("tuned-mine.yaml").read_text(encoding="utf-8"))["cells"]
    assert [cell["row"] for cell in cells] == ["FedAvg", "FedProx"]
    shown = call("table", "mine.yaml", *mine, "--seeds", "1", "--tuned", "tuned-mine.yaml")
    assert shown.exit_code == 0, shown.output
    assert "Tuning: tuned, budget 2: " in shown.output
    plain = call("table", "mine.yaml", *mine, "--seeds", "1", "--render-only")
    assert "Tuning: untuned" in plain.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--budget", "0"), "budget cannot be 0"),
        (("--budget", "some"), "budget cannot be 'some'"),
        (("--budget", "2", "--tuning-seeds", "0"), "tuning_seeds cannot be 0"),
        (("--budget", "2", "--validation", "0"), "holds back no training samples"),
        (("--budget", "2", "--rows", "FedXY"), "unknown row 'FedXY'"),
    ],
)
def test_what_cannot_be_tuned_is_said_in_a_sentence(
    here: Path, arguments: tuple[str, ...], said: str
) -> None:
    refused = call("tune", "--table", "mine.yaml", "--profile", "tiny.yaml", *arguments)
    assert refused.exit_code == 2
    assert refused.output.startswith("Error: ") and said in refused.output
    assert refused.output.count("\n") == 1
    assert not Path("results").exists() and not Path("tuned-mine.yaml").exists()


def test_a_dry_run_trains_nothing(here: Path) -> None:
    told = call(
        "tune", "--table", "mine.yaml", "--budget", "3", "--profile", "tiny.yaml", "--dry-run"
    )
    assert told.exit_code == 0
    assert "at most 6 runs, 6 missing now" in told.output
    assert not Path("results").exists()


def test_an_added_row_stands_whatever_rows_are_named() -> None:
    one = AskedTable("main", rows=("FedCP",), added=("fedavg_ft",)).spec()
    assert one.rows == ("FedCP", "FedAvg + FT")
    whole = AskedTable("main", added=("fedavg_ft",)).spec()
    assert whole.rows == (*load_table("main").rows, "FedAvg + FT")


def test_scoring_by_validation_without_any_is_refused(here: Path) -> None:
    refused = call("table", "mine.yaml", "--profile", "tiny.yaml", "--score", "validation")
    assert refused.exit_code == 2
    assert "validation needs runs that hold back training samples" in refused.output


def test_a_tuned_method_stands_beside_local_as_it_was_tuned(here: Path) -> None:
    """Not beside Local at the method's own learning rate, which nobody runs."""
    rows = SPEC + "  - {name: Local, run: {algo: local}}\n"
    Path("mine.yaml").write_text(rows)
    values = {"FedAvg": 0.1, "FedProx": 0.02, "Local": 0.05}
    cells = [{"row": row, "column": "only", "run": {"lr": lr}} for row, lr in values.items()]
    found = {"table": "mine", "profile": "tiny", "budget": 2, "seeds": [10_000], "cells": cells}
    Path("t.yaml").write_text(yaml.safe_dump(found))
    mine = ("mine.yaml", "--profile", "tiny.yaml", "--seeds", "1", "--tuned", "t.yaml")
    assert call("table", *mine).exit_code == 0
    spec = read_tuned(Path("t.yaml")).applied(load_table("mine.yaml")).scored("below-local")
    plan = plan_table(spec, load_profile("tiny.yaml"), 1, Store(Path("results")), here)
    runs = {row: cell.runs[0] for (row, _), cell in plan.cells.items()}
    correct = {row: run and (best_round(run.records())) for row, run in runs.items()}
    for row in ("FedAvg", "FedProx"):
        ours, alone = correct[row], correct["Local"]
        assert ours and alone
        pairs = list(zip(ours.correct or [], alone.correct or [], strict=True))
        below = 100 * sum(a < b for a, b in pairs) / len(pairs)
        assert plan.cells[row, "only"].mean == pytest.approx(below)
