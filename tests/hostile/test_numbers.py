"""Numbers going wrong: the run is *diverged*, says why and keeps its records, in every method."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from prepared import NAME

from pfl_bench.config.hyper import LARGEST, knobs
from pfl_bench.config.options import Profile
from pfl_bench.engine.algorithm import Algorithm
from pfl_bench.engine.client import Client, Message
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.plugins.registry import algorithm_names, load_algorithm
from pfl_bench.store.records import RoundRecord
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

ALGORITHMS = algorithm_names()
LAMBDAS = [
    (algo, knob.name)
    for algo in ALGORITHMS
    for knob in knobs(load_algorithm(algo).Hyper).values()
    if knob.kind is float and knob.name in ("lambda", "mu", "alpha", "beta")
]
ROUND, CLIENT = 2, 1
"""Where things go wrong."""


def run(data: Path, root: Path, algo: str, hyper: dict[str, Any] | None = None,
        **chosen: Any) -> StoredRun:  # fmt: skip
    values = {"dataset": NAME, "algo": algo, "clients": 2, "rounds": 4, "batch_size": 8,
              "setting": "iid", "lr": 0.05, **chosen}  # fmt: skip
    config = configure(Profile("none", "", {}, {}, {}), values, hyper or {}, data)
    return execute(config, Store(root), Execution(data, workers=2))


def reason(run: StoredRun) -> str:
    assert run.status == "diverged" and run.summary is not None
    return str(run.summary["reason"])


def is_finite(record: RoundRecord) -> bool:
    losses = [record.train_loss, *(record.loss or [])]
    return all(loss is not None and math.isfinite(loss) for loss in losses)


def spoil(monkeypatch: pytest.MonkeyPatch, algo: str, how: str) -> type[Algorithm]:
    """Make one client of an algorithm go wrong in one round."""
    kind = load_algorithm(algo)
    sound = kind.local_update

    def local_update(self: Algorithm, client: Client, received: Message) -> Message:
        message = sound(self, client, received)
        if (client.round, client.index) != (ROUND, CLIENT):
            return message
        if how == "loss":
            client.report(torch.tensor(math.nan))
            return message
        return {name: _with_one(value, float(how)) for name, value in message.items()}

    monkeypatch.setattr(kind, "local_update", local_update)
    return kind


def _with_one(value: Any, bad: float) -> Any:
    """A copy in which a single number of every tensor is bad."""
    if isinstance(value, dict):
        return {name: _with_one(inner, bad) for name, inner in value.items()}
    spoilt = value.clone()
    if spoilt.is_floating_point() and spoilt.numel():
        spoilt.view(-1)[-1] = bad
    return spoilt


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_rounds_before(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str
) -> None:
    spoil(monkeypatch, algo, "loss")
    ended = run(data, tmp_path, algo)
    assert reason(ended) == f"the training loss of client {CLIENT} is nan in round {ROUND}"
    first, last = ended.records()
    assert is_finite(first) and first.accuracy is not None
    assert last.round == ROUND and last.accuracy is None


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("algo", [algo for algo in ALGORITHMS if load_algorithm(algo).shared])
def test_one_bad_number_in_one_upload_ends_the_run_and_keeps_the_rounds_before(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str, bad: str
) -> None:
    spoil(monkeypatch, algo, bad)
    ended = run(data, tmp_path, algo)
    assert reason(ended) == (
        f"the upload of client {CLIENT} holds values that are not finite in round {ROUND}"
    )
    assert [record.round for record in ended.records()] == [1, ROUND]
    assert is_finite(ended.records()[0])
    assert ended.summary is not None and ended.summary["best"]["round"] == 1


@pytest.mark.parametrize("lr", [1e6, LARGEST])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_an_absurd_learning_rate_is_diverged_and_no_error(
    data: Path, tmp_path: Path, algo: str, lr: float
) -> None:
    ended = run(data, tmp_path, algo, lr=lr, rounds=8)
    assert "in round" in reason(ended)
    assert 1 <= len(ended.records()) <= 8


@pytest.mark.parametrize("value", [50.0, LARGEST])
@pytest.mark.parametrize(("algo", "name"), LAMBDAS)
def test_an_absurd_weight_is_finished_or_diverged_and_no_error(
    data: Path, tmp_path: Path, algo: str, name: str, value: float
) -> None:
    high = next(k.high for k in knobs(load_algorithm(algo).Hyper).values() if k.name == name)
    ended = run(data, tmp_path, algo, {name: value if high is None else min(value, high)}, rounds=2)
    assert ended.status in ("finished", "diverged")
    assert ended.records()
    if ended.status == "finished":
        assert all(map(is_finite, ended.records()))


def test_a_run_that_diverged_is_not_computed_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = spoil(monkeypatch, "ditto", "nan")
    ended = run(data, tmp_path, "ditto")

    def forbidden(*_: object) -> Message:
        raise AssertionError("trained again")

    monkeypatch.setattr(kind, "local_update", forbidden)
    assert run(data, tmp_path, "ditto") == ended


def test_a_personal_model_that_is_not_finite_is_found_when_it_is_scored(
    data: Path, tmp_path: Path
) -> None:
    """Nothing of it is sent and its loss is not the one reported; the test loss tells."""
    ended = run(data, tmp_path, "perfedavg", {"alpha": 1e9})
    assert reason(ended).startswith("the test loss of client")
