"""What a card is told, checked without one: the settings are those of the process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from pfl_bench.base import UserError
from pfl_bench.device import TF32, make_repeatable

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
CARD = torch.device("cuda")


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(WORKSPACE, raising=False)
    monkeypatch.delenv(TF32, raising=False)
    cudnn, fills = torch.backends.cudnn, torch.utils.deterministic.fill_uninitialized_memory
    flags = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32
    precision = torch.get_float32_matmul_precision()
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fills
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = flags
    torch.set_float32_matmul_precision(precision)
    os.environ.pop(WORKSPACE, None)


def test_a_card_is_told_to_be_deterministic() -> None:
    torch.backends.cudnn.benchmark = True
    make_repeatable(CARD)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
    assert os.environ[WORKSPACE] == ":4096:8"


@pytest.mark.parametrize(
    ("asked", "precision"), [(None, "highest"), ("0", "highest"), ("1", "high")]
)
def test_tf32_is_off_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, precision: str
) -> None:
    if asked is not None:
        monkeypatch.setenv(TF32, asked)
    make_repeatable(CARD)
    assert torch.get_float32_matmul_precision() == precision
    assert torch.backends.cudnn.allow_tf32 is (asked == "1")


def test_a_workspace_with_which_runs_differ_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE, ":0:0")
    with pytest.raises(UserError, match=r"CUBLAS_WORKSPACE_CONFIG is ':0:0'.*allowed: :4096:8"):
        make_repeatable(CARD)


def test_a_processor_is_left_as_it_is() -> None:
    make_repeatable(torch.device("cpu"))
    assert not torch.are_deterministic_algorithms_enabled()
    assert WORKSPACE not in os.environ
