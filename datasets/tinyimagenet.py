"""Tiny-ImageNet: 100,000 colour photographs of 64×64 in 200 classes.

Those are the official training images; the 10,000 for validation are not among them, as in the
paper's count, and the official test images have no labels.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pfl_bench.base import UserError
from pfl_bench.data import DatasetSpec, convert
from pfl_bench.data.standins import images as standin_images


def prepare(out: Path, source: Path | None) -> None:
    """From the official folder (train/<wnid>/images/*.JPEG) or from plain class folders."""
    if source is None:
        raise UserError(
            "Tiny-ImageNet is not downloaded for you: unpack tiny-imagenet-200.zip from "
            "http://cs231n.stanford.edu and run `pfl-bench data prepare tinyimagenet "
            "--from tiny-imagenet-200`"
        )
    train = source / "train"
    classes = train if train.is_dir() else source
    convert.from_class_folders(out, classes, classes=200, shape=(3, 64, 64))


SPECS = (
    DatasetSpec(
        name="tinyimagenet",
        title="Tiny-ImageNet",
        kind="image",
        classes=200,
        shape=(3, 64, 64),
        samples=100_000,  # those with labels in folders: 500 a class
        # The paper has no pathological setting here; a tenth of the classes, as for Cifar100.
        classes_per_client=20,
        model="cnn",
        standin=partial(standin_images.render, "tinyimagenet"),
        standin_key=standin_images.key("tinyimagenet"),
        prepare=prepare,
        needs="tiny-imagenet-200",
    ),
)
