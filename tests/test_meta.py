"""What must exist beside the code: a page and a test per algorithm."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from pfl_bench.config.hyper import Knob, knobs
from pfl_bench.engine.algorithm import Algorithm
from pfl_bench.plugins.registry import load_algorithm

ROOT = Path(__file__).resolve().parents[1]
ALGORITHMS = sorted(path.stem for path in ROOT.glob("algorithms/[a-z]*.py"))
FOLLOWS_LR = "the learning rate η"


@pytest.fixture(params=ALGORITHMS)
def algo(request: pytest.FixtureRequest) -> str:
    return request.param


def page(algo: str) -> str:
    path = ROOT / "docs" / "algorithms" / f"{algo}.md"
    assert path.is_file(), f"{algo} has no page {path.relative_to(ROOT)}"
    return path.read_text(encoding="utf-8")


def documented_defaults(text: str) -> dict[str, str]:
    """The second column of the page's table of hyper-parameters, by the names in the first."""
    section = text.partition("## Hyper-parameters")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    return {
        name: default.strip() for names, default in rows for name in re.findall(r"`(\w+)`", names)
    }


def as_written(value: Any) -> str:
    """A default in the pages' spelling: 5, 0.01, true, layer."""
    if value is None:
        return FOLLOWS_LR
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def words(text: str) -> list[str]:
    return re.split(r"[\s(),;]+", text)


def names_every_default(knob: Knob, text: str) -> bool:
    """Whether the column's text holds the default and those that depend on the model."""
    if knob.default is None:
        return text == FOLLOWS_LR
    return all(as_written(v) in words(text) for v in (knob.default, *knob.by_model.values()))


def test_the_paper_has_twelve_algorithms_and_local_beside_them() -> None:
    paper = {name for name in ALGORITHMS if load_algorithm(name).group == "paper"}
    assert paper == {
        "fedavg", "fedprox", "perfedavg", "pfedme", "fedamp", "ditto", "fedper", "fedrep", "fedrod",
        "fedfomo", "fedphp", "fedcp", "local",
    }  # fmt: skip


def test_every_other_algorithm_is_a_further_one(algo: str) -> None:
    assert load_algorithm(algo).group in ("paper", "further")


def test_the_page_has_what_a_reader_looks_for(algo: str) -> None:
    text = page(algo)
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert text.startswith(f"# {load_algorithm(algo).title}\n")
    assert headings[0] == "What it does"
    assert any(heading.startswith("Details where") for heading in headings)
    assert {"Hyper-parameters", "Run it"} <= set(headings)
    assert f"pfl-bench run --algo {algo}" in text


def test_the_page_names_every_hyper_parameter_and_no_other(algo: str) -> None:
    declared = {knob.name for knob in knobs(load_algorithm(algo).Hyper).values()}
    assert set(documented_defaults(page(algo))) == declared


def test_the_page_gives_the_defaults_of_the_code(algo: str) -> None:
    documented = documented_defaults(page(algo))
    for knob in knobs(load_algorithm(algo).Hyper).values():
        assert names_every_default(knob, documented[knob.name]), (
            f"{knob.name}: {documented[knob.name]!r} on the page, {knob.default!r} in the code"
        )


def test_the_page_of_further_methods_counts_right() -> None:
    """Its lines and hooks are those of the files."""
    text = (ROOT / "docs" / "further.md").read_text(encoding="utf-8")
    row = re.compile(r"^\| \[.+\]\(algorithms/(\w+)\.md\) \| (\d+) \|([^|]*)\|", re.MULTILINE)
    rows = row.findall(text)
    told = {algo: (int(lines), re.findall(r"`(\w+)`", hooks)) for algo, lines, hooks in rows}
    further = [algo for algo in ALGORITHMS if load_algorithm(algo).group == "further"]
    assert told == {algo: (lines_of(algo), hooks_of(algo)) for algo in further}


def lines_of(algo: str) -> int:
    return len((ROOT / "algorithms" / f"{algo}.py").read_text(encoding="utf-8").splitlines())


def hooks_of(algo: str) -> list[str]:
    """What its class overrides of the engine's, in its order."""
    hooks = {name for name, value in vars(Algorithm).items() if inspect.isfunction(value)}
    return [name for name in vars(load_algorithm(algo)) if name in hooks - {"__init__"}]


def test_there_is_a_correctness_test(algo: str) -> None:
    path = ROOT / "tests" / "algorithms" / f"test_{algo}.py"
    assert path.is_file(), f"{algo} has no test {path.relative_to(ROOT)}"
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^def test_\w+", text, re.MULTILINE), f"{path.name} tests nothing"
    assert f'"{algo}"' in text, f"{path.name} does not use {algo}"


def test_the_comparison_of_defaults_would_notice_another_value() -> None:
    (knob,) = knobs(load_algorithm("fedprox").Hyper).values()
    assert names_every_default(knob, "0.001")
    assert not names_every_default(knob, "0.01")
    lam = knobs(load_algorithm("fedcp").Hyper)["lam"]
    assert not names_every_default(lam, "5 (CNN)")
