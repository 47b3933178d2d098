"""A partition written as PFLlib keeps its own, so that its code can run on the same data.

PFLlib reads a pickled dictionary of arrays per client. Writing one is harmless; how such files are
read here, where nothing in them is executed, is in `pfllib`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pfl_bench.base import UserError, write_atomically
from pfl_bench.data.dataset import Dataset
from pfl_bench.data.partition import Partition
from pfl_bench.data.pfllib import scaled
from pfl_bench.data.text import PADDING

_PARTITIONS = {"practical": "dir", "pathological": "pat"}


def write_pfllib(
    path: Path, dataset: Dataset, dealt: Partition, *, setting: str, beta: float | None
) -> None:
    """config.json, train/0.npz, test/0.npz … in the folder `path`, which must be new or empty."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"{path} is there already; name a new folder to export to")
        for part, held in (("train", dealt.train), ("test", dealt.test)):
            (path / part).mkdir(parents=True, exist_ok=True)
            for client, own in enumerate(held):
                content = {"x": _samples(dataset, own), "y": dataset.y[own]}
                with (path / part / f"{client}.npz").open("wb") as file:
                    np.savez_compressed(file, data=np.array(content, dtype=object))
        # Last: a folder without it is no partition.
        config = _config(dataset, dealt, setting, beta)
        write_atomically(path / "config.json", json.dumps(config))
    except OSError as error:
        raise UserError(f"cannot export to {path}: {error.strerror or error}") from error


def _samples(dataset: Dataset, own: np.ndarray) -> np.ndarray:
    """Images n×c×h×w in [-1, 1]; documents as pairs of their tokens, padded, and their length."""
    x = dataset.x[own]
    if dataset.kind == "image":
        values = scaled(x) if x.dtype == np.uint8 else x
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2), dtype=np.float32)
    pairs = np.empty((len(x), 2), dtype=object)
    for row, tokens in enumerate(x):
        words = np.flatnonzero(tokens != PADDING)
        pairs[row] = tokens.tolist(), int(words[-1]) + 1 if len(words) else 0
    return pairs


def _config(dataset: Dataset, dealt: Partition, setting: str, beta: float | None) -> dict[str, Any]:
    histogram = dealt.histogram(dataset.y, dataset.classes).tolist()
    return {
        "num_clients": dealt.clients,
        "num_classes": dataset.classes,
        "non_iid": setting != "iid",
        "balance": setting == "iid",
        "partition": _PARTITIONS.get(setting),
        "Size of samples for labels in clients": [
            [[label, count] for label, count in enumerate(row) if count] for row in histogram
        ],
        "alpha": beta,
        "batch_size": 10,
    }
