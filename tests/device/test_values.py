"""Values come back as numbers, in the shape of what was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pfl_bench.device import fetched


@dataclass(frozen=True)
class Pair:
    one: Any
    other: Any


def test_a_tree_comes_back_with_numbers_in_the_place_of_tensors() -> None:
    tree = {
        "counts": [torch.tensor(3), torch.tensor(2**53 + 1)],
        "pair": Pair(torch.tensor(True), ("text", None)),
        "rows": torch.tensor([[0.5, 0.25]]),
    }
    assert fetched(tree) == {
        "counts": [3, 2**53 + 1],
        "pair": Pair(True, ("text", None)),
        "rows": [[0.5, 0.25]],
    }


def test_a_number_has_the_bits_of_its_tensor() -> None:
    third, tenth = torch.tensor(1 / 3), torch.tensor(0.1, dtype=torch.float64)
    assert fetched([third, tenth]) == [third.item(), 0.1]


def test_one_tensor_can_be_asked_for_twice() -> None:
    value = torch.tensor(7)
    assert fetched([value, value]) == [7, 7]
