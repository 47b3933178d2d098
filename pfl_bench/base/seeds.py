"""The seed tree: every random draw comes from a generator named by what it is for.

A generator is derived by hashing (root seed, purpose, round, client, …). There is no global random
state, hence nothing to save at a checkpoint and no order of execution to depend on.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(root: int, *path: str | int) -> int:
    """A 63-bit seed for the node `path` of the tree under `root`."""
    name = "/".join([str(root), *map(str, path)])
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def numpy_generator(root: int, *path: str | int) -> np.random.Generator:
    return np.random.default_rng(derive(root, *path))


def torch_generator(root: int, *path: str | int) -> torch.Generator:
    """On the CPU whatever the device, so that draws are the same everywhere."""
    import torch

    return torch.Generator().manual_seed(derive(root, *path))
