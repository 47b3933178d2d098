"""Bootstrap intervals against all resamples there are."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import pytest
import scipy.stats
from fakeplans import cell_plan

from pfl_bench.base import seeds
from pfl_bench.reporting import intervals
from pfl_bench.reporting.intervals import over_clients, over_seeds


def _quantiles(values: list[float]) -> list[float]:
    return list(np.quantile(values, (0.025, 0.975), method="inverted_cdf"))


@pytest.mark.parametrize("values", [[50.0, 52.0, 51.0], [10.0, 11.5, 9.0, 12.0, 10.2]])
def test_over_seeds_is_the_quantiles_of_the_means_of_all_resamples(values: list[float]) -> None:
    every = [statistics.fmean(drawn) for drawn in itertools.product(values, repeat=len(values))]
    low, high = over_seeds(values) or (0.0, 0.0)
    expected = _quantiles(every)
    span = max(values) - min(values)
    assert low == pytest.approx(expected[0], abs=0.03 * span)
    assert high == pytest.approx(expected[1], abs=0.03 * span)


def test_over_seeds_is_scipy_s_bootstrap_on_the_same_draws() -> None:
    values = np.random.default_rng(7).normal(50, 1, 20)
    positions, rng = np.arange(20), seeds.numpy_generator(0, "bootstrap")
    expected = scipy.stats.bootstrap(
        (positions,), lambda drawn, axis: values[drawn].mean(axis), method="percentile", rng=rng
    ).confidence_interval
    assert over_seeds(values.tolist()) == pytest.approx(tuple(expected), rel=1e-12)


def test_one_seed_has_no_interval_and_equal_seeds_an_empty_one() -> None:
    assert over_seeds([50.0]) is None
    assert over_seeds([50.0, 50.0, 50.0]) == (50.0, 50.0)


def test_the_same_values_give_the_same_interval() -> None:
    assert over_seeds([1.0, 2.0, 4.0, 8.0]) == over_seeds([1.0, 2.0, 4.0, 8.0])


def test_over_clients_draws_clients_with_all_their_seeds() -> None:
    totals = [10, 20, 5, 0]
    counts = [([9, 4, 5, 0], totals), ([8, 6, 4, 0], totals)]
    every = []
    for drawn in itertools.product(range(3), repeat=3):  # the fourth has no test samples
        each = [100 * sum(c[k] for k in drawn) / sum(t[k] for k in drawn) for c, t in counts]
        every.append(statistics.fmean(each))
    low, high = over_clients(counts) or (0.0, 0.0)
    assert [low, high] == pytest.approx(_quantiles(every), abs=1.5)
    assert over_clients([([1], [2])]) is None
    assert over_clients([([1, 2], [2, 2]), ([1, 2, 3], [3, 3, 3])]) is None


def test_an_interval_contains_the_mean_and_narrows_with_more_seeds() -> None:
    rng = np.random.default_rng(5)
    few, many = rng.normal(50, 1, 5).tolist(), rng.normal(50, 1, 80).tolist()
    widths = []
    for values in (few, many):
        low, high = over_seeds(values) or (0.0, 0.0)
        assert low < statistics.fmean(values) < high
        widths.append(high - low)
    assert widths[1] < widths[0]


def test_a_cell_without_a_mean_has_no_interval() -> None:
    assert intervals.of_cell(cell_plan(("a", "x"), [None]), "seeds") is None
    assert intervals.of_cell(cell_plan(("a", "x"), [50.0, 52.0]), "clients") is None  # no records
    low, high = intervals.of_cell(cell_plan(("a", "x"), [50.0, 52.0]), "seeds") or (0.0, 0.0)
    assert (low, high) == (50.0, 52.0)
