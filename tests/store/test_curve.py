"""What a curve says, against curves made by hand and naive calculations."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.store.curve import (
    LATE_START,
    RISE,
    Patience,
    converged,
    smoothed,
    still_rising,
)

scores = st.lists(st.integers(0, 1000).map(lambda right: right / 1000), min_size=1, max_size=60)


@given(scores, st.integers(0, 12))
def test_smoothing_is_the_mean_over_the_neighbours_there_are(
    curve: list[float], width: int
) -> None:
    reach = width // 2
    naive = [
        statistics.fmean(v for j, v in enumerate(curve) if abs(j - k) <= reach)
        for k in range(len(curve))
    ]
    assert smoothed(curve, width) == pytest.approx(naive, abs=1e-12)


FLAT = [0.1, 0.3, 0.5, *[0.6] * 37]


@pytest.mark.parametrize(
    ("curve", "rising"),
    [
        (FLAT, False),
        ([*FLAT[:-1], 0.601], True),  # the best in the last of 40, which are 5 %: two rounds
        ([*FLAT[:-2], 0.601, 0.6], True),
        ([*FLAT[:-3], 0.601, 0.6, 0.6], False),
        ([0.9, *[0.5] * 31, *[0.5] * 4, *[0.506] * 4], True),  # the last tenth is 0.6 points up
        ([0.9, *[0.5] * 31, *[0.5] * 4, *[0.505] * 4], False),  # exactly the amount is no rise
        ([0.5], True),  # shows no end
        ([], False),
    ],
)
def test_still_rising_is_a_late_best_or_a_better_last_tenth(
    curve: list[float], rising: bool
) -> None:
    assert still_rising(curve) is rising


@given(scores)
def test_still_rising_is_what_its_words_say(curve: list[float]) -> None:
    count = len(curve)
    late = math.ceil(count / 20)
    # The earliest of the best is among the last: nothing before them is as good.
    is_late = count == 1 or all(value < max(curve) for value in curve[: count - late])
    tenth = max(1, count // 10)
    last, before = curve[count - tenth :], curve[max(0, count - 2 * tenth) : count - tenth]
    gain = sum(last) / tenth - (sum(before) / tenth if before else 0.0)
    if abs(gain - RISE) > 1e-7:
        assert still_rising(curve) == (is_late or gain > RISE)


def test_converged_is_where_the_smoothed_curve_comes_near_its_top() -> None:
    noisy = [0.1 * k for k in range(6)] + [0.6 + 0.002 * (-1) ** k for k in range(54)]
    noisy[30] = 0.61  # a lucky round does not put convergence off
    reached = converged(noisy)
    top = max(smoothed(noisy, 6))
    assert reached is not None
    assert smoothed(noisy, 6)[reached] >= top - RISE > smoothed(noisy, 6)[reached - 1]
    assert 6 <= reached <= 10


def test_a_run_that_rises_or_never_began_has_not_converged() -> None:
    assert converged([k / 100 for k in range(50)]) is None
    assert converged([0.5] * 50) is None
    assert converged([0.9, *[0.5] * 49]) is None
    assert converged([]) is None


def ended_after(scores: list[float], patience: int, untrained: float | None = None) -> int | None:
    """The number of scores after which patience was at its end."""
    one = Patience(patience, untrained)
    for count, score in enumerate(scores, start=1):
        one.add(score)
        if one.is_out:
            return count
    return None


def test_patience_ends_a_run_that_learnt_and_stood_still() -> None:
    learnt = [k / 20 for k in range(11)]
    assert ended_after([*learnt, *[0.5] * 30], 5) == len(learnt) + 5


def test_patience_is_longer_with_a_run_that_has_not_risen_above_its_start() -> None:
    late = [0.238, *[0.2] * 104, *[0.2 + 0.004 * k for k in range(1, 96)]]
    assert ended_after(late, 75) is None
    assert ended_after([0.2] * 300, 75) == 1 + LATE_START * 75


def test_patience_is_longer_with_a_run_that_knows_no_more_than_the_most_frequent_class() -> None:
    plateau = [*[k / 20 for k in range(14)], *[0.7 + 0.01 * (k % 2) for k in range(100)]]
    late = [*plateau, *[0.7 + 0.004 * k for k in range(1, 60)]]
    assert ended_after(late, 40) is not None
    assert ended_after(late, 40, untrained=0.7) is None
    assert ended_after(late, 40, untrained=0.3) == ended_after(late, 40)


def test_one_lucky_round_does_not_end_a_run_that_slowly_rises() -> None:
    rising = [0.4 + 0.0005 * k for k in range(150)]
    rising[20] = 0.46  # which the curve passes 100 rounds later
    assert max(range(100), key=rising.__getitem__) == 20  # single rounds would have ended it
    assert ended_after(rising, 75) is None


@given(scores, st.integers(1, 40))
def test_patience_is_what_its_words_say(curve: list[float], patience: int) -> None:
    width = max(1, patience // 10)

    def is_out(count: int) -> bool:
        means = [statistics.fmean(curve[max(0, k + 1 - width) : k + 1]) for k in range(count)]
        first = next(k for k, mean in enumerate(means) if mean >= max(means) - 1e-9)
        factor = 1 if max(means) - means[0] > RISE else LATE_START
        return count - 1 - first >= patience * factor

    gaps = (abs(a - b) for a in curve for b in (curve[0] + RISE,))
    if min(gaps) > 1e-7:  # exactly at the amount, the last bit decides
        naive = next((n for n in range(1, len(curve) + 1) if is_out(n)), None)
        assert ended_after(curve, patience) == naive
