"""The memory that is asked for a run: it follows what the method keeps, and covers what is used.
And how many runs a machine does best at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy import toy_config, toy_dataset

from pfl_bench.base.errors import UserError
from pfl_bench.execution import resources as resources_module
from pfl_bench.execution.options import AS_MANY_AS_PAY, Execution
from pfl_bench.execution.resources import WORKER_BYTES, jobs_for, memory_of
from pfl_bench.models.backbones import Inputs, build_model

MEASURE = """
from toy import toy_config, toy_run
from pfl_bench.store.provenance import peak_memory
toy_run(toy_config("ditto", clients=20), workers=2)
print(peak_memory())
"""


def _model_bytes() -> int:
    dataset = toy_dataset()
    return 4 * build_model("cnn", Inputs(dataset.classes, dataset.shape)).size


def test_a_method_that_keeps_a_model_per_client_asks_for_it_twice_per_client() -> None:
    """Twice: in the run, and as a checkpoint on its way."""
    dataset, config = toy_dataset(), toy_config("local")
    few, many = (memory_of(config, dataset, clients, 1) for clients in (100, 300))
    assert many - few == 200 * 2 * _model_bytes()


def test_a_method_that_keeps_nothing_asks_for_no_more_with_more_clients() -> None:
    dataset, config = toy_dataset(), toy_config("fedavg")
    assert memory_of(config, dataset, 100, 1) == memory_of(config, dataset, 300, 1)


def test_every_worker_asks_for_a_workspace() -> None:
    dataset, config = toy_dataset(), toy_config("fedavg")
    one, three = (memory_of(config, dataset, 4, workers) for workers in (1, 3))
    assert three - one == 2 * (3 * _model_bytes() + WORKER_BYTES)


def test_what_is_asked_for_covers_what_a_process_used() -> None:
    path = str(Path(__file__).parents[1])
    program = f"import sys; sys.path.insert(0, {path!r})\n{MEASURE}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    asked = memory_of(toy_config("ditto", clients=20), toy_dataset(), 20, 2)
    assert int(done.stdout) <= asked <= 3 * int(done.stdout)


def test_a_model_that_cannot_read_the_data_is_refused() -> None:
    with pytest.raises(UserError, match="'fasttext' reads texts"):
        memory_of(toy_config(model="fasttext"), toy_dataset(), 4, 1)


def _on_eight_cores(
    monkeypatch: pytest.MonkeyPatch, memory: int | None = 64 * 10**9, device: str = "cpu"
) -> None:
    monkeypatch.setattr(resources_module, "default_workers", lambda: 8)
    monkeypatch.setattr(resources_module, "choose_device", lambda _: device)
    monkeypatch.setattr(resources_module, "machine", lambda: {"memory": memory})


@pytest.mark.parametrize(
    ("models", "changed", "expected"),
    [
        (("cnn_small", "fasttext", "resnet_small"), {}, 3),  # no more than there are runs
        (("cnn_small",) * 9, {}, 8),
        (("cnn_small",) * 9, {"workers": 4}, 2),
        (("cnn_small",) * 9, {"workers": 16}, 1),
        (("cnn_small",) * 9, {"jobs": 3}, 3),
        (("cnn_small",) * 9, {"timed": True}, 1),
        (("cnn_small",) * 8 + ("cnn",), {}, 1),  # whose run keeps all cores busy
        ((), {}, 1),
    ],
)
def test_small_models_have_a_run_on_every_core(
    monkeypatch: pytest.MonkeyPatch,
    models: tuple[str, ...],
    changed: dict[str, Any],
    expected: int,
) -> None:
    _on_eight_cores(monkeypatch)
    configs = [toy_config("fedavg", model=model) for model in models]
    options = Execution(Path(), **{"jobs": AS_MANY_AS_PAY, **changed})
    assert jobs_for(configs, options) == expected


@pytest.mark.parametrize(
    ("memory", "device", "expected"),
    [(6 * 10**9, "cpu", 3), (10**9, "cpu", 1), (None, "cpu", 1), (64 * 10**9, "cuda", 1)],
)
def test_so_many_runs_at_a_time_as_memory_and_card_allow(
    monkeypatch: pytest.MonkeyPatch, memory: int | None, device: str, expected: int
) -> None:
    _on_eight_cores(monkeypatch, memory, device)
    configs = [toy_config("fedavg", model="cnn_small")] * 9
    assert jobs_for(configs, Execution(Path(), jobs=AS_MANY_AS_PAY)) == expected
