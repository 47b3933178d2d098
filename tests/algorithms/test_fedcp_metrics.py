"""FedCP's metrics: the CPN against the paper's counts, PIR against a mean by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakeplans import stored_rounds
from toy import toy_config

from pfl_bench.algorithms.metrics.fedcp import Share, cpn_of, cpn_share
from pfl_bench.models.backbones import Inputs
from pfl_bench.reporting.metrics import metric

TINY = Inputs(200, (3, 64, 64))


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
    reduced = toy_config("fedcp", dataset="tinyimagenet", model="cnn_small", image_size=16)
    assert cpn_of(reduced.to_dict()) == cpn_share("cnn_small", Inputs(200, (3, 16, 16)))
    without = toy_config("fedcp", {"cpn": False}, dataset="tinyimagenet", model="resnet18")
    assert cpn_of(without.to_dict()) is None
    assert cpn_of(toy_config("fedavg", dataset="tinyimagenet").to_dict()) is None


def test_the_cpn_s_parameters_can_be_shown_in_a_table(tmp_path: Path) -> None:
    config = toy_config("fedcp", dataset="tinyimagenet", model="resnet18")
    run = stored_rounds(tmp_path, config, [1], [1.0])
    assert metric("cpn_parameters").of(run) == 527_360.0
    assert "4.68 %" in metric("cpn_parameters").note(run.config)


def test_pir_is_the_mean_over_clients_of_the_last_round_that_recorded_it(tmp_path: Path) -> None:
    run = stored_rounds(tmp_path, toy_config("fedcp"), [1, 2], [1.0, 1.0])
    assert metric("pir").of(run) is None
    recorded = [
        *(replace(record, extras={"pir": [0.2, 0.4]}) for record in run.records()[:1]),
        *(replace(record, extras={"pir": [0.5, None, 0.7]}) for record in run.records()[1:]),
    ]
    (run.path / "rounds.jsonl").write_text("".join(record.to_line() for record in recorded))
    assert metric("pir").of(run) == pytest.approx(0.6)
