"""Trees of tensors: what messages and states are made of.

A tree is a tensor, a list of trees, or a dictionary of trees by name or by whole number (a class
label, a cluster). Here are its leaves, and the flat names they have in a checkpoint:
`models/0` lies in a list, `prototypes/#3` under the number 3, and `past/[]` says that a list is
empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Tree = Any
"""Tensor | list[Tree] | dict[str | int, Tree]"""

_EMPTY: dict[str, Callable[[], Tree]] = {"[]": list, "{}": dict}


def leaves(tree: Tree) -> Iterator[Tensor]:
    """The tensors of a tree, in its order."""
    return (leaf for _, leaf in _named(tree, ""))


def flatten(tree: Tree, name: str) -> dict[str, Tensor]:
    """The leaves by their names in a checkpoint; ValueError where a name could not be told from
    another."""
    return dict(_named(tree, name))


def grow(flat: Mapping[str, Tensor]) -> Tree:
    """The tree whose leaves have these names; ValueError or KeyError where there is none."""
    if "" in flat:
        if len(flat) > 1:
            raise ValueError(f"{sorted(flat)[1]!r} lies inside a tensor")
        return flat[""]
    branches: dict[str, dict[str, Tensor]] = {}
    for name, value in flat.items():
        first, _, rest = name.partition("/")
        branches.setdefault(first, {})[rest] = value
    if len(branches) == 1 and (empty := _EMPTY.get(next(iter(branches)))):
        return empty()
    if all(map(str.isdecimal, branches)):
        return [grow(branches[str(i)]) for i in range(len(branches))]
    return {_key(name): grow(branch) for name, branch in branches.items()}


def _named(tree: Tree, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        yield path, tree
        return
    if isinstance(tree, Mapping):
        branches = [(_spelt(key), value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple):
        branches = [(str(i), value) for i, value in enumerate(tree)]
    else:
        raise ValueError(f"{path!r} is {tree!r}; a state holds tensors, lists and dictionaries")
    if not branches:
        yield f"{path}/{'{}' if isinstance(tree, Mapping) else '[]'}", torch.empty(0)
    for name, value in branches:
        yield from _named(value, f"{path}/{name}")


def _spelt(key: str | int) -> str:
    if isinstance(key, int):
        return f"#{key}"
    if "/" in key or key.startswith("#") or not any(map(str.isalpha, key)):
        raise ValueError(
            f"a state cannot be called {key!r}: a name has letters, no slash and no # in front"
        )
    return key


def _key(name: str) -> str | int:
    return int(name[1:]) if name.startswith("#") else name
