"""What is tried: the same for every method, within the declared ranges, a prefix of what more
budget would try."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.config.hyper import knobs
from pfl_bench.config.options import OPTIONS
from pfl_bench.config.search import Search
from pfl_bench.models.backbones import MODELS
from pfl_bench.plugins.registry import algorithm_names, load_algorithm
from pfl_bench.reporting.tables.spec import Cell
from pfl_bench.tuning.draws import draws, searched

ROOT = Path(__file__).parents[2]


def cell(algo: str, hyper: dict[str, float] | None = None, **run: object) -> Cell:
    return Cell(algo, "only", {"algo": algo, **run}, hyper or {}, None)


@given(st.floats(1e-4, 1), st.floats(1.5, 1e4), st.floats(0, 1, exclude_max=True))
def test_a_log_range_is_even_in_the_logarithm(low: float, factor: float, share: float) -> None:
    found = Search.of((low, low * factor, "log")).at(share)
    by_hand = math.exp(math.log(low) + share * math.log(factor))
    assert found == pytest.approx(by_hand, rel=6e-3)
    assert low <= found <= low * factor


@given(st.floats(-5, 5), st.floats(0.1, 5), st.floats(0, 1, exclude_max=True))
def test_a_linear_range_is_even(low: float, width: float, share: float) -> None:
    found = Search.of((low, low + width, "linear")).at(share)
    assert found == pytest.approx(low + share * width, rel=6e-3, abs=1e-2)


def test_choices_have_equal_shares() -> None:
    search = Search.of(("a", "b", "c", "d"))
    assert [search.at(k / 8) for k in range(8)] == list("aabbccdd")


@pytest.mark.parametrize("declared", [(), (1,), (2, 1, "log"), (0, 1, "log"), (1, 1, "linear")])
def test_what_is_no_range_is_refused(declared: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match=r"no range|nothing to search"):
        Search.of(declared)


@pytest.mark.parametrize("algo", algorithm_names())
def test_every_method_has_as_many_and_begins_with_its_defaults(algo: str) -> None:
    tried = draws(cell(algo), 6)
    assert [draw.number for draw in tried] == list(range(6))
    assert tried[0].run == tried[0].hyper == {}
    assert all(
        draw.run.keys() | draw.hyper.keys() == set(searched(cell(algo))) for draw in tried[1:]
    )


@pytest.mark.parametrize("algo", algorithm_names())
def test_all_methods_are_tried_at_the_same_learning_rates(algo: str) -> None:
    rates = [draw.run["lr"] for draw in draws(cell(algo), 8)[1:]]
    assert rates == [draw.run["lr"] for draw in draws(cell("fedavg"), 8)[1:]]
    assert len(set(rates)) == 7 and all(0.002 <= rate <= 0.5 for rate in rates)


def test_the_range_of_the_learning_rate_holds_those_of_all_models() -> None:
    search = OPTIONS["lr"].search
    assert search is not None
    assert all(2 * search.low <= model.lr <= search.high / 2 for model in MODELS.values())


def test_the_page_gives_the_ranges_of_the_code() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    ranges = [("all", OPTIONS["lr"])]
    for algo in sorted(path.stem for path in (ROOT / "algorithms").glob("[a-z]*.py")):
        kind = load_algorithm(algo)
        ranges += [(kind.title, knob) for knob in knobs(kind.Hyper).values() if knob.search]
    rows = [f"| `{k.name}` | {title} | {k.search} | {k.searched} |" for title, k in ranges]
    section = page.partition("## Rivals untuned")[2].partition("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("| `")] == rows


def test_a_larger_budget_continues_a_smaller_one() -> None:
    assert draws(cell("fedcp"), 12)[:5] == draws(cell("fedcp"), 5)


def test_what_the_table_sets_is_not_drawn() -> None:
    assert set(searched(cell("fedcp"))) == {"lr", "lambda"}
    assert set(searched(cell("fedcp", {"Lambda": 1.0}))) == {"lr"}
    assert set(searched(cell("fedcp", lr=0.1))) == {"lambda"}
    assert draws(cell("fedcp", {"lambda": 1.0}, lr=0.1), 3)[1].hyper == {}
