"""What a table needs, worked out from stored runs: statuses, figures, order, time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy import toy_config

from pfl_bench.base.errors import UserError
from pfl_bench.config.options import Profile, load_profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.data import registry as data
from pfl_bench.execution.configuration import data_key
from pfl_bench.execution.estimates import Pace, estimate
from pfl_bench.execution.request import Request
from pfl_bench.reporting.tables.plan import (
    CellPlan,
    TablePlan,
    foresee,
    known_to,
    plan_table,
)
from pfl_bench.reporting.tables.reading import load_table, read_table
from pfl_bench.reporting.tables.spec import Cell, TableSpec
from pfl_bench.store.records import RoundRecord
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

PROFILE = Profile("tiny", "", {"source": "standin", "rounds": 2, "fraction": 0.02}, {}, {})

SPEC = """
caption: two ways to deal MNIST
run: {dataset: mnist, clients: 4}
columns:
  - {name: skewed, run: {beta: 0.1}}
  - {name: even, run: {beta: 5}}
rows:
  - {name: FedAvg, run: {algo: fedavg}}
  - {name: FedCP, run: {algo: fedcp}}
  - {name: FedAvg again, run: {algo: fedavg}}
"""


def _spec(tmp_path: Path, text: str = SPEC) -> TableSpec:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return read_table(path)


def _plan(tmp_path: Path, store: Store, seeds: int = 2, text: str = SPEC) -> TablePlan:
    return plan_table(_spec(tmp_path, text), PROFILE, seeds, store, tmp_path / "no-data")


def _keep(
    store: Store,
    config: RunConfig,
    correct: int = 5,
    status: str = "finished",
    reason: str | None = None,
    seconds: float = 1.0,
) -> StoredRun:
    """Store a run of `config` in which `correct` of ten test samples were right."""
    with store.open(config) as writer:
        for round in range(1, config.rounds + 1) if status != "skipped" else ():
            record = RoundRecord(round, [0], [correct], [10], [0.1], seconds={"total": seconds})
            writer.append(record)
        return writer.finish(status, reason)


def _cell(runs: list[StoredRun | None], impossible: str | None = None) -> CellPlan:
    cell = Cell("row", "column", {}, {}, None)
    configs = tuple(replace(toy_config(), seed=seed) for seed in range(len(runs)))
    return CellPlan(cell, configs, tuple(runs), impossible)


def _run(status: str = "finished", accuracy: float = 0.5, reason: str | None = None) -> StoredRun:
    summary: Mapping[str, Any] = {
        "best": {"round": 1, "accuracy": accuracy},
        "reason": reason,
    }
    return StoredRun(Path("x-0123456789abcdef"), {}, dict(summary), status)


# --- a cell ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "impossible", "status"),
    [
        ([None, None], None, "not run"),
        ([_run(), None], None, "partly run"),
        ([_run(), _run()], None, "done"),
        ([_run("diverged"), None], None, "diverged"),
        ([_run(), _run("diverged")], None, "diverged"),
        ([_run("skipped"), _run("skipped")], None, "skipped"),
        ([None, None], "too few samples", "skipped"),
    ],
)
def test_status_follows_from_the_runs(
    runs: list[StoredRun | None], impossible: str | None, status: str
) -> None:
    assert _cell(runs, impossible).status == status


def test_figures_are_percentages_of_finished_seeds_only() -> None:
    cell = _cell([_run(accuracy=0.25), None, _run("diverged", 0.9), _run(accuracy=0.75)])
    assert cell.by_seed == {0: 25.0, 3: 75.0}
    assert cell.seeds == 2


def test_the_mean_is_that_of_the_seeds_there_are() -> None:
    assert _cell([_run(accuracy=0.1), None, _run(accuracy=0.4)]).mean == pytest.approx(25)
    assert _cell([None]).mean is None


@pytest.mark.parametrize("status", ["diverged", "skipped"])
def test_a_cell_with_a_run_that_came_to_nothing_has_no_mean(status: str) -> None:
    assert _cell([_run(), _run(status)]).mean is None


def test_a_diverged_cell_gives_the_reason_of_the_diverged_seed() -> None:
    assert _cell([_run(), _run("diverged", reason="loss is nan")]).reason == "loss is nan"


# --- planning -------------------------------------------------------------------------------------


def test_each_cell_has_one_configuration_per_seed_and_they_differ_in_nothing_else(
    tmp_path: Path, store: Store
) -> None:
    for cell in _plan(tmp_path, store, seeds=3).cells.values():
        assert [config.seed for config in cell.configs] == [0, 1, 2]
        assert len({replace(config, seed=0).key for config in cell.configs}) == 1


def test_the_cell_wins_over_the_profile(tmp_path: Path, store: Store) -> None:
    text = SPEC.replace("{beta: 5}", "{beta: 5, rounds: 7}")
    plan = _plan(tmp_path, store, text=text)
    assert plan.cells["FedAvg", "even"].configs[0].rounds == 7
    assert plan.cells["FedAvg", "skewed"].configs[0].rounds == 2


def test_a_run_that_two_cells_want_is_missing_once(tmp_path: Path, store: Store) -> None:
    missing = _plan(tmp_path, store).missing()
    assert len(missing) == len({run.config.key for run in missing}) == 2 * 2 * 2
    shared = {run.places for run in missing if run.config.algo == "fedavg"}
    assert shared == {
        (("FedAvg", column), ("FedAvg again", column)) for column in ("skewed", "even")
    }


def test_every_cell_gets_its_first_seed_before_any_gets_its_second(
    tmp_path: Path, store: Store
) -> None:
    seeds = [run.config.seed for run in _plan(tmp_path, store, seeds=3).missing()]
    assert seeds == sorted(seeds)


def test_runs_on_the_same_data_follow_each_other(tmp_path: Path, store: Store) -> None:
    missing = _plan(tmp_path, store, seeds=1).missing()
    assert [run.config.beta for run in missing] == [0.1, 0.1, 5, 5]


def test_stored_results_are_taken_and_no_longer_missing(tmp_path: Path, store: Store) -> None:
    first = _plan(tmp_path, store).cells["FedCP", "even"].configs[0]
    _keep(store, first, correct=4)
    plan = _plan(tmp_path, store)
    assert plan.cells["FedCP", "even"].by_seed == {0: 40.0}
    assert plan.cells["FedCP", "even"].status == "partly run"
    assert first.key not in {run.config.key for run in plan.missing()}


def test_results_of_another_profile_are_not_taken(tmp_path: Path, store: Store) -> None:
    _keep(store, _plan(tmp_path, store).cells["FedCP", "even"].configs[0])
    other = replace(PROFILE, run={**PROFILE.run, "rounds": 3})
    plan = plan_table(_spec(tmp_path), other, 2, store, tmp_path)
    assert {cell.status for cell in plan.cells.values()} == {"not run"}


def test_nothing_is_missing_when_every_seed_has_an_ending(tmp_path: Path, store: Store) -> None:
    plan = _plan(tmp_path, store)
    endings = ("finished", "diverged")
    for run in plan.missing():
        assert run in plan.missing()
        status = endings[run.config.seed]
        plan = plan.with_run(run.config, _keep(store, run.config, status=status))
    assert not plan.missing()


def test_a_plan_brought_up_to_date_equals_a_new_one(tmp_path: Path, store: Store) -> None:
    plan = _plan(tmp_path, store)
    for run in plan.missing()[:5]:
        plan = plan.with_run(run.config, _keep(store, run.config, correct=run.config.seed))
    assert plan == _plan(tmp_path, store)


def test_one_skipped_seed_settles_the_whole_cell(tmp_path: Path, store: Store) -> None:
    config = _plan(tmp_path, store).cells["FedCP", "even"].configs[0]
    _keep(store, config, status="skipped", reason="too few samples")
    cell = _plan(tmp_path, store).cells["FedCP", "even"]
    assert (cell.status, cell.reason, cell.missing) == ("skipped", "too few samples", [])


def test_a_cell_that_cannot_be_configured_says_why_and_leaves_the_others_alone(
    tmp_path: Path, store: Store
) -> None:
    plan = _plan(tmp_path, store, text=SPEC.replace("algo: fedcp", "algo: fedcp, of: 3"))
    assert set(plan.misconfigured) == {("FedCP", "skewed"), ("FedCP", "even")}
    assert plan.misconfigured["FedCP", "even"] == "4 clients cannot be drawn from a partition of 3"
    assert plan.cells["FedAvg", "even"].status == "not run"


def test_missing_real_data_is_named_with_the_command_that_gets_it(
    tmp_path: Path, store: Store
) -> None:
    plan = plan_table(_spec(tmp_path), load_profile("paper"), 1, store, tmp_path)
    assert all("pfl-bench data prepare mnist" in why for why in plan.misconfigured.values())
    assert len(plan.misconfigured) == 6


# --- impossible cells -----------------------------------------------------------------------------


def test_foreseeing_marks_the_cells_that_the_partition_rules_out(
    tmp_path: Path, store: Store
) -> None:
    text = SPEC.replace("algo: fedcp", "algo: perfedavg")
    text = text.replace("{beta: 0.1}", "{beta: 1, fraction: 0.5}")
    text = text.replace("{beta: 5}", "{beta: 5, batch_size: 100}")
    plan = foresee(_plan(tmp_path, store, text=text), tmp_path)
    impossible = {place: cell.impossible for place, cell in plan.cells.items() if cell.impossible}
    assert set(impossible) == {("FedCP", "even")}
    assert "needs two batches (200 training samples)" in str(impossible["FedCP", "even"])


def test_foreseeing_stores_nothing(tmp_path: Path, store: Store) -> None:
    foresee(_plan(tmp_path, store), tmp_path)
    assert not store.root.exists()


def test_results_are_found_without_the_data_they_come_from(tmp_path: Path, store: Store) -> None:
    config = replace(
        _plan(tmp_path, store).cells["FedCP", "even"].configs[0],
        dataset="mnist", source="real", data_fingerprint="abc",
    )  # fmt: skip
    with pytest.raises(UserError, match="MNIST is not prepared"):
        known_to(store)("mnist", "real", tmp_path)
    _keep(store, config, seconds=1.0)
    assert known_to(store)("mnist", "real", tmp_path) == "abc"
    with pytest.raises(UserError, match="Cifar10 is not prepared"):
        known_to(store)("cifar10", "real", tmp_path)


def test_results_from_another_version_of_the_data_are_found_unless_this_one_has_some(
    tmp_path: Path, store: Store, folder: Path
) -> None:
    here = data.fingerprint("toy", "real", folder)
    assert known_to(store)("toy", "real", folder) == here
    config = _plan(tmp_path, store).cells["FedCP", "even"].configs[0]
    for seed in range(2):
        theirs = replace(config, dataset="toy", source="real", data_fingerprint="theirs", seed=seed)
        _keep(store, theirs, seconds=1.0)
    assert known_to(store)("toy", "real", folder) == "theirs"
    _keep(store, replace(theirs, data_fingerprint=here), seconds=1.0)
    assert known_to(store)("toy", "real", folder) == here


def test_results_on_a_stand_in_drawn_elsewhere_are_found(tmp_path: Path, store: Store) -> None:
    here = data.fingerprint("mnist", "standin", tmp_path)
    assert known_to(store)("mnist", "standin", tmp_path) == here
    config = _plan(tmp_path, store).cells["FedCP", "even"].configs[0]
    config = replace(config, dataset="mnist", source="standin", data_fingerprint="theirs")
    _keep(store, config, seconds=1.0)
    assert known_to(store)("mnist", "standin", tmp_path) == "theirs"
    _keep(store, replace(config, seed=1), seconds=1.0)
    _keep(store, replace(config, data_fingerprint=here), seconds=1.0)
    assert known_to(store)("mnist", "standin", tmp_path) == "theirs", "most are theirs"
    for seed in (1, 2):
        _keep(store, replace(config, seed=seed, data_fingerprint=here), seconds=1.0)
    assert known_to(store)("mnist", "standin", tmp_path) == here


def test_cells_that_ran_here_are_found_beside_more_that_ran_elsewhere(
    tmp_path: Path, store: Store
) -> None:
    profile = Profile("none", "", {"source": "standin", "rounds": 2}, {}, {})
    spec = load_table("main").restricted(("fedavg", "local"), ("pathological MNIST",))
    here = plan_table(spec, profile, 1, store, tmp_path)
    ours, theirs = (here.cells[row, "pathological MNIST"].configs[0] for row in spec.rows)
    for seed in range(3):
        _keep(store, replace(theirs, seed=seed, data_fingerprint="theirs"), seconds=1.0)
    _keep(store, ours, seconds=1.0)
    found = plan_table(spec, profile, 1, store, tmp_path, known_to(store))
    assert [cell.status for cell in found.cells.values()] == ["done", "done"]


def test_table_that_no_one_knows_in_a_profile_is_refused(tmp_path: Path, store: Store) -> None:
    profile = Profile("mine", "", {}, {}, {}, tables={"mian": {"rounds": 3}})
    spec = load_table("main")
    with pytest.raises(UserError, match="profile mine: unknown table 'mian'; did you mean 'main'"):
        plan_table(spec, profile, 1, store, tmp_path)


# --- time -----------------------------------------------------------------------------------------


def _requests(plan: TablePlan) -> list[Request]:
    return [run.request for run in plan.missing()]


def test_the_same_algorithm_is_estimated_from_its_own_rounds(tmp_path: Path, store: Store) -> None:
    plan = _plan(tmp_path, store)
    for row, seconds in (("FedAvg", 1.0), ("FedCP", 3.0)):
        _keep(store, plan.cells[row, "even"].configs[0], seconds=seconds)
    pace = Pace.of(store.all())
    assert pace.left(plan.cells["FedAvg", "skewed"].configs[1]) == pytest.approx(2 * 1.0)
    assert pace.left(plan.cells["FedCP", "skewed"].configs[1]) == pytest.approx(2 * 3.0)


def test_a_configuration_written_by_hand_does_not_hinder_the_estimate(
    tmp_path: Path, store: Store
) -> None:
    config = _plan(tmp_path, store).cells["FedCP", "even"].configs[0]
    _keep(store, config, seconds=1.0)
    for odd in (replace(config, clients=0), replace(config, joining_ratio=())):  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"config\.json is not what it must be"):
            _keep(store, odd, seconds=9.0)
    assert Pace.of(store.all()).left(replace(config, seed=7)) == pytest.approx(2 * 1.0)


def test_an_algorithm_not_yet_measured_costs_what_the_others_do(
    tmp_path: Path, store: Store
) -> None:
    plan = _plan(tmp_path, store)
    for row, seconds in (("FedAvg", 1.0), ("FedCP", 3.0)):
        _keep(store, plan.cells[row, "even"].configs[0], seconds=seconds)
    other = replace(plan.cells["FedCP", "even"].configs[0], algo="ditto")
    assert Pace.of(store.all()).left(other) == pytest.approx(2 * (1.0 + 3.0) / 2)


def test_an_algorithm_is_estimated_from_what_it_costs_beside_others_elsewhere(
    tmp_path: Path, store: Store
) -> None:
    config = _plan(tmp_path, store).cells["FedCP", "even"].configs[0]
    for algo, model, seconds in (("fedcp", "a", 3.0), ("fedavg", "a", 1.0), ("fedavg", "b", 5.0)):
        _keep(store, replace(config, algo=algo, model=model), seconds=seconds)
    assert Pace.of(store.all()).left(replace(config, model="b")) == pytest.approx(2 * 3 * 5.0)


def test_time_grows_with_rounds_epochs_and_samples(tmp_path: Path, store: Store) -> None:
    config = _plan(tmp_path, store).cells["FedCP", "even"].configs[0]
    _keep(store, config, seconds=1.0)
    pace = Pace.of(store.all())
    assert pace.left(replace(config, rounds=20)) == pytest.approx(20)
    assert pace.left(replace(config, local_epochs=5)) == pytest.approx(2 * 5)
    assert pace.left(replace(config, fraction=0.04)) == pytest.approx(2 * 2)
    assert pace.left(replace(config, joining_ratio=(0.5, 1.0))) == pytest.approx(2 * 0.75)
    assert pace.left(replace(config, sampled_from=16)) == pytest.approx(2 / 4)


def test_a_run_that_was_cut_off_counts_its_remaining_rounds_only(
    tmp_path: Path, store: Store
) -> None:
    config = replace(_plan(tmp_path, store).cells["FedCP", "even"].configs[0], rounds=10)
    with store.open(config) as writer:
        for round in (1, 2, 3):
            writer.append(RoundRecord(round, [0], seconds={"total": 2.0}))
    assert Pace.of(store.all()).left(config) == pytest.approx(7 * 2.0)


def test_what_nothing_was_measured_of_is_unknown(tmp_path: Path, store: Store) -> None:
    plan = _plan(tmp_path, store)
    assert estimate(_requests(plan), Pace.of(store.all())).unknown == 8
    _keep(store, plan.cells["FedCP", "even"].configs[0], seconds=1.5)
    guess = estimate(_requests(_plan(tmp_path, store)), Pace.of(store.all()))
    assert guess.unknown == 0
    assert guess.seconds == pytest.approx(7 * 2 * 1.5)


def test_a_profile_can_have_a_word_on_one_table(tmp_path: Path) -> None:
    spec = load_table("local_epochs").restricted(("fedavg",), ("5",))
    profile = replace(PROFILE, tables={"local_epochs": {"rounds": 1, "local_epochs": 3}})
    plan = plan_table(spec, profile, 1, Store(tmp_path), tmp_path)
    (config,) = plan.cells["FedAvg", "5"].configs
    assert (config.rounds, config.local_epochs) == (1, 5), "the cell's own settings win"


def test_images_of_another_size_are_other_data() -> None:
    whole, reduced = toy_config(), toy_config(image_size=8)
    assert data_key(whole) != data_key(reduced)


@pytest.mark.parametrize("algo", ["fedavg", "fedcp"])
def test_a_profile_replaces_the_model_that_a_cell_names(
    tmp_path: Path, algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "fingerprint", lambda *_: "drawn")
    small = {"cnn": "cnn_small", "resnet18": "resnet_small"}
    profile = replace(PROFILE, replace_models=small)
    plan = plan_table(load_table("main"), profile, 1, Store(tmp_path / "store"), tmp_path)
    row = next(cell.row for cell in plan.spec.cells.values() if cell.chosen["algo"] == algo)
    models = {
        column: plan.cells[row, f"practical(0.1) {column}"].configs[0].model
        for column in ("Cifar10", "TINY", "TINY*", "AG News")
    }
    expected = ("cnn_small", "cnn_small", "resnet_small", "fasttext")
    assert tuple(models.values()) == expected


def test_time_can_be_asked_while_more_is_learnt(tmp_path: Path, store: Store) -> None:
    """A display asks from a thread of its own."""
    config = _plan(tmp_path, store).cells["FedCP", "even"].configs[0]
    _keep(store, config, seconds=1.0)
    (run,) = store.all()
    pace = Pace.of(store.all())
    asked = iter(pace._measured)
    next(asked)
    pace.learn(replace(run, config={**run.config, "algo": "ditto"}))
    assert list(asked) == [], "a dictionary that grew would refuse to go on"
