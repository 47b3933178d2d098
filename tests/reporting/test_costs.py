"""What training costs: convergence against hand-made curves."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakeplans import stored_rounds
from toy import toy_config

from pfl_bench.reporting import costs
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
        ([100, 300, 496, 501, 500], 3),  # half a point below the top is near enough
        ([100, 300, 494, 500, 500, 499], 4),
        ([None, 100, None, 500, None, 500], 4),
        ([100, 200, 300], None),  # still rises
        ([500, 300, 200], None),  # never rose
        ([500, 500, 500], None),
        ([None, None], None),
    ],
)
def test_converged_is_the_first_round_near_the_top_of_a_run_that_has_one(
    correct: list[int | None], round: int | None
) -> None:
    assert costs.iterations(_records(correct)) == round


def test_the_first_round_counts_neither_for_time_nor_for_traffic() -> None:
    records = [
        RoundRecord(1, [0, 1], [100], [1000], bytes_down=0, seconds={"total": 900.0}),
        RoundRecord(2, [0, 1], [500], [1000], bytes_down=60, seconds={"total": 60.0}),
        RoundRecord(3, [0], [500], [1000], bytes_down=30, seconds={"total": 120.0}),
    ]
    assert costs.minutes_per_iteration(records) == pytest.approx(1.5)
    assert costs.total_minutes(records) == pytest.approx(2 * 1.5)
    assert costs.per_client(records, "bytes_down") == 30.0
    assert costs.minutes_per_iteration(records[:1]) is None
    assert costs.per_client(records[:1], "bytes_down") is None


def test_a_run_that_has_not_converged_has_no_total_and_says_why() -> None:
    records = _records([100, 200, 300])
    assert costs.total_minutes(records) is None
    assert costs.minutes_per_iteration(records) == pytest.approx(1.0)
    assert "still rising" in METRICS["iterations"].needs


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
    expected = {
        "accuracy": 50.0,
        "last_accuracy": 50.0,
        "late_accuracy": None,  # of three rounds
        "test_loss": 1.0,
        "mean_over_clients": 50.0,
        "std_over_clients": 0.0,
        "worst_decile": 50.0,
        "below_local": None,  # takes a run of Local
        "below_majority": None,  # nothing is known of the data
        "total_minutes": 11.0,
        "iterations": 2,
        "minutes_per_iteration": 5.5,  # of the second and the third
        "parameters_up": 1_000_000.0,  # two clients joined each round
        "parameters_down": 500_000.0,
        "megabytes_up": 4.0,
        "megabytes_down": 2.0,
        "peak_gigabytes": 2.5,
    }
    assert {name: METRICS[name].read(run) for name in expected} == expected


def test_scores_tell_the_best_the_last_and_the_late_rounds_apart(tmp_path: Path) -> None:
    correct = [900, *range(1, 25), 10]
    run = stored_rounds(tmp_path, toy_config(), correct, [1.0] * 26)
    scores = ("best", "last", "late", "loss")
    found = {score: METRICS[SCORES[score]].of(run) for score in scores}
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
