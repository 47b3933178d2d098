"""Two stored runs side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from toy import toy_config

from pfl_bench.base.errors import UserError
from pfl_bench.cli.compare import compare as command
from pfl_bench.config.run_config import RunConfig
from pfl_bench.reporting.comparison import bars, compare
from pfl_bench.reporting.rivals import duels
from pfl_bench.store import provenance
from pfl_bench.store.records import RoundRecord
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun


def _store(
    root: Path,
    config: RunConfig,
    correct: list[list[int]],
    status: str = "finished",
    partition: str | None = "p",
) -> StoredRun:
    """A run in which each of the clients, with 100 test samples each, has so many right."""
    with Store(root).open(config) as writer:
        for number, right in enumerate(correct, start=1):
            total, loss = [100] * len(right), [1.0] * len(right)
            writer.append(
                RoundRecord(
                    number, [0], right, total, loss, 1.0, bytes_up=2_000_000, seconds={"total": 1.5}
                )
            )
        return writer.finish(status, None, {"partition_fingerprint": partition})


@pytest.fixture
def pair(tmp_path: Path) -> tuple[StoredRun, StoredRun]:
    a = _store(tmp_path, toy_config("fedavg"), [[10, 10, 10], [50, 40, 60]])
    b = _store(tmp_path, toy_config("fedprox", {"mu": 0.5}), [[90, 40, 20], [10, 10, 10]])
    return a, b


def test_only_settings_that_differ_are_told(pair: tuple[StoredRun, StoredRun]) -> None:
    assert compare(*pair).options == {"algo": ("fedavg", "fedprox"), "set mu": (None, 0.5)}


def test_figures_stand_side_by_side_with_their_difference(
    pair: tuple[StoredRun, StoredRun],
) -> None:
    figures = {figure.name.strip(): figure for figure in compare(*pair).measured}
    best = figures["best accuracy (%)"]
    assert (best.a, best.b, best.difference) == pytest.approx((50.0, 50.0, 0.0))
    assert (figures["best round"].a, figures["best round"].b) == (2, 1)
    assert figures["last accuracy (%)"].difference == pytest.approx(-40.0)
    assert figures["worst decile of clients (%)"].b == pytest.approx(20.0)
    assert figures["MB up per client and round"].a == pytest.approx(2.0)
    assert figures["seconds per round"].b == pytest.approx(1.5)


def test_clients_are_compared_in_the_best_round_of_each(
    pair: tuple[StoredRun, StoredRun],
) -> None:
    # 50, 40, 60 in round 2 against 90, 40, 20 in round 1.
    assert compare(*pair).better == (1, 1, 1)


def test_clients_of_different_partitions_are_not_compared(tmp_path: Path) -> None:
    a = _store(tmp_path, toy_config("fedavg"), [[1, 2]], partition="p")
    b = _store(tmp_path, toy_config("fedper"), [[1, 2]], partition="q")
    assert compare(a, b).better is None


def test_an_unfinished_run_is_compared_as_far_as_it_went(tmp_path: Path) -> None:
    a = _store(tmp_path, toy_config("fedavg"), [[10], [20]])
    config = toy_config("fedper")
    with Store(tmp_path).open(config) as writer:
        writer.append(RoundRecord(1, [0], [30], [100], [1.0], 1.0))
    b = next(run for run in Store(tmp_path).all() if run.config["algo"] == "fedper")
    figures = {figure.name: figure for figure in compare(a, b).measured}
    assert figures["best accuracy (%)"].b == pytest.approx(30.0)


def test_a_run_without_a_score_is_refused_with_its_reason(tmp_path: Path) -> None:
    a = _store(tmp_path, toy_config("fedavg"), [[10]])
    with Store(tmp_path).open(toy_config("perfedavg")) as writer:
        b = writer.finish("skipped", "client 7 has less than two batches")
    with pytest.raises(UserError, match="skipped: client 7 has less than two batches"):
        compare(a, b)


@pytest.mark.parametrize(
    ("curve", "rounds", "line"),
    [
        ([(1, 0.0), (2, 50.0), (3, 100.0)], 3, "▁▅█"),
        ([(1, 100.0), (2, 100.0)], 4, "██"),  # ends half-way
        ([(2, 0.0), (4, 100.0)], 4, " ▁▁█"),  # scored every second round
    ],
)
def test_bars_follow_the_curve_on_the_given_scale(
    curve: list[tuple[int, float]], rounds: int, line: str
) -> None:
    assert bars(curve, rounds, 0.0, 100.0) == line


def test_a_long_curve_is_thinned_to_the_width_and_keeps_its_end() -> None:
    curve = [(number, float(number)) for number in range(1, 1001)]
    line = bars(curve, 1000, 1.0, 1000.0)
    assert len(line) == 60
    assert line[0] == "▁"
    assert line[-1] == "█"


def _run(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--results", str(tmp_path)])


def test_the_command_prints_settings_figures_and_both_curves(
    tmp_path: Path, pair: tuple[StoredRun, StoredRun]
) -> None:
    a, b = pair
    result = _run(tmp_path, a.key[:8], b.key[:8])
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["algo", "fedavg", "fedprox"] in lines
    assert ["last", "accuracy", "(%)", "50.00", "10.00", "−40.00"] in lines
    assert "Of 3 clients A is better on 1 and B on 1" in result.output
    assert ["A", "▁█"] in lines
    assert ["B", "█▁"] in lines


def test_data_that_are_not_as_published_are_told_of_both_runs_that_use_them(
    tmp_path: Path, pair: tuple[StoredRun, StoredRun]
) -> None:
    assert compare(*pair).problems[0].startswith("toy, ")
    a, b = pair
    noted = replace(a, summary={**(a.summary or {}), "data": "toy copy"})
    for told in compare(noted, b).problems:
        assert told.startswith("toy (toy copy), ")
    others = replace(b, config={**b.config, "data_fingerprint": "another"})
    assert [told[:6] for told in compare(noted, others).problems] == ["toy (t", "toy, p"]


def test_stand_ins_are_called_stand_ins(tmp_path: Path) -> None:
    config = replace(toy_config("fedavg"), dataset="mnist", source="standin")
    run = _store(tmp_path, config, [[10]])
    result = _run(tmp_path, run.key, run.key)
    assert result.output.count("MNIST (stand-in), ") == 2


def test_a_run_is_also_known_by_the_name_of_its_folder(
    tmp_path: Path, pair: tuple[StoredRun, StoredRun]
) -> None:
    result = _run(tmp_path, *(run.path.name for run in pair))
    assert result.exit_code == 0, result.output
    assert f"A  {pair[0].path.name} (finished)" in result.output


def test_the_command_draws_both_curves(tmp_path: Path, pair: tuple[StoredRun, StoredRun]) -> None:
    out = tmp_path / "curves.svg"
    result = _run(tmp_path, *(run.key for run in pair), "--plot", str(out))
    assert result.exit_code == 0, result.output
    assert out.read_text().rstrip().endswith("</svg>")


def test_an_unknown_picture_format_is_refused(
    tmp_path: Path, pair: tuple[StoredRun, StoredRun]
) -> None:
    result = _run(tmp_path, *(run.key for run in pair), "--plot", "curves.gif")
    assert isinstance(result.exception, UserError)
    assert "png" in str(result.exception)


def test_a_key_that_is_not_stored_is_named(tmp_path: Path) -> None:
    result = _run(tmp_path, "0123abcd", "4567abcd")
    assert isinstance(result.exception, UserError)
    assert "0123abcd" in str(result.exception)


# --- two methods ----------------------------------------------------------------------------------


def _seeded(root: Path, algo: str, seed: int, right: int, **other: object) -> None:
    config = replace(toy_config(algo), seed=seed, **other)
    _store(root, config, [[right, right], [0, 0]])


def test_two_methods_are_compared_on_the_seeds_they_share(tmp_path: Path) -> None:
    for seed, right in ((0, 50), (1, 40), (3, 99)):
        _seeded(tmp_path, "fedavg", seed, right)
    for seed, right in ((0, 60), (1, 38), (2, 99)):
        _seeded(tmp_path, "fedper", seed, right)
    (duel,) = duels(Store(tmp_path).all(), "FedAvg", "fed-per")
    assert duel.seeds == [0, 1]
    assert duel.means == pytest.approx((45.0, 49.0))
    assert duel.differences == pytest.approx([10.0, -2.0])
    assert duel.better == (1, 1)


def test_methods_are_compared_within_a_problem_never_across(tmp_path: Path) -> None:
    _seeded(tmp_path, "fedavg", 0, 50)
    _seeded(tmp_path, "fedper", 0, 60, lr=0.5)
    assert duels(Store(tmp_path).all(), "fedavg", "fedper") == []
    _seeded(tmp_path, "fedavg", 0, 20, lr=0.5)
    (duel,) = duels(Store(tmp_path).all(), "fedavg", "fedper")
    assert duel.means == pytest.approx((20.0, 60.0))


def test_the_command_compares_methods_by_name(tmp_path: Path) -> None:
    _seeded(tmp_path, "fedavg", 0, 50)
    _seeded(tmp_path, "fedper", 0, 60)
    shown = CliRunner().invoke(command, ["FedPer", "fedavg", "--results", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "fedavg − FedPer" in shown.output and "-10.00" in shown.output.replace("−", "-")


def test_of_a_method_and_a_stranger_the_stranger_is_named(tmp_path: Path) -> None:
    _seeded(tmp_path, "fedavg", 0, 50)
    for pair in (["FedAvg", "fedaverage"], ["fedaverage", "FedAvg"]):
        refused = CliRunner().invoke(command, [*pair, "--results", str(tmp_path)])
        assert isinstance(refused.exception, UserError)
        assert "'fedaverage'; did you mean 'fedavg'?" in str(refused.exception)


def test_methods_that_share_nothing_are_refused_in_a_sentence(tmp_path: Path) -> None:
    _seeded(tmp_path, "fedavg", 0, 50)
    _seeded(tmp_path, "fedper", 1, 60)
    refused = CliRunner().invoke(command, ["fedper", "fedavg", "--results", str(tmp_path)])
    assert isinstance(refused.exception, UserError)
    assert "no problem and seed in common" in str(refused.exception)


# --- two results of one configuration -------------------------------------------------------------


def _losing(root: Path, *losses: float, drift: float = 0.0) -> StoredRun:
    """A run of one client with these losses, off by `drift`."""
    config = toy_config("fedavg", rounds=len(losses))
    with Store(root).open(config) as writer:
        for number, loss in enumerate(losses, start=1):
            right = [50 + round(drift * 10**6)]
            writer.append(RoundRecord(number, [0], right, [100], [loss + drift], loss + drift))
        return writer.finish("finished", None, {"device": "cpu"})


def test_two_results_with_the_same_bits_are_called_so(tmp_path: Path) -> None:
    a, b = _losing(tmp_path / "a", 2.0, 1.0), _losing(tmp_path / "b", 2.0, 1.0)
    assert compare(a, b).verdict == "The two have the same bits."


def test_a_longer_result_has_the_same_bits_as_far_as_both_go(tmp_path: Path) -> None:
    a, b = _losing(tmp_path / "a", 2.0, 1.0), _losing(tmp_path / "b", 2.0, 1.0, 0.5)
    assert compare(a, b).verdict == "The two have the same bits in the 2 rounds of both."


def test_results_that_round_otherwise_say_what_they_were_computed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in provenance._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    a = _losing(tmp_path / "a", 2.0, 1.0)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    b = _losing(tmp_path / "b", 2.0, 1.0, drift=1e-6)
    assert b.summary is not None and b.summary["provenance"]["environment"] == {
        "MKL_CBWR": "COMPATIBLE"
    }
    assert compare(a, b).verdict == (
        "The two are the same to rounding; they were computed with environment unknown and "
        "MKL_CBWR=COMPATIBLE."
    )


def test_another_processor_explains_rounding_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = _losing(tmp_path / "a", 2.0, 1.0)
    monkeypatch.setattr(provenance, "machine", lambda: {"cpu": "another"})
    near, far = _losing(tmp_path / "b", 2.0, 1.0, drift=1e-6), _losing(tmp_path / "c", 2.5, 1.0)
    assert "same to rounding" in compare(a, near).verdict
    assert "different from round 1 on; they were computed with cpu" in compare(a, far).verdict


def test_results_made_alike_that_differ_are_different(tmp_path: Path) -> None:
    a, b = _losing(tmp_path / "a", 2.0, 1.0), _losing(tmp_path / "b", 2.0, 1.1)
    verdict = compare(a, b).verdict
    assert "different from round 2 on, although both were computed with the same" in verdict


def test_of_other_configurations_no_verdict_is_given(pair: tuple[StoredRun, StoredRun]) -> None:
    assert compare(*pair).verdict == ""


def test_the_command_prints_the_verdict(tmp_path: Path) -> None:
    a, b = _losing(tmp_path / "a", 2.0, 1.0), _losing(tmp_path / "b", 2.0, 1.0)
    result = CliRunner().invoke(command, [str(a.path), str(b.path), "--results", str(tmp_path)])
    assert "The two have the same bits." in result.output, result.output
