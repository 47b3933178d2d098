"""What docs/little_data.md publishes comes from its commands and the repository's own results."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from pfl_bench.cli import main
from pfl_bench.reporting.tables import plot

ROOT = Path(__file__).parents[2]
REPORT = (ROOT / "docs" / "little_data.md").read_text(encoding="utf-8")
PUBLISHED = ROOT / "docs" / "reproduction"

Cells = dict[tuple[str, str], str]
"""By row and column."""


def _commands() -> list[list[str]]:
    """The report's commands that make a table of `PUBLISHED`; those of docs/results have a test of
    their own."""
    lines = re.findall(r"^    pfl-bench (table .*)$", REPORT.replace("\\\n", " "), re.MULTILINE)
    commands = [shlex.split(line) for line in lines]
    return [words for words in commands if words[words.index("--out") + 1] == "docs/reproduction"]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands write when they are given the stored results and no data."""
    folder = tmp_path_factory.mktemp("rendered")
    here = {"--out": folder, "--data-dir": folder, "--results": ROOT / "results" / "lite.zip"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plot, "save", lambda *_: None)
        patch.chdir(ROOT)
        for command in _commands():
            words = [word for word in command if word != "--curves"]
            for option, value in here.items():
                words[words.index(option) + 1] = str(value)
            result = CliRunner().invoke(main, [*words, "--render-only"])
            assert result.exit_code == 0, result.output
    return folder


def test_the_published_tables_are_those_that_the_commands_make(rendered: Path) -> None:
    texts = [path for path in PUBLISHED.iterdir() if path.suffix in (".csv", ".md", ".tex")]
    published = {path.name: path.read_text(encoding="utf-8") for path in texts}
    made = {name: (rendered / name).read_text(encoding="utf-8") for name in published}
    assert published == made
    assert {path.name for path in rendered.glob("*.csv")} <= made.keys()


def test_the_heading_of_a_column_says_how_many_seeds_it_has(rendered: Path) -> None:
    (head,) = (line for line in REPORT.splitlines() if line.startswith("| | pathological Cifar10,"))
    seeds = {(line["column"], line["seeds"]) for line in _lines(rendered / "main.csv").values()}
    assert {
        tuple(name.removesuffix(" seeds").rsplit(", ", 1)) for name in _split(head)[1:]
    } == seeds


@pytest.mark.parametrize(
    ("table", "head"), [("main", "| | pathological Cifar10, "), ("dropout", "| | ρ=1 |")]
)
def test_the_report_s_tables_have_the_figures_of_three_scores(
    rendered: Path, table: str, head: str
) -> None:
    told, best = _told(head), _lines(rendered / f"{table}.csv")
    late, loss = (_means(rendered / f"{table}-{score}.csv") for score in ("late", "loss"))
    assert told == {
        place: f"{_with_spread(line)}<br>{late[place]} · {loss[place]} · "
        f"{line['published_mean'] or 'none'}"
        for place, line in best.items()
    }


@pytest.mark.parametrize(
    ("table", "title"), [("lambda", "## The weight λ"), ("ablation", "## Ablation")]
)
def test_the_report_s_variants_have_the_figures_of_three_scores(
    rendered: Path, table: str, title: str
) -> None:
    told = _told("| | best iteration | mean", REPORT[REPORT.index(title) :])
    expected = {}
    late, loss = (_means(rendered / f"{table}-{score}.csv") for score in ("late", "loss"))
    for place, line in _lines(rendered / f"{table}.csv").items():
        row, _ = place
        expected[row, "best iteration"] = _with_spread(line)
        expected[row, "mean of the last 20"] = late[place]
        expected[row, "test loss at the end"] = loss[place]
    assert told == expected


def _told(head: str, text: str = REPORT) -> Cells:
    """The cells of the first table whose first line begins so."""
    lines = iter(text.splitlines())
    first = next(line for line in lines if line.startswith(head))
    columns = [name.rpartition(", ")[0] or name for name in _split(first)[1:]]
    next(lines)
    cells = {}
    while line := next(lines):
        row, *values = _split(line)
        cells |= {(row, name): value for name, value in zip(columns, values, strict=True)}
    return cells


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.replace("**", "").strip("|").split("|")]


def _lines(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return {(line["row"], line["column"]): line for line in csv.DictReader(file)}


def _means(path: Path) -> Cells:
    return {place: f"{float(line['mean']):.2f}" for place, line in _lines(path).items()}


def _with_spread(line: dict[str, str]) -> str:
    spread = f" ± {float(line['std']):.2f}" if line["std"] else ""
    return f"{float(line['mean']):.2f}{spread}"
