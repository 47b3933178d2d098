"""MNIST: handwritten digits, 70,000 of 28×28 in one channel."""

from __future__ import annotations

from functools import partial

from pfl_bench.data import DatasetSpec, convert
from pfl_bench.data.standins import images as standin_images

SPECS = (
    DatasetSpec(
        name="mnist",
        title="MNIST",
        kind="image",
        classes=10,
        shape=(1, 28, 28),
        samples=70_000,
        classes_per_client=2,
        model="cnn",
        standin=partial(standin_images.render, "mnist"),
        standin_key=standin_images.key("mnist"),
        prepare=partial(convert.from_torchvision_or_folders, "MNIST", 10, (1, 28, 28)),
    ),
)
