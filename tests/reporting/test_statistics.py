"""Agreement with the paper: correlations against naive counting, the test against enumeration."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest
import scipy.stats
from fakeplans import cell_plan, stored, table_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import toy_config

from pfl_bench.base import seeds
from pfl_bench.reporting import statistics as module
from pfl_bench.reporting.statistics import (
    Agreement,
    agreement,
    kendall,
    sign_flip_test,
    spearman,
)
from pfl_bench.reporting.tables.plan import CellPlan
from pfl_bench.reporting.tables.spec import Published

PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=9)


def test_known_correlations() -> None:
    assert kendall([1, 2, 3, 4], [1, 2, 3, 4]) == spearman([1, 2, 3, 4], [1, 2, 3, 4]) == 1
    assert kendall([1, 2, 3, 4], [4, 3, 2, 1]) == spearman([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert kendall([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
    assert spearman([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    # With a tie: 5 concordant pairs, none discordant, one tied in x only.
    assert kendall([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(5 / math.sqrt(5 * 6))


@settings(deadline=None)  # the first call imports scipy
@given(PAIRS)
def test_kendall_is_the_count_of_pairs(pairs: list[tuple[int, int]]) -> None:
    concordant = discordant = only_x = only_y = 0
    for (a, b), (c, d) in itertools.combinations(pairs, 2):
        if a == c and b == d:
            continue
        if a == c:
            only_x += 1
        elif b == d:
            only_y += 1
        elif (a < c) == (b < d):
            concordant += 1
        else:
            discordant += 1
    decided = concordant + discordant
    expected = (decided + only_x) * (decided + only_y)
    value = kendall(*map(list, zip(*pairs, strict=True)))
    if not expected:
        assert value is None
    else:
        assert value == pytest.approx((concordant - discordant) / math.sqrt(expected))


@settings(deadline=None)  # the first call imports scipy
@given(PAIRS)
def test_spearman_is_the_correlation_of_the_positions_in_sorted_order(
    pairs: list[tuple[int, int]],
) -> None:
    def positions(values: list[int]) -> list[float]:
        ordered = sorted(values)
        return [
            statistics.fmean(k for k, other in enumerate(ordered) if other == value)
            for value in values
        ]

    x, y = map(list, zip(*pairs, strict=True))
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert spearman(x, y) is None
    else:
        expected = statistics.correlation(positions(x), positions(y))
        assert spearman(x, y) == pytest.approx(expected)


@settings(deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=8))
def test_the_paired_test_is_the_share_of_sign_flips_as_extreme(differences: list[int]) -> None:
    flips = itertools.product((1, -1), repeat=len(differences))
    sums = [sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in flips]
    share = statistics.fmean(abs(total) >= abs(sum(differences)) for total in sums)
    assert sign_flip_test([float(d) for d in differences]) == pytest.approx(share)


def test_five_differences_of_one_sign_give_the_smallest_p() -> None:
    assert sign_flip_test([0.1, 0.2, 0.3, 0.1, 0.7]) == 2 / 2**5


def test_differences_that_cancel_but_for_rounding_are_no_difference() -> None:
    assert sign_flip_test([0.1, 0.2, -0.3]) == 1.0


def test_sampled_sign_flips_come_near_the_exact_share(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = [0.4, -0.1, 0.3, 0.2, -0.2, 0.5, 0.1, -0.3]
    exact = sign_flip_test(differences)
    monkeypatch.setattr(module, "EXACT_UP_TO", 4)
    assert sign_flip_test(differences) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("n", [5, 20])
def test_the_paired_test_is_scipy_s_on_the_same_flips(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.3, 1, n)
    expected = scipy.stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        n_resamples=2**n if n <= module.EXACT_UP_TO else module.SAMPLED,
        rng=seeds.numpy_generator(0, "sign flips"),
    )
    assert sign_flip_test(differences.tolist()) == expected.pvalue


def _line(source: str = "real", method: str | None = "FedCP") -> Agreement:
    """Three methods in one column: ours 50, 60, 59 and the paper's 52, 61, 64."""
    plan = table_plan(
        [
            cell_plan(("FedAvg", "c"), [49.0, 51.0], Published(52.0), source=source),
            cell_plan(("Ditto", "c"), [60.0, 60.0], Published(61.0), source=source),
            cell_plan(("FedCP", "c"), [58.0, 60.0], Published(64.0), source=source),
            cell_plan(("Local", "c"), [10.0, 10.0], source=source),
        ],
        method=method,
    )
    (line,) = agreement(plan)
    return line


def test_a_line_is_compared_by_the_means_that_both_have() -> None:
    line = _line()
    assert line.competitors == 3
    assert line.kendall == pytest.approx(1 / 3)
    assert line.spearman == pytest.approx(0.5)
    assert line.mean_absolute_difference == pytest.approx((2 + 1 + 5) / 3)
    assert (line.paper_winners, line.our_winners) == (("FedCP",), ("Ditto",))
    assert not line.same_winner


