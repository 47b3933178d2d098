"""Trackers: what MLflow, Weights & Biases and a plugin are told of runs; neither needs a network,
nor to be installed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from prepared import NAME

from pfl_bench.base.errors import UserError
from pfl_bench.base.version import install_command
from pfl_bench.cli import main
from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.many import run_all
from pfl_bench.execution.observer import Observer, Round
from pfl_bench.execution.options import Execution
from pfl_bench.execution.request import Request
from pfl_bench.execution.trackers import choice
from pfl_bench.execution.trackers.tracker import Tracked, Tracker
from pfl_bench.plugins import offers
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

ROUNDS = 3
TAGS = (("table", "main"), ("cell", "FedAvg, toy"))


class FakeMlflow(ModuleType):
    """The part of MLflow that is used, keeping what it is told."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.runs: dict[str, SimpleNamespace] = {}
        self.uris: list[str | None] = []
        self.experiments: list[str] = []
        self.MlflowClient = self._client
        self.entities = ModuleType("mlflow.entities")
        self.entities.Param = lambda key, value: (key, value)  # type: ignore[attr-defined]
        self.entities.Metric = lambda *values: values  # type: ignore[attr-defined]

    def _client(self, tracking_uri: str | None) -> FakeMlflow:
        self.uris.append(tracking_uri)
        return self

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(experiment_id="7") if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return "7"

    def search_runs(self, experiments: list[str], filter_string: str) -> list[SimpleNamespace]:
        wanted = filter_string.split("'")[1]
        found = [r for r in self.runs.values() if r.tags["pfl_bench.run"] == wanted]
        return [SimpleNamespace(info=SimpleNamespace(run_id=r.id)) for r in found]

    def delete_run(self, run_id: str) -> None:
        del self.runs[run_id]

    def create_run(self, experiment: str, tags: dict[str, str], run_name: str) -> SimpleNamespace:
        run_id = str(len(self.uris) * 100 + len(self.runs))
        facts: dict[str, Any] = {"params": {}, "metrics": [], "status": "RUNNING", "last": {}}
        self.runs[run_id] = SimpleNamespace(id=run_id, tags=dict(tags), name=run_name, **facts)
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(params) <= 100
        self.runs[run_id].params.update(params)
        self.runs[run_id].metrics.extend(metrics)

    def log_metric(self, run_id: str, name: str, value: float) -> None:
        self.runs[run_id].last[name] = value

    def set_tag(self, run_id: str, name: str, value: str) -> None:
        self.runs[run_id].tags[name] = value

    def set_terminated(self, run_id: str, status: str) -> None:
        self.runs[run_id].status = status


