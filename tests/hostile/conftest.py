"""A place to be attacked: a folder to work in, toy data, stored results, and no training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import Reached
from prepared import NAME, prepare_toy
from processes import end_all

from pfl_bench.config.options import Profile
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.store.store import Store

TABLE = """
caption: two methods
run: {dataset: toy, source: real, clients: 2, rounds: 1, batch_size: 8}
columns:
  - {name: β=0.1, run: {beta: 0.1}}
  - {name: β=1, run: {beta: 1}}
rows:
  - {name: FedAvg, run: {algo: fedavg}, published: [[50.0, 0.5], 60]}
  - {name: FedProx, run: {algo: fedprox}, set: {mu: 0.1}}
"""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_toy(tmp_path_factory.mktemp("data"), samples=64)


@pytest.fixture(scope="session")
def stored(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two finished runs."""
    root = tmp_path_factory.mktemp("stored")
    chosen = {"dataset": NAME, "clients": 2, "rounds": 2, "batch_size": 8}
    for algo in ("fedavg", "local"):
        config = configure(Profile("none", "", {}, {}, {}), {**chosen, "algo": algo}, {}, data)
        execute(config, Store(root), Execution(data, workers=1))
    return root


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture
def inside(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, deep enough that `../..` stays below what the test can look at."""
    folder = tmp_path / "a" / "b" / "inside"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PFL_BENCH_DATA", str(data))
    monkeypatch.setenv("PFL_BENCH_RESULTS", str(folder / "results"))
    (folder / "table.yaml").write_text(TABLE, encoding="utf-8")
    return folder


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever would train, draw or download ends there."""

    def reached(*_: object, **__: object) -> None:
        raise Reached

    for place in (
        "pfl_bench.engine.simulator.Simulator.prepare",
        "pfl_bench.execution.many.run_all",
        "pfl_bench.reporting.report.page.write_report",
        "pfl_bench.data.convert._torchvision_part",
        "pfl_bench.data.cache.render",
    ):
        monkeypatch.setattr(place, reached)
    yield