def test_stand_ins_have_ranks_but_no_difference() -> None:
    line = _line(source="standin")
    assert line.kendall == pytest.approx(1 / 3)
    assert line.mean_absolute_difference is None


def test_the_method_is_paired_with_the_best_other_seed_by_seed() -> None:
    test = _line().test
    assert test is not None
    assert (test.rival, test.seeds) == ("Ditto", 2)
    assert test.difference == pytest.approx(-1.0)
    # Differences −2 and 0: every way to flip the signs gives a sum of 2 or −2.
    assert test.p == 1.0
    assert test.smallest_p == 0.5


def test_without_a_method_nothing_is_tested() -> None:
    assert _line(method=None).test is None


def test_only_seeds_that_both_have_are_paired() -> None:
    plan = table_plan(
        [
            cell_plan(("FedCP", "c"), [50.0, None, 54.0], Published(1.0)),
            cell_plan(("Ditto", "c"), [40.0, 47.0, 43.0], Published(1.0)),
        ],
        method="FedCP",
    )
    (line,) = agreement(plan)
    assert line.test is not None
    assert line.test.seeds == 2
    assert line.test.difference == pytest.approx((10 + 11) / 2)


def test_a_local_baseline_without_published_figures_can_be_the_rival() -> None:
    plan = table_plan(
        [
            cell_plan(("FedCP", "c"), [50.0], Published(2.0)),
            cell_plan(("Ditto", "c"), [40.0], Published(1.0)),
            cell_plan(("Local", "c"), [60.0]),
        ],
        method="FedCP",
    )
    (line,) = agreement(plan)
    assert line.test is not None
    assert line.test.rival == "Local"
    assert line.our_winners == ("Local",)  # as in bold in the table
    assert not line.same_winner
    assert line.competitors == 2


def test_a_tie_with_the_paper_s_winner_is_nobody_s_win() -> None:
    plan = table_plan(
        [
            cell_plan(("FedAvg", "c"), [50.0], Published(1.0)),
            cell_plan(("FedCP", "c"), [50.0], Published(2.0)),
        ]
    )
    (line,) = agreement(plan)
    assert line.our_winners == ("FedAvg", "FedCP")
    assert not line.same_winner


def test_where_less_is_better_the_lowest_wins() -> None:
    cells = [
        cell_plan(("FedAvg", "c"), [0.0], Published(3.0), measure="peak_gigabytes"),
        cell_plan(("FedPer", "c"), [0.0], Published(1.0), measure="peak_gigabytes"),
    ]
    config = toy_config()
    used = {"FedAvg": 3_000_000_000, "FedPer": 2_000_000_000}
    runs = {
        row: stored(config, 50.0, provenance={"peak_memory": peak}) for row, peak in used.items()
    }
    cells = [CellPlan(c.cell, (config,), (runs[c.cell.row],), None) for c in cells]
    (line,) = agreement(table_plan(cells, metric="overhead"))
    assert (line.paper_winners, line.our_winners) == (("FedPer",), ("FedPer",))


def test_a_cell_that_diverged_on_one_seed_does_not_compete() -> None:
    config = toy_config()
    runs = [stored(config, 99.0), stored(config, None, "diverged", reason="the loss is nan")]
    plan = table_plan(
        [
            cell_plan(("FedAMP", "c"), [99.0, None], Published(1.0), runs=runs),
            cell_plan(("FedCP", "c"), [50.0, 50.0], Published(2.0)),
            cell_plan(("FedAvg", "c"), [40.0, 40.0], Published(0.5)),
        ]
    )
    (line,) = agreement(plan)
    assert (line.competitors, line.our_winners) == (2, ("FedCP",))


def test_lines_run_along_the_rows_where_columns_compete() -> None:
    plan = table_plan(
        [
            cell_plan(("b1", "λ=1"), [50.0], Published(2.0)),
            cell_plan(("b1", "λ=5"), [60.0], Published(1.0)),
        ],
        compared="columns",
    )
    (line,) = agreement(plan)
    assert (line.line, line.kendall, line.our_winners) == ("b1", -1.0, ("λ=5",))


def test_a_table_of_one_s_own_is_tested_without_the_paper() -> None:
    cells = [cell_plan((row, "c"), [value]) for row, value in (("mine", 60.0), ("other", 50.0))]
    (line,) = agreement(table_plan(cells, method="mine"))
    assert (line.competitors, line.kendall, line.our_winners) == (0, None, ())
    assert line.test is not None
    assert line.test.rival == "other"


def test_a_line_that_nothing_was_run_of_says_nothing() -> None:
    assert agreement(table_plan([cell_plan(("FedCP", "c"), [None], Published(1.0))])) == []