class FakeWandb(ModuleType):
    """As W&B offline: runs by identity, which take no step twice."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: dict[str, SimpleNamespace] = {}

    def init(self, *, id: str, resume: str, reinit: str, **facts: Any) -> SimpleNamespace:
        assert (resume, reinit) == ("allow", "create_new") and not set(id) & set("/\\#?%:")
        run = self.runs.setdefault(id, SimpleNamespace(points=[], summary={}, ends=[]))
        run.facts = facts

        def log(values: dict[str, float], step: int) -> None:
            if not run.points or step > run.points[-1][0]:
                run.points.append((step, values))

        run.log, run.finish = log, lambda exit_code: run.ends.append(exit_code)
        return run


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", fake.entities)
    return fake


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def config(folder: Path) -> RunConfig:
    chosen = {"dataset": NAME, "clients": 2, "rounds": ROUNDS, "lr": 0.05, "batch_size": 8}
    return configure(Profile("none", "", {}, {}, {}), chosen, {}, folder)


class Dying(Observer):
    def on_round(self, event: Round) -> None:
        if event.record.round == 2:
            raise KeyboardInterrupt


def tracked(
    who: str, config: RunConfig, folder: Path, store: Store, observer: Observer | None = None
) -> StoredRun:
    options = Execution(folder, workers=1, checkpoint_every=1, track=(who,))
    requests = [Request(config, tags=TAGS)]
    return run_all(requests, store, options, observer).runs[config.request]


def test_mlflow_has_configuration_rounds_summary_and_tags(
    mlflow: FakeMlflow, config: RunConfig, folder: Path, store: Store
) -> None:
    run = tracked("mlflow:file:/tmp/runs", config, folder, store)
    [there] = mlflow.runs.values()
    assert mlflow.uris == ["file:/tmp/runs"] and mlflow.experiments == ["pfl-bench"]
    assert (there.name, there.status) == (run.path.name, "FINISHED")
    assert there.params["algo"] == "fedavg" and there.params["beta"] == str(config.beta)
    assert there.tags.items() >= dict(TAGS).items()
    points = {step: value for name, value, _, step in there.metrics if name == "accuracy/test"}
    assert points == {record.round: record.accuracy for record in run.records()}
    assert run.summary is not None
    assert there.last["summary/best.accuracy"] == run.summary["best"]["accuracy"]


def test_mlflow_has_a_run_once_though_it_was_interrupted(
    mlflow: FakeMlflow, config: RunConfig, folder: Path, store: Store
) -> None:
    with pytest.raises(KeyboardInterrupt):
        tracked("mlflow", config, folder, store, Dying())
    assert [there.status for there in mlflow.runs.values()] == ["KILLED"]
    for _ in range(2):  # continued, then taken from the store
        tracked("mlflow", config, folder, store)
        [there] = mlflow.runs.values()
        steps = [step for name, _, _, step in there.metrics if name == "accuracy/test"]
        assert (steps, there.status) == ([1, 2, 3], "FINISHED")


def test_wandb_has_configuration_rounds_summary_and_tags(
    wandb: FakeWandb, config: RunConfig, folder: Path, store: Store
) -> None:
    with pytest.raises(KeyboardInterrupt):
        tracked("wandb:mine", config, folder, store, Dying())
    run = tracked("wandb:mine", config, folder, store)
    [there] = wandb.runs.values()
    points = [(step, values["accuracy/test"]) for step, values in there.points]
    assert points == [(record.round, record.accuracy) for record in run.records()]
    assert there.facts["project"] == "mine" and there.facts["group"] == "main"
    assert there.facts["tags"] == ["table: main", "cell: FedAvg, toy"]
    assert there.facts["config"] == config.to_dict() and there.facts["name"] == run.path.name
    assert run.summary is not None
    assert there.summary["summary/last.accuracy"] == run.summary["last"]["accuracy"]
    assert there.ends == [1, 0]


def test_a_table_tells_its_name_and_cells(
    wandb: FakeWandb, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(
        f"run: {{dataset: {NAME}, clients: 2, setting: iid, algo: local}}\n"
        "columns: [{name: toy}]\nrows: [{name: A}, {name: B}]\n"
    )
    Path("tiny.yaml").write_text("run: {rounds: 1, source: real}\n")
    words = ["table", "mine.yaml", "--profile", "tiny.yaml", "--seeds", "1"]
    words += ["--data-dir", str(folder), "--track", "wandb"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    [there] = wandb.runs.values()
    assert there.facts["tags"] == ["table: mine", "cell: A, toy; B, toy"]
    assert there.facts["project"] == "pfl-bench"


class Diary(Tracker):
    """A plugin's, which keeps a list and fails on demand."""

    title = "the diary"
    lines: list[str] = []
    fails_at: str | None = None

    def _note(self, line: str) -> None:
        if line == self.fails_at:
            raise ConnectionError("no route")
        self.lines.append(line)

    def begin(self, run: Tracked) -> None:
        self._note("begin")

    def write(self, run: Tracked, round: int, values: Mapping[str, float]) -> None:
        self._note(f"round {round}")

    def end(self, run: Tracked, summary: Mapping[str, Any] | None) -> None:
        self._note("end" if summary else "broken off")


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> type[Diary]:
    def points(group: str, path: tuple[str, ...]) -> tuple[Any, ...]:
        point = SimpleNamespace(name="diary", load=lambda: Diary)
        return (point,) if group == choice.ENTRY_POINTS else ()

    monkeypatch.setattr(offers, "_entry_points", points)
    monkeypatch.setattr(Diary, "lines", [])
    return Diary


def test_a_package_offers_a_tracker(
    diary: type[Diary], config: RunConfig, folder: Path, store: Store
) -> None:
    tracked("diary", config, folder, store)
    assert diary.lines == ["begin", "round 1", "round 2", "round 3", "end"]


def test_a_tracker_that_fails_at_once_is_one_sentence(
    diary: type[Diary],
    config: RunConfig,
    folder: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diary, "fails_at", "begin")
    with pytest.raises(UserError, match=r"the diary fails: .*no route"):
        tracked("diary", config, folder, store)


def test_a_tracker_that_fails_later_costs_no_result(
    diary: type[Diary],
    config: RunConfig,
    folder: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(diary, "fails_at", "round 2")
    with caplog.at_level(logging.WARNING):
        run = tracked("diary", config, folder, store)
    assert run.status == "finished" and len(run.records()) == ROUNDS
    assert caplog.text.count("the diary fails") == 1


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_extra_is_one_sentence_before_anything_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    words = ["run", "--algo", "local", "--results", str(tmp_path / "results"), "--track", name]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and result.output.count("\n") == 1
    assert install_command(name) in result.output
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("said", "told"), [("mlfow", "mlflow"), ("tensorboard", "tensorboard:DIR")]
)
def test_what_is_no_tracker_is_answered_with_what_is(said: str, told: str) -> None:
    result = CliRunner().invoke(main, ["run", "--algo", "local", "--track", said])
    assert result.exit_code == 2 and told in result.output
