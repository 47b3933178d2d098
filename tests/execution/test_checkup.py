"""What the doctor looks at: its checks hold here, and each would notice if it did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy import toy_config, toy_dataset

from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution import checkup
from pfl_bench.execution.checkup import Pacing
from pfl_bench.execution.estimates import STEP_OVERHEAD, operations
from pfl_bench.models.backbones import Inputs

FIRST, WORKERS, KILLED = range(3)


def test_this_machine_holds_what_every_machine_must(tmp_path: Path) -> None:
    found = checkup.checks(tmp_path)
    assert [check.holds for check in found] == [True, True, True], found


def test_runs_that_differ_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seeds = checkup._records, iter(range(9))

    def drifting(config: RunConfig, *rest: Any) -> Any:
        from dataclasses import replace

        return real(replace(config, rounds=1, seed=next(seeds)), *rest)

    monkeypatch.setattr(checkup, "_records", drifting)
    monkeypatch.setattr(checkup, "_resumed", lambda *_: checkup.Check("", True))
    found = checkup.checks(tmp_path)
    assert not found[FIRST].holds and not found[WORKERS].holds


def _returns_unharmed(config: RunConfig, folder: Path) -> None:
    """In place of the run that is killed."""


def test_a_process_that_nobody_killed_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "_until_killed", _returns_unharmed)
    found = checkup._resumed(toy_config(), toy_dataset(), [], tmp_path)
    assert not found.holds and "not there to be killed" in found.detail


def test_a_card_that_computes_as_the_processor_agrees_with_it() -> None:
    agreeing, repeated = checkup.card_checks("cpu")
    assert agreeing.holds and agreeing.detail.startswith("0.0e+00 of the way trained")
    assert repeated.holds


@pytest.mark.parametrize(("error", "holds"), [(2e-4, True), (5e-3, False)])
def test_a_card_may_stray_by_the_stated_share_of_the_way_and_no_more(
    error: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checkup._weights

    def weights(config: RunConfig, dataset: Any, device: str, rounds: int) -> Any:
        here = real(config, dataset, "cpu", rounds)
        if device == "cpu":
            return here
        start = real(config, dataset, "cpu", 0)
        return {n: v + error * (v - start[n]) if n in start else v for n, v in here.items()}

    monkeypatch.setattr(checkup, "_weights", weights)
    monkeypatch.setattr(checkup, "_records", lambda *_: [])
    agreeing, _ = checkup.card_checks("card")
    assert agreeing.holds == holds


@pytest.mark.parametrize(("faster", "is_slow"), [("W xᵀ", True), ("x Wᵀ", False)])
def test_an_order_of_the_wide_layer_that_does_not_fit_is_noticed(
    faster: str, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = iter([0.2 if order == faster else 0.5 for order in ("W xᵀ", "x Wᵀ")] * 5)
    monkeypatch.setattr(checkup, "_seconds", lambda *_: next(timings))
    monkeypatch.setattr(checkup, "wide_order", lambda: "x Wᵀ")
    found = checkup.wide_layer()
    assert found.is_slow == is_slow and {found.seconds, found.otherwise} == {0.2, 0.5}


def test_a_rate_is_operations_by_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr(checkup.time, "perf_counter", lambda: 0.1 * next(ticks))
    # The clock is read once before and then before each product: four end within half a second.
    assert checkup._product_rate() == pytest.approx(4 * 2 * 1024**3 / 0.5)


def test_the_time_of_a_table_is_the_arithmetic_of_its_models(tmp_path: Path) -> None:
    """Data that are not here count as published."""
    config = toy_config(dataset="cifar10", rounds=7, local_epochs=2, joining_ratio=(0.5, 0.5))
    a_sample = STEP_OVERHEAD + operations("cnn", Inputs(10, (3, 32, 32)))
    expected = 7 * 2 * 0.5 * 60_000 * a_sample / 1e12
    pace = Pacing(0.0, 1e12)
    assert checkup.expected([config], pace, tmp_path) == pytest.approx(expected)
    assert checkup.expected([config] * 3, pace, tmp_path) == pytest.approx(3 * expected)
