"""What training costs: convergence against hand-made curves."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakeplans import stored_rounds
from toy import toy_config

from pfl_bench.reporting.costs import THRESHOLD, convergence
from pfl_bench.reporting.metrics import METRICS, SCORES
from pfl_bench.store.records import RoundRecord


def _records(correct: list[int | None], seconds: float = 60.0) -> list[RoundRecord]:
    return [
        RoundRecord(
            number,
            [0],
            None if right is None else [right],
            None if right is None else [1000],
            seconds={"total": seconds},
        )
        for number, right in enumerate(correct, start=1)
    ]


@pytest.mark.parametrize(
    ("correct", "round"),
    [
        ([100, 300, 500, 500, 500], 3),
        ([100, 300, 499, 498, 500], 3),  # 0.1 points below the best is near enough
        ([100, 300, 498, 497, 500], 5),
        ([500, 300, 200], 1),
        ([100, 200, 300], 3),
        ([None, 100, None, 500, None], 4),
    ],
)
def test_converged_is_the_first_round_near_the_best(correct: list[int | None], round: int) -> None:
    reached = convergence(_records(correct))
    assert reached is not None
    assert reached.round == round


def test_time_counts_the_rounds_up_to_convergence_and_no_others() -> None:
    reached = convergence(_records([100, 500, 500, 500], seconds=90.0))
    assert reached is not None
    assert reached.minutes == pytest.approx(2 * 90 / 60)
    assert reached.minutes_per_round == pytest.approx(1.5)


def test_a_run_without_scores_has_not_converged() -> None:
    assert convergence(_records([None, None])) is None


def test_exactly_the_threshold_is_near_enough_whatever_the_rounding() -> None:
    for best in range(1, 1000):
        reached = convergence(_records([best - 1, best]), THRESHOLD)
        assert reached is not None
        assert reached.round == 1


def test_a_stored_run_gives_every_measure_of_overhead(tmp_path: Path) -> None:
    config = toy_config("fedcp", dataset="tinyimagenet", model="resnet18")
    run = stored_rounds(
        tmp_path,
        config,
        correct=[100, 500, 500],
        seconds=[30.0, 60.0, 600.0],
        bytes_up=8_000_000,
        bytes_down=4_000_000,
        parameters_up=2_000_000,
        parameters_down=1_000_000,
    )
    found = {name: measure.of(run) for name, measure in METRICS.items()}
    assert found == {
        "accuracy": 50.0,
        "last_accuracy": 50.0,
        "late_accuracy": None,  # of three rounds
        "test_loss": 1.0,
        "psnr": None,
        "total_minutes": 1.5,
        "iterations": 2.0,
        "minutes_per_iteration": 0.75,
        "parameters_up": 1_000_000.0,  # two clients joined each round
        "parameters_down": 500_000.0,
        "megabytes_up": 4.0,
        "megabytes_down": 2.0,
        "peak_gigabytes": 2.5,
    }


def test_scores_tell_the_best_the_last_and_the_late_rounds_apart(tmp_path: Path) -> None:
    correct = [900, *range(1, 25), 10]
    run = stored_rounds(tmp_path, toy_config(), correct, [1.0] * 26)
    found = {score: METRICS[measure].of(run) for score, measure in SCORES.items()}
    late = sum((*range(6, 25), 10)) / 20 / 10
    assert found == {"best": 90.0, "last": 1.0, "late": pytest.approx(late), "loss": 1.0}


def test_test_loss_weighs_clients_by_their_samples_and_leaves_out_who_has_none(
    tmp_path: Path,
) -> None:
    run = stored_rounds(tmp_path, toy_config(), [1], [1.0])
    last = RoundRecord(2, [0], [1, 0, 0], [3, 1, 0], [2.0, 6.0, float("nan")])
    unscored = RoundRecord(3, [0])
    with (run.path / "rounds.jsonl").open("a") as file:
        file.writelines(record.to_line() for record in (last, unscored))
    assert METRICS["test_loss"].of(run) == (3 * 2.0 + 6.0) / 4
