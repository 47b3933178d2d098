"""Cifar10 and Cifar100: 60,000 colour photographs of 32×32 each, in 10 and 100 classes."""

from __future__ import annotations

from functools import partial

from pfl_bench.data import DatasetSpec, convert
from pfl_bench.data.standins import images as standin_images


def _cifar(classes: int, classes_per_client: int) -> DatasetSpec:
    name, shape = f"cifar{classes}", (3, 32, 32)
    return DatasetSpec(
        name=name,
        title=name.capitalize(),
        kind="image",
        classes=classes,
        shape=shape,
        samples=60_000,
        classes_per_client=classes_per_client,
        model="cnn",
        standin=partial(standin_images.render, name),
        standin_key=standin_images.key(name),
        prepare=partial(convert.from_torchvision_or_folders, name.upper(), classes, shape),
    )


SPECS = (_cifar(10, classes_per_client=2), _cifar(100, classes_per_client=10))
