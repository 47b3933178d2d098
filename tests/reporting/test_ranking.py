"""Ranks, matches and profiles against enumeration, tables of the literature and naive loops."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from fakeplans import cell_plan, stored, table_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import toy_config

from pfl_bench.reporting.ranking import (
    FEWEST_PAIRS,
    Ranking,
    critical_difference,
    gaps,
    holm,
    matches,
    ranking,
    signed_rank_test,
)
from pfl_bench.reporting.tables.plan import CellPlan, TablePlan


def _table(scores: dict[str, list[list[float]]], **spec: object) -> TablePlan:
    """By method, its values for each column and seed; columns that it lacks have not run."""
    cells = [
        cell_plan((name, f"c{k}"), columns[k] if k < len(columns) else [None])
        for k in range(max(map(len, scores.values())))
        for name, columns in scores.items()
    ]
    return table_plan(cells, **spec)


# --- Wilcoxon and Holm --------------------------------------------------------------------------


@settings(deadline=None)  # the first call imports scipy
@given(st.lists(st.integers(1, 60), min_size=2, max_size=9, unique=True), st.data())
def test_the_signed_rank_test_is_the_share_of_sign_flips_as_extreme(
    sizes: list[int], data: st.DataObject
) -> None:
    signs = data.draw(st.lists(st.sampled_from((-1, 1)), min_size=len(sizes), max_size=len(sizes)))
    differences = [float(s * size) for s, size in zip(signs, sizes, strict=True)]
    order = sorted(sizes)
    places = [1 + order.index(size) for size in sizes]
    whole = sum(places)
    seen = abs(2 * sum(p for p, s in zip(places, signs, strict=True) if s > 0) - whole)
    flips = itertools.product((-1, 1), repeat=len(sizes))
    sums = [abs(sum(s * p for s, p in zip(flip, places, strict=True))) for flip in flips]
    expected = statistics.fmean(total >= seen for total in sums)
    assert signed_rank_test(differences) == pytest.approx(expected)


def test_equal_values_say_nothing() -> None:
    assert signed_rank_test([0.0] * 8) == 1.0
    some = [0.4, -0.1, 0.3, 0.2, -0.5, 0.6, 0.7]
    assert signed_rank_test([*some, 0.0, 1e-12]) == signed_rank_test(some)


def test_six_pairs_of_one_sign_are_the_fewest_that_can_tell() -> None:
    def smallest(pairs: int) -> float:
        return signed_rank_test([float(k) for k in range(1, pairs + 1)])

    assert smallest(FEWEST_PAIRS - 1) > 0.05 > smallest(FEWEST_PAIRS)


@given(st.lists(st.integers(0, 1000).map(lambda n: n / 1000), min_size=1, max_size=8))
def test_holm_rejects_what_the_step_down_procedure_rejects(values: list[float]) -> None:
    adjusted = holm(values)
    for level in (0.01, 0.05, 0.2):
        rejected = set()
        for rank, k in enumerate(sorted(range(len(values)), key=values.__getitem__)):
            if values[k] * (len(values) - rank) > level:
                break
            rejected.add(k)
        assert {k for k, p in enumerate(adjusted) if p <= level} == rejected


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_match_pairs_equal_seeds_in_every_column() -> None:
    ours = [[50.0, 52.0, 51.0], [60.0, 61.0, 62.0]]
    rival = [[49.0, 52.0, 49.0], [57.0, 65.0, 57.0]]
    table = _table({"Mine": ours, "Rival": rival}, method="Mine")
    (one,) = matches(table)
    differences = [1.0, 0.0, 2.0, 3.0, -4.0, 5.0]
    assert (one.rival, one.pairs, one.better, one.worse) == ("Rival", 6, 4, 1)
    assert one.median == statistics.median(differences)
    assert one.p == one.adjusted == pytest.approx(signed_rank_test(differences))


def test_every_rival_counts_in_the_correction_and_the_most_telling_comes_first() -> None:
    mine = [[50.0 + k / 10 for k in range(6)]]
    near = [[v - 0.05 * (-1) ** k * (k + 1) for k, v in enumerate(mine[0])]]
    far = [[v - 1 - k for k, v in enumerate(mine[0])]]
    found = matches(_table({"Near": near, "Mine": mine, "Far": far}, method="Mine"))
    assert [one.rival for one in found] == ["Far", "Near"]
    assert found[0].p == pytest.approx(2 / 2**6)
    assert found[0].adjusted == pytest.approx(2 * 2 / 2**6)


def test_too_few_pairs_or_no_method_give_no_match() -> None:
    scores = {"Mine": [[50.0] * 5], "Rival": [[49.0] * 5]}
    assert matches(_table(scores, method="Mine")) == []
    longer = {"Mine": [[50.0] * 6], "Rival": [[49.0] * 6]}
    assert matches(_table(longer)) == []
    assert len(matches(_table(longer, method="Mine"))) == 1


def test_where_less_is_better_less_wins() -> None:
    def cell(row: str, peak: int) -> CellPlan:
        configs = [toy_config(seed=seed) for seed in range(6)]
        runs = [stored(c, 50.0, provenance={"peak_memory": peak}) for c in configs]
        return cell_plan((row, "c"), [50.0] * 6, measure="peak_gigabytes", runs=runs)

    cells = [cell("Mine", 1_000_000_000), cell("Rival", 2_000_000_000)]
    (one,) = matches(table_plan(cells, method="Mine", metric="overhead"))
    assert (one.better, one.worse, one.median) == (6, 0, -1.0)


# --- ranks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "q"),  # Demšar (JMLR 2006), table 5a, two-tailed Nemenyi at 0.05
    [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (7, 2.949), (10, 3.164)],
)
def test_the_critical_difference_is_that_of_demsar_s_table(methods: int, q: float) -> None:
    lines = 14
    expected = q * math.sqrt(methods * (methods + 1) / (6 * lines))
    assert critical_difference(methods, lines) == pytest.approx(expected, rel=5e-4)


def test_ranks_are_means_over_columns_with_ties_shared() -> None:
    table = _table(
        {
            "A": [[50.0, 52.0], [70.0, 70.0], [10.0, 10.0]],
            "B": [[51.0, 51.0], [60.0, 60.0], [30.0, 30.0]],
            "C": [[40.0, 40.0], [65.0, 65.0], [20.0, 20.0]],
        }
    )
    found = ranking(table)
    assert found is not None
    assert found.means == pytest.approx(
        {"B": (1.5 + 3 + 1) / 3, "A": (1.5 + 1 + 3) / 3, "C": 7 / 3}
    )
    assert found.lines == 3
    # Friedman's statistic with ties, from its definition.
    ranks = [[1.5, 1, 3], [1.5, 3, 1], [3, 2, 2]]
    n, k = 3, 3
    sums = [sum(row) for row in ranks]
    ties = 1 - (2**3 - 2) / (n * k * (k * k - 1))
    chi = (12 / (n * k * (k + 1)) * sum(s * s for s in sums) - 3 * n * (k + 1)) / ties
    assert found.p == pytest.approx(math.exp(-chi / 2))  # chi squared with two degrees of freedom


def test_a_method_without_a_value_somewhere_is_left_out_and_named() -> None:
    table = _table({"A": [[1.0], [2.0]], "B": [[2.0], [3.0]], "C": [[9.0]]})
    found = ranking(table)
    assert found is not None
    assert (list(found.means), found.left_out) == (["B", "A"], ("C",))
    assert ranking(_table({"A": [[1.0], [2.0]]})) is None
    assert ranking(_table({"A": [[1.0]], "B": [[2.0]]})) is None


def test_groups_are_the_largest_sets_within_the_critical_difference() -> None:
    one = Ranking({"a": 1.0, "b": 2.0, "c": 2.9, "d": 4.5}, 9, 1.95, None, ())
    assert one.groups() == [("a", "b", "c"), ("c", "d")]
    assert Ranking({"a": 1.0, "b": 4.0}, 9, 1.0, None, ()).groups() == []
    apart = Ranking({"a": 1.0, "b": 2.0, "c": 3.0}, 9, 5.0, None, ())
    assert apart.groups() == [("a", "b", "c")]


# --- performance profiles -----------------------------------------------------------------------


def test_gaps_are_to_the_best_of_the_same_column_and_seed() -> None:
    table = _table({"A": [[50.0, 52.0], [70.0, 71.0]], "B": [[51.0, 50.0], [60.0, 75.0]]})
    assert gaps(table) == {"A": [0.0, 0.0, 1.0, 4.0], "B": [0.0, 0.0, 2.0, 10.0]}


def test_gaps_leave_out_what_not_all_have() -> None:
    cells = [
        cell_plan(("A", "x"), [50.0, 52.0]),
        cell_plan(("B", "x"), [51.0, None]),
        cell_plan(("A", "y"), [10.0]),
        cell_plan(("B", "y"), [None]),
    ]
    assert gaps(table_plan(cells)) == {"A": [1.0], "B": [0.0]}
