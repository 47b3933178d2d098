"""Extreme but valid: the smallest and the largest federations run to their end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy import toy_config, toy_dataset, toy_run, toy_simulator, toy_text

from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.plugins.registry import algorithm_names
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

ALGORITHMS = algorithm_names()
MANY = 2_000
SAMPLES = 120
DATASET = "rare"
"""The toy problem with a fifth class of which there is one sample."""


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rare")
    dataset = toy_dataset(samples=SAMPLES)
    y = dataset.y.copy()
    y[-1] = 4
    np.savez(folder / f"{DATASET}.npz", x=dataset.x.transpose(0, 3, 1, 2), y=y)
    return folder


def configured(folder: Path, algo: str, **chosen: Any) -> RunConfig:
    values = {"dataset": DATASET, "algo": algo, "clients": 3, "rounds": 2, "batch_size": 8}
    return configure(Profile("none", "", {}, {}, {}), {**values, **chosen}, {}, folder)


NEEDY = {"perfedavg": "needs two batches", "fedfomo": "has one training sample"}
"""Methods that cannot run where a client has too little, and what they then say."""

EXTREMES: dict[str, dict[str, Any]] = {
    "one client": {"clients": 1},
    "one round": {"rounds": 1},
    "one sample per batch": {"batch_size": 1, "rounds": 1},
    "a batch larger than every client": {"batch_size": 10_000, "setting": "iid"},
    "β = 1e-3": {"beta": 1e-3},
    "β = 1e3": {"beta": 1e3},
    "a ratio that selects one client": {"joining_ratio": "0.01", "rounds": 3},
    "every client a pair of samples": {"clients": SAMPLES // 2, "setting": "iid"},
    "one client drawn of many": {"clients": 1, "of": 30, "setting": "iid"},
    "no learning": {"lr": 0.0},
}


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_an_extreme_federation_runs_to_its_end_or_says_why_it_cannot(
    rare: Path, tmp_path: Path, algo: str, extreme: str
) -> None:
    config = configured(rare, algo, **EXTREMES[extreme])
    run = execute(config, Store(tmp_path), Execution(rare, workers=2))
    assert run.summary is not None
    if run.status == "skipped":
        assert algo in NEEDY and NEEDY[algo] in run.summary["reason"]
        return
    assert run.status == "finished"
    assert run.summary["rounds"] == config.rounds
    assert all(np.isfinite(record.loss or []).all() for record in run.records())
    assert sum(run.records()[-1].total or []) > 0


def skipped(run: StoredRun) -> bool:
    return run.status == "skipped"


def test_per_fedavg_is_skipped_only_where_a_client_lacks_two_batches(
    rare: Path, tmp_path: Path
) -> None:
    """So that the test above cannot pass by skipping."""
    outcomes = {
        extreme: execute(configured(rare, "perfedavg", **chosen), Store(tmp_path), Execution(rare))
        for extreme, chosen in EXTREMES.items()
    }
    assert {extreme for extreme, run in outcomes.items() if not skipped(run)} >= {
        "one client", "one sample per batch", "β = 1e3", "no learning",
    }  # fmt: skip
    assert skipped(outcomes["a batch larger than every client"])
    assert skipped(outcomes["every client a pair of samples"])


@pytest.mark.parametrize("algo", ["fedavg", "fedcp", "ditto", "fedamp", "perfedavg"])
def test_two_thousand_clients_are_trained_and_scored(algo: str) -> None:
    """A small text model, because FedAMP keeps a model per client at the server."""
    dataset = toy_text(samples=3 * MANY)
    config = replace(
        toy_config(algo, clients=MANY, rounds=1, batch_size=1, model="fasttext", setting="iid"),
        beta=None,
    )
    simulator = toy_simulator(config, dataset, workers=2)
    assert simulator.impossible is None
    (record,) = simulator.rounds()
    assert simulator.diverged is None
    assert len(record.joined) == len(record.correct or []) == MANY


def test_two_thousand_clients_of_whom_one_joins() -> None:
    config = toy_config(
        clients=MANY, rounds=2, batch_size=1, model="fasttext", setting="iid", beta=None,
        joining_ratio=(1e-6, 1e-6), eval_every=2,
    )  # fmt: skip
    records = toy_run(config, toy_text(samples=3 * MANY))
    assert [len(record.joined) for record in records] == [1, 1]
    assert len(records[-1].correct or []) == MANY
