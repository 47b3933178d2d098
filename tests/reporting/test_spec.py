"""Specs: what a file says is what a cell runs, and a mistake is named with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pfl_bench.base.errors import UserError
from pfl_bench.reporting.tables.reading import load_table, read_table, table_names
from pfl_bench.reporting.tables.spec import Published

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "lambda_grid.yaml"
VALID = """
caption: a table
method: FedCP
run: {dataset: cifar10, clients: 20, algo: fedavg}
set: {}
columns:
  - {name: N=50, run: {clients: 50}}
  - {name: λ=1, group: here}
rows:
  - {name: FedAvg, published: [[1, 0.5], skipped]}
  - {name: FedCP, run: {algo: fedcp, clients: 30}, set: {lambda: 2}, rule: true}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def written(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_a_row_overrides_its_column_which_overrides_the_table(
    write: Callable[[str], Path],
) -> None:
    spec = read_table(write(VALID))
    assert spec.cells["FedAvg", "λ=1"].chosen["clients"] == 20
    assert spec.cells["FedAvg", "N=50"].chosen["clients"] == 50
    assert spec.cells["FedCP", "N=50"].chosen == {
        "dataset": "cifar10",
        "clients": 30,
        "algo": "fedcp",
    }
    assert spec.cells["FedCP", "N=50"].hyper == {"lambda": 2}


def test_published_figures_stand_in_the_order_of_the_columns(
    write: Callable[[str], Path],
) -> None:
    spec = read_table(write(VALID))
    assert spec.cells["FedAvg", "N=50"].published == Published(1.0, 0.5)
    assert spec.cells["FedAvg", "λ=1"].published == Published(status="skipped")
    assert spec.cells["FedCP", "N=50"].published is None


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("caption:", "captoin:", ("captoin", "'caption'")),
        ("caption: a table", "metric: acuracy", ("acuracy", "'accuracy'")),
        ("caption: a table", "compared: row", ("row", "'rows'")),
        ("method: FedCP", "method: FedPC", ("FedPC", "FedCP")),
        ("clients: 50", "client: 50", ("'client'", "'clients'", "FedAvg", "N=50")),
        ("clients: 50", "clients: many", ("clients", "many", "whole number")),
        ("algo: fedcp", "algo: fedpc", ("fedpc", "'fedcp'", "row 'FedCP'")),
        ("lambda: 2", "lamda: 2", ("lamda", "'lambda'", "row 'FedCP'")),
        ("lambda: 2", "lambda: -2", ("lambda=-2", "at least 0")),
        ("clients: 50", "model: cmn", ("cmn", "'cnn'")),
        ("clients: 50", "joining_ratio: 0.5-2", ("joining_ratio", "0.5-2")),
        ("[[1, 0.5], skipped]", "[[1, 0.5]]", ("one entry per column", "FedAvg")),
        ("[[1, 0.5], skipped]", "[[1, 0.5], skiped]", ("skiped", "skipped")),
        ("[[1, 0.5], skipped]", "[true, skipped]", ("True", "no figure")),
        ("name: N=50", "name: λ=1", ("two entries", "λ=1")),
        ("name: N=50", "name: lambda=1", ("two entries", "λ=1")),
        ("name: N=50", 'name: "a, b"', ("a, b", "comma")),
        ("name: N=50", "name: 50", ("needs a name",)),
        ("name: N=50", "name: N=50, measure: iterations", ("measure", "overhead")),
        ("caption: a table", "metric: overhead", ("measure", "N=50")),
        ("algo: fedavg}", "}", ("no algo",)),
        ("set: {}", "set: 3", ("'set'", "names and values")),
    ],
)
def test_a_mistake_is_named_with_its_file_and_what_is_valid(
    write: Callable[[str], Path],
    right: str,
    wrong: str,
    named: tuple[str, ...],
) -> None:
    assert right in VALID
    with pytest.raises(UserError) as caught:
        read_table(write(VALID.replace(right, wrong)))
    message = str(caught.value)
    assert "mine.yaml" in message
    assert all(word in message for word in named), message
    assert "\n" not in message


def test_an_unknown_table_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="'scalability'"):
        load_table("scalabilty")


@pytest.mark.parametrize("asked", ["β=0.1", "beta=0.1", "BETA=0.1", " β=0.1"])
def test_names_may_be_typed_without_greek_or_capitals(asked: str) -> None:
    assert load_table("lambda").restricted((asked,), ()).rows == ("β=0.1",)


def test_an_algorithm_means_every_row_that_runs_it() -> None:
    assert load_table("main").restricted(("fedcp", "perfedavg"), ()).rows == ("Per-FedAvg", "FedCP")
    assert load_table("lambda").restricted(("fedcp",), ()).rows == ("β=0.01", "β=0.1", "β=0.5")
    assert load_table("privacy").restricted((), ("fedper",)).columns == ("FedPer",)


def test_a_restricted_table_holds_its_cells_only_and_keeps_their_order() -> None:
    spec = load_table("scalability").restricted(("FedCP", "FedAvg"), ("N=30", "N=10"))
    assert spec.columns == ("N=10", "N=30")
    assert set(spec.cells) == {(r, c) for r in ("FedAvg", "FedCP") for c in ("N=10", "N=30")}


def test_the_arguments_of_a_restricted_table_give_it_again() -> None:
    spec = load_table("subsampled_clients").restricted(("fedcp",), ("N=10|50",))
    assert spec.arguments == "subsampled_clients --rows FedCP --columns 'N=10|50'"


