"""Trees of tensors: their leaves, their names in a checkpoint, and their mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pfl_bench.engine.algorithm import Upload, weighted_mean
from pfl_bench.engine.trees import flatten, grow, leaves

tensors = st.lists(st.floats(-9, 9, width=32), max_size=3).map(torch.tensor)
names = st.text("abc[]{}# 1", min_size=1, max_size=4).filter(
    lambda name: any(map(str.isalpha, name)) and name[0] != "#"
)
trees = st.recursive(
    tensors,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(names, inner, max_size=3),
        st.dictionaries(st.integers(-2, 99), inner, max_size=3),
    ),
    max_leaves=8,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and torch.equal(left, right)
    if type(left) is not type(right) or len(left) != len(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return all(map(same, left, right))


@given(st.dictionaries(names, trees, min_size=1, max_size=3))
def test_a_tree_survives_its_flat_names(tree: dict[str, Any]) -> None:
    flat = flatten(tree, "state")
    assert all(name.startswith("state/") for name in flat)
    assert same(grow({name.removeprefix("state/"): flat[name] for name in flat}), tree)


def test_leaves_come_in_the_order_of_the_tree() -> None:
    tree = {"b": [torch.tensor(1), {7: torch.tensor(2)}], "a": torch.tensor(3)}
    assert [int(leaf) for leaf in leaves(tree)] == [1, 2, 3]


@pytest.mark.parametrize("name", ["a/b", "", "#a", "12", "[]"])
def test_a_name_that_could_be_taken_for_another_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a state cannot be called"):
        flatten({"inner": {name: torch.zeros(1)}}, "state")


def test_what_is_no_tensor_is_refused_by_its_place() -> None:
    with pytest.raises(ValueError, match="'state/count' is 3; a state holds tensors"):
        flatten({"count": 3}, "state")


@pytest.mark.parametrize(
    "flat", [{"": torch.zeros(1), "a": torch.zeros(1)}, {"models/1": torch.zeros(1)}]
)
def test_names_that_no_tree_has_are_refused(flat: dict[str, Tensor]) -> None:
    with pytest.raises((ValueError, KeyError)):
        grow(flat)


def test_the_mean_of_trees_is_taken_leaf_by_leaf() -> None:
    def message(x: float) -> dict[str, Any]:
        return {"w": torch.tensor([x, 1.0]), "more": [{3: torch.tensor(2 * x)}]}

    sent = [message(1.0), message(4.0)]
    mean = weighted_mean([Upload(0, 0.25, sent[0]), Upload(1, 0.75, sent[1])])
    assert same(mean, message(0.25 * 1 + 0.75 * 4))
    assert same(sent, [message(1.0), message(4.0)])
