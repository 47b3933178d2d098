"""Metrics: how one is found by its name, and what plugins may bring."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from fakeplans import stored
from smalltables import computed_here, small_plan, small_spec
from toy import toy_config

from pfl_bench.base.errors import UserError
from pfl_bench.plugins import offers
from pfl_bench.plugins.registry import load_algorithm, load_plugin
from pfl_bench.reporting.figures import method_figure, method_figures
from pfl_bench.reporting.metrics import METRICS, _brought, brought_metrics, metric
from pfl_bench.reporting.tables.content import lay_out
from pfl_bench.reporting.tables.reading import load_table
from pfl_bench.reporting.verdict import best_record
from pfl_bench.store.metric import Metric
from pfl_bench.store.records import RoundRecord, summarise
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

PLUGIN = """
from pfl_bench.engine import Algorithm
from pfl_bench.store import Metric

class Own(Algorithm):
    title, summary, citation, scored_model = "Own", "Own.", "none", "the global model"
    metrics = {metrics}
"""


def _plugin(folder: Path, metrics: str) -> None:
    path = folder / f"own_{abs(hash(metrics))}.py"
    path.write_text(PLUGIN.format(metrics=metrics))
    load_plugin(path)


def test_a_plugin_in_a_file_brings_a_metric(tmp_path: Path) -> None:
    metrics = '(Metric("twice", "twice", lambda run: 2 * run.summary["best"]["accuracy"]),)'
    _plugin(tmp_path, metrics)
    assert metric("twice").read(stored(toy_config(), 40.0)) == pytest.approx(0.8)
    scored = load_table("lambda").scored("twice")
    assert {cell.measure for cell in scored.cells.values()} == {"twice"}
    assert all(cell.published is None for cell in scored.cells.values())


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ('"accuracy"', "must be a tuple of pfl_bench.store.Metric"),
        ("(1,)", "must be a tuple of pfl_bench.store.Metric"),
        ('(Metric("my value", "v", len),)', "'my value' must be letters, digits and underscores"),
    ],
)
def test_a_plugin_whose_metrics_are_none_is_refused(
    metrics: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        _plugin(tmp_path, metrics)


def test_a_metric_of_every_run_cannot_be_replaced(tmp_path: Path) -> None:
    _plugin(tmp_path, '(Metric("accuracy", "mine", len),)')
    assert metric("accuracy") is METRICS["accuracy"]
    with pytest.raises(UserError, match="two metrics bear the name 'accuracy'"):
        brought_metrics()


def test_an_algorithm_that_inherits_another_s_metrics_does_not_offer_them_twice(
    tmp_path: Path,
) -> None:
    path = tmp_path / "heir_of_metrics.py"
    path.write_text(
        "from pfl_bench.algorithms.fedcp import FedCP\n\n\nclass Heir(FedCP):\n    title = 'Heir'\n"
    )
    load_plugin(path)
    assert load_algorithm("heir_of_metrics").metrics == load_algorithm("fedcp").metrics
    assert metric("cpn_parameters").name == "cpn_parameters"


def test_a_metric_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown metric 'cpn_parameter'.*'cpn_parameters'"):
        metric("cpn_parameter")


def test_every_metric_bears_its_own_name_and_a_direction() -> None:
    known = {**METRICS, **brought_metrics()}
    assert [one.name for one in known.values()] == list(known)
    assert {one.better for one in known.values()} == {"high", "low"}
    with pytest.raises(ValueError, match="better is high or low"):
        Metric("x", "x", len, better="up")


def test_a_metric_beside_another_method_has_no_value_without_its_run() -> None:
    one = Metric("gap", "gap", lambda run, other: 1.0, beside="local")
    run = stored(toy_config(), 40.0)
    assert one.read(run) is None
    assert one.read(run, run) == 1.0


def test_the_figures_of_methods_are_found_by_name() -> None:
    assert method_figures() == ["gradcam", "policy"]
    assert method_figure("policy").algo == "fedcp"


def test_what_is_offered_and_fails_to_import_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "offering_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "good.py").write_text("THING = 1\n")
    (package / "bad.py").write_text("1 / 0\n")
    (package / "_hidden.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = offers.offered("no.such.group", "offering_package", "THING")
    assert sorted(found) == ["bad", "good"]
    assert found["good"]() == 1
    with pytest.raises(UserError, match="'bad' fails to import: ZeroDivisionError"):
        found["bad"]()


def test_a_package_s_metric_that_cannot_be_used_is_told_of_when_asked_for_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = Metric("packaged", "packaged", lambda run: 3.0)
    points = {"packaged": good, "odd": object()}
    made = [EntryPoint(name, f"nowhere:{name}", "pfl_bench.metrics") for name in points]
    monkeypatch.setattr(EntryPoint, "load", lambda self: points[self.name])
    monkeypatch.setattr(offers, "_entry_points", lambda group, path: tuple(made))
    _brought.cache_clear()
    try:
        assert metric("packaged") is good
        with pytest.raises(UserError, match=r"'odd' of pfl_bench\.metrics is no metric"):
            metric("odd")
    finally:
        _brought.cache_clear()


# --- over clients -----------------------------------------------------------------------------


def _over_clients(folder: Path, algo: str, correct: list[list[int]], **summary: Any) -> StoredRun:
    """A stored run with so many correct of 10, 20 and no test samples, by round and client."""
    records = [
        RoundRecord(round, [0], counts, [10, 20, 0], [1.0] * 3, seconds={"total": 1.0})
        for round, counts in enumerate(correct, start=1)
    ]
    home = folder / algo
    home.mkdir()
    (home / "rounds.jsonl").write_text("".join(record.to_line() for record in records))
    facts = {**summarise(records), "partition_fingerprint": "same", **summary}
    return StoredRun(home, toy_config(algo).to_dict(), facts, "finished", home=home)


def test_clients_count_alike_however_many_samples_they_have(tmp_path: Path) -> None:
    run = _over_clients(tmp_path, "fedavg", [[1, 1, 0], [9, 10, 0], [1, 2, 0]])
    assert metric("mean_over_clients").read(run) == pytest.approx((90 + 50) / 2)
    assert metric("std_over_clients").read(run) == pytest.approx(20.0)
    assert metric("worst_decile").read(run) == pytest.approx(50.0)


def test_the_share_worse_off_than_alone_compares_the_best_rounds_client_by_client(
    tmp_path: Path,
) -> None:
    run = _over_clients(tmp_path, "fedavg", [[9, 10, 0], [1, 1, 0]])
    alone = _over_clients(tmp_path, "local", [[2, 2, 0], [8, 11, 0]])
    shown = metric("below_local")
    assert shown.read(run, alone) == pytest.approx(50.0)  # the second of two; the third has no test
    assert shown.read(alone, alone) == 0.0
    assert shown.read(run) is None
    elsewhere = _over_clients(tmp_path, "ditto", [[9, 9, 0]], partition_fingerprint="another")
    assert shown.read(run, elsewhere) is None


def test_the_share_below_the_most_frequent_class(tmp_path: Path) -> None:
    kept = {"classes": 10, "majority_correct": [10, 9, 0], "tested": 30}
    run = _over_clients(tmp_path, "fedavg", [[9, 10, 0]], reference=kept)
    assert metric("below_majority").read(run) == pytest.approx(50.0)
    assert metric("below_majority").read(_over_clients(tmp_path, "local", [[9, 9, 0]])) is None
    short = {**kept, "majority_correct": [10, 9]}
    other = _over_clients(tmp_path, "fedper", [[9, 10, 0]], reference=short)
    assert metric("below_majority").read(other) is None


def test_a_table_finds_local_s_runs_in_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    plan = small_plan(small_spec("fedavg").scored("below-local"), store)
    computed_here(plan, store)
    plan = small_plan(small_spec("fedavg").scored("below-local"), store)
    (entry,) = lay_out(plan).entries.values()
    assert entry.text == "–" and entry.mark == "a"  # Local has not run, and the footnote says so
    whole = small_plan(small_spec("fedavg", "local"), store)
    computed_here(whole, store)
    scored = small_spec("fedavg", "local").scored("below-local")
    shown = small_plan(scored, store)
    assert shown.cells["local", "only"].mean == 0.0
    ours, alone = (best_record(run) for cell in shown.cells.values() for run in cell.runs if run)
    assert ours is not None and alone is not None
    below = [a < b for a, b in zip(ours.correct or [], alone.correct or [], strict=True)]
    assert shown.cells["fedavg", "only"].mean == pytest.approx(100 * sum(below) / len(below))