def test_the_arguments_name_the_files_of_plugins() -> None:
    spec = load_table("main").with_plugins(("mine.py", "my plugins/twin.py"))
    assert spec.arguments == "main --plugin mine.py --plugin 'my plugins/twin.py'"


def test_a_plugin_joins_below_a_rule_with_nothing_published_once_and_only_among_methods() -> None:
    main = load_table("main")
    joined = main.joined(["scaffold", "fedcp"])
    assert joined.rows == (*main.rows, "SCAFFOLD") and "SCAFFOLD" in joined.rules
    cells = [joined.cells["SCAFFOLD", column] for column in joined.columns]
    assert {cell.chosen["algo"] for cell in cells} == {"scaffold"}
    assert {cell.published for cell in cells} == {None}
    assert joined.arguments == main.arguments  # --plugin says it already
    assert main.joined(["fedcp"]) is main
    with pytest.raises(UserError, match="'scaffold' has no place in 'lambda'"):
        load_table("lambda").joined(["scaffold"])


def test_on_real_data_only_cells_that_name_their_own_stay_as_they_are(
    write: Callable[[str], Path],
) -> None:
    text = VALID.replace("{name: FedAvg,", "{name: FedAvg, run: {source: standin},")
    text += "  - {name: Local, run: {partition: pfllib:x}}\n"
    cells = read_table(write(text)).on_real_data().cells
    sources = {row: cell.chosen.get("source") for (row, _), cell in cells.items()}
    assert sources == {"FedAvg": "standin", "FedCP": "real", "Local": None}


def test_an_unknown_row_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="row 'fedpc'"):
        load_table("main").restricted(("fedpc",), ())


def test_lines_are_columns_unless_the_columns_compete() -> None:
    main, by_lambda = load_table("main"), load_table("lambda")
    assert tuple(main.lines()) == main.columns
    assert {c.column for c in main.lines()["pathological MNIST"]} == {"pathological MNIST"}
    assert tuple(by_lambda.lines()) == by_lambda.rows
    assert [by_lambda.competitor(c) for c in by_lambda.lines()["β=0.1"]] == list(by_lambda.columns)


def test_a_label_does_not_repeat_its_heading() -> None:
    main = load_table("main")
    assert main.label("practical(0.1) TINY*") == "TINY*"
    assert load_table("local_epochs").label("5") == "5"


def test_the_documented_example_is_the_grid_of_the_paper() -> None:
    spec = read_table(EXAMPLE)
    cells = [spec.cells["20 clients", column] for column in spec.columns]
    assert [cell.hyper["lambda"] for cell in cells] == [0, 0.1, 1, 5, 10]
    assert {cell.chosen["algo"] for cell in cells} == {"fedcp"}


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (EXAMPLE.parents[1] / "tables.md").read_text(encoding="utf-8")
    example = EXAMPLE.read_text(encoding="utf-8")
    assert example.partition("\n")[2] in page


def test_there_are_the_eleven_tables_of_the_paper_and_two_of_our_own() -> None:
    assert set(table_names()) == {
        "main", "overhead", "heterogeneity", "scalability", "subsampled_clients", "local_epochs",
        "dropout", "lambda", "ablation", "cpn_design", "privacy", "further",
        "new_clients",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "columns"),
    [
        ("cifar10", ("pathological Cifar10", "practical(0.1) Cifar10")),
        ("CIFAR-10", ("pathological Cifar10", "practical(0.1) Cifar10")),
        ("tinyimagenet", ("practical(0.1) TINY", "practical(0.1) TINY*")),
        ("AGNews", ("practical(0.1) AG News",)),
        ("Pathological Cifar-100", ("pathological Cifar100",)),
        ("pathological", ("pathological MNIST", "pathological Cifar10", "pathological Cifar100")),
    ],
)
def test_a_dataset_or_a_part_of_a_name_means_every_column_that_has_it(
    asked: str, columns: tuple[str, ...]
) -> None:
    assert load_table("main").restricted((), (asked,)).columns == columns


@pytest.mark.parametrize("asked", ["cifar1", "-", "5"])
def test_half_a_number_or_nothing_is_no_part_of_a_name(asked: str) -> None:
    with pytest.raises(UserError, match="unknown column"):
        load_table("main").restricted((), (asked,))


def test_the_tables_of_the_paper_show_a_further_method_only_when_asked() -> None:
    whole = load_table("main")
    assert "SCAFFOLD" not in whole.rows
    asked = whole.restricted(("FedCP", "scaffold", "Fed-BN"), ("cifar10",))
    assert asked.rows == ("FedCP", "SCAFFOLD", "FedBN") and "SCAFFOLD" in asked.rules
    cell, beside = (asked.cells[row, "practical(0.1) Cifar10"] for row in ("SCAFFOLD", "FedCP"))
    assert cell.chosen == {**beside.chosen, "algo": "scaffold"}
    assert cell.published is None and not cell.hyper
    assert asked.restricted(("SCAFFOLD",), ()).rows == ("SCAFFOLD",)


@pytest.mark.parametrize("table", ["ablation", "lambda"])
def test_a_table_whose_rows_are_not_methods_gets_no_further_one(table: str) -> None:
    with pytest.raises(UserError, match="unknown row 'scaffold'"):
        load_table(table).restricted(("scaffold",), ())
