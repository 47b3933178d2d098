"""The small problems of `pfl_bench.plugins`, under a short name for the tests beside this file."""

import dataclasses

import numpy as np

from pfl_bench.data.dataset import Dataset
from pfl_bench.plugins.testing import (
    toy_algorithm,
    toy_client,
    toy_config,
    toy_dataset,
    toy_partition,
    toy_run,
    toy_server,
    toy_simulator,
    toy_text,
)

__all__ = [
    "colour_dataset",
    "toy_algorithm",
    "toy_client",
    "toy_config",
    "toy_dataset",
    "toy_partition",
    "toy_run",
    "toy_server",
    "toy_simulator",
    "toy_text",
]


def colour_dataset(side: int = 16) -> Dataset:
    """The toy images in three channels, for ResNet-18."""
    grey = toy_dataset(samples=24, side=side)
    return dataclasses.replace(grey, x=np.repeat(grey.x, 3, axis=3))
