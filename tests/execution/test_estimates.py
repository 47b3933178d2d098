"""The order of submission and what it gains, against sums made by hand."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from fakeplans import stored_rounds
from hypothesis import given, settings
from hypothesis import strategies as st
from prepared import prepare_toy
from toy import toy_config

from pfl_bench.execution.estimates import (
    Pace,
    effort,
    expected_seconds,
    longest_first,
    makespan,
)
from pfl_bench.execution.request import Request

SECONDS = st.lists(st.integers(1, 20), min_size=1, max_size=6)


def test_each_worker_takes_the_next_run_when_it_is_free() -> None:
    # Two workers: 3 | 2, then 4 on the second (2–6), then 1 on the first (3–4).
    assert makespan([3, 2, 4, 1], workers=2) == 6
    assert makespan([5, 1, 1], workers=8) == 5
    assert makespan([], workers=2) == 0


@settings(deadline=None, max_examples=50)
@given(SECONDS, st.integers(1, 4))
def test_longest_first_is_within_a_third_of_the_best(seconds: list[int], workers: int) -> None:
    """Graham's bound, 4/3 − 1/(3m), against every order there is."""
    best = min(makespan(order, workers) for order in set(permutations(seconds)))
    assert makespan(sorted(seconds, reverse=True), workers) <= (4 / 3 - 1 / (3 * workers)) * best


def test_measured_runs_go_by_their_time_and_others_by_their_effort(tmp_path: Path) -> None:
    folder = prepare_toy(tmp_path / "data")
    quick, slow = toy_config("fedavg", rounds=4), toy_config("pfedme", rounds=4)
    pace = Pace()
    for number, config in enumerate((quick, slow)):
        seconds = [1.0 + 4 * number] * 4
        pace.learn(stored_rounds(tmp_path, config, [500] * 4, seconds))
    other = toy_config("fedavg", rounds=8)
    assert expected_seconds([quick, slow, other], pace, folder) == [4.0, 20.0, 8.0]
    runs = [Request(config) for config in (quick, slow, other)]
    assert [run.config for run in longest_first(runs, pace, folder)] == [slow, other, quick]
    # Data that nothing tells of: at the rate, per operation, of the runs that were measured.
    unknown = toy_config("fedavg", dataset="mnist", source="standin")
    known = effort(quick, folder) + effort(slow, folder)
    expected = effort(unknown, folder) * 24.0 / known
    assert expected_seconds([quick, slow, unknown], pace, folder)[2] == pytest.approx(expected)


def test_effort_counts_operations_of_all_samples_trained_on(tmp_path: Path) -> None:
    folder = prepare_toy(tmp_path / "data", samples=160)
    once = effort(toy_config(rounds=1), folder)
    assert effort(toy_config(rounds=6, local_epochs=2, fraction=0.5), folder) == 6 * once
    # The CNN on 16×16 grey images: two convolutions 5×5 with pooling, two linear layers.
    macs = 32 * 12 * 12 * 25 + 64 * 2 * 2 * 25 * 32 + 64 * 512 + 512 * 4
    assert once == 160 * (2e6 + 2 * macs)
    # The small one on 8×8, its convolutions padded.
    macs = 16 * 8 * 8 * 9 + 32 * 4 * 4 * 9 * 16 + 32 * 2 * 2 * 128 + 128 * 4
    small = toy_config(rounds=1, model="cnn_small", image_size=8)
    assert effort(small, folder) == 160 * (2e6 + 2 * macs)


@pytest.mark.parametrize("model", ["fasttext", "resnet18"])
def test_run_that_will_be_refused_is_in_nobodys_way(tmp_path: Path, model: str) -> None:
    folder = prepare_toy(tmp_path / "data")
    assert effort(toy_config(rounds=3, model=model), folder) == 3
