"""A checkpoint comes back bit for bit or not at all."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from pfl_bench.store import checkpoint
from pfl_bench.store.checkpoint import DamagedCheckpoint

matrix = torch.arange(12, dtype=torch.float32).reshape(3, 4)

TENSORS = {
    "float32": torch.tensor([0.1, -0.0, float("inf"), float("nan")]),
    "bfloat16": torch.linspace(-3, 3, 7).bfloat16(),
    "int64": torch.tensor([2**62, -1]),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(7),
    "no elements": torch.zeros(0, 5),
    "transposed": matrix.t(),
    "every other column": matrix[:, ::2],
    "channels last": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "needs a gradient": torch.ones(2, requires_grad=True),
    "naïve «näme» / 名": torch.ones(1),
}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def is_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and bits(a[n]) == bits(b[n])
        for n in a
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint-1.safetensors"


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_bit_for_bit(path: Path, name: str) -> None:
    checkpoint.write(path, {name: TENSORS[name]}, {})
    assert is_same(checkpoint.read(path)[0], {name: TENSORS[name]})


def test_tensors_that_share_memory_come_back_equal_and_independent(path: Path) -> None:
    shared = {"whole": matrix, "again": matrix, "row": matrix[1], "tail": matrix.reshape(-1)[5:]}
    checkpoint.write(path, shared, {})
    read, _ = checkpoint.read(path)
    assert is_same(read, shared)
    read["whole"].zero_()
    assert is_same({"row": read["row"]}, {"row": matrix[1]})


def test_no_tensors_are_a_valid_checkpoint(path: Path) -> None:
    checkpoint.write(path, {}, {"round": 3})
    assert checkpoint.read(path) == ({}, {"round": 3})


def test_meta_data_comes_back_equal(path: Path) -> None:
    meta = {"loss": 0.1 + 0.2, "best": -float("inf"), "é": [1, None, {"x": "名"}]}
    checkpoint.write(path, {"a": matrix}, meta)
    assert checkpoint.read(path)[1] == meta


@pytest.fixture
def small(path: Path) -> Path:
    tensors = {"a": torch.arange(3.0), "b": torch.tensor([True, False]), "c": torch.tensor([5])}
    checkpoint.write(path, tensors, {"round": 7})
    return path


def test_a_checkpoint_cut_at_any_byte_is_refused(small: Path) -> None:
    data = small.read_bytes()
    for length in range(len(data)):
        small.write_bytes(data[:length])
        with pytest.raises(DamagedCheckpoint):
            checkpoint.read(small)


def test_a_flipped_bit_is_refused_or_changes_nothing(small: Path) -> None:
    """Some bits of the header are mere layout; all others must be noticed."""
    data = small.read_bytes()
    tensors, meta = checkpoint.read(small)
    refused = 0
    for position in range(0, 8 * len(data), 5):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        small.write_bytes(flipped)
        try:
            read, read_meta = checkpoint.read(small)
        except DamagedCheckpoint:
            refused += 1
        else:
            assert is_same(read, tensors) and read_meta == meta
    assert refused > 0.9 * 8 * len(data) / 5


def test_a_safetensors_file_of_another_program_is_refused(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": matrix}, path)
    with pytest.raises(DamagedCheckpoint):
        checkpoint.read(path)


def test_the_file_is_plain_safetensors(path: Path) -> None:
    from safetensors.torch import load_file

    checkpoint.write(path, {"a": matrix}, {})
    assert torch.equal(load_file(path)["a"], matrix)


def test_a_write_that_fails_leaves_the_previous_checkpoint_and_nothing_else(path: Path) -> None:
    checkpoint.write(path, {"a": matrix}, {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            checkpoint.write(path, {"a": torch.zeros(100_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert torch.equal(checkpoint.read(path)[0]["a"], matrix)
    assert list(path.parent.iterdir()) == [path]
