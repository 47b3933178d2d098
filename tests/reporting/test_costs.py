"""What training costs: convergence against hand-made curves, the CPN against the paper."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakeplans import stored_rounds
from toy import toy_config

from pfl_bench.models.backbones import Inputs
from pfl_bench.reporting.costs import THRESHOLD, Share, convergence, cpn_of, cpn_share
from pfl_bench.reporting.metrics import MEASURES, SCORES
from pfl_bench.store.records import RoundRecord

TINY = Inputs(200, (3, 64, 64))


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


@pytest.mark.parametrize(
    ("model", "whole", "printed"), [("cnn", 5_694_600, "9.25"), ("resnet18", 11_279_112, "4.67")]
)
def test_the_cpn_s_share_is_the_paper_s(model: str, whole: int, printed: str) -> None:
    share = cpn_share(model, TINY)
    assert (share.extra, share.whole) == (527_360, whole)
    assert f"{share.percent_of_millions:.2f}" == printed


def test_the_exact_share_is_that_of_the_real_counts() -> None:
    assert cpn_share("cnn", TINY).percent == pytest.approx(9.26070, abs=5e-6)
    assert cpn_share("resnet18", TINY).percent == pytest.approx(4.67555, abs=5e-6)


@pytest.mark.parametrize(
    ("layers", "extra"), [(1, 527_360), (2, 790_016), (3, 1_052_672), (4, 1_315_328)]
)
def test_deeper_cpns_have_the_parameters_of_the_paper(layers: int, extra: int) -> None:
    assert cpn_share("cnn", TINY, layers=layers).extra == extra


def test_counting_draws_no_random_number() -> None:
    before = torch.random.get_rng_state()
    cpn_share("resnet18", TINY)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_share_says_both_ways_of_counting() -> None:
    assert "9.26 %" in str(Share(527_360, 5_694_600))
    assert "9.25 %" in str(Share(527_360, 5_694_600))


def test_only_fedcp_with_its_cpn_has_cpn_parameters() -> None:
    with_cpn = toy_config("fedcp", dataset="tinyimagenet", model="resnet18")
    assert cpn_of(with_cpn.to_dict()) == cpn_share("resnet18", TINY)
    without = toy_config("fedcp", {"cpn": False}, dataset="tinyimagenet", model="resnet18")
    assert cpn_of(without.to_dict()) is None
    assert cpn_of(toy_config("fedavg", dataset="tinyimagenet").to_dict()) is None


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
    found = {name: measure.of(run) for name, measure in MEASURES.items()}
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
        "cpn_parameters": 527_360.0,
        "peak_gigabytes": 2.5,
    }


def test_scores_tell_the_best_the_last_and_the_late_rounds_apart(tmp_path: Path) -> None:
    correct = [900, *range(1, 25), 10]
    run = stored_rounds(tmp_path, toy_config(), correct, [1.0] * 26)
    found = {score: MEASURES[measure].of(run) for score, measure in SCORES.items()}
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
    assert MEASURES["test_loss"].of(run) == (3 * 2.0 + 6.0) / 4
