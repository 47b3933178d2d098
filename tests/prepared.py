"""The toy problem as a file of the prepared format, for tests that go through the whole engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from toy import toy_dataset

NAME = "toy"


def prepare_toy(folder: Path, samples: int = 160, seed: int = 0) -> Path:
    """Puts toy.npz into `folder`, which is then a data folder, and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = toy_dataset(samples=samples, seed=seed)
    np.savez(folder / f"{NAME}.npz", x=dataset.x.transpose(0, 3, 1, 2), y=dataset.y)
    return folder
