"""What a dataset is: known of it beforehand, its arrays, and what it says of itself without them.

Which datasets there are is in `registry`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pfl_bench.data.imagesize import area_means, reduced_shape

Arrays = tuple[np.ndarray, np.ndarray, int | None]
"""x, y, and the vocabulary of a text set."""
Owned = tuple[np.ndarray, np.ndarray, int | None, np.ndarray | None]
"""The same, and the client of each sample where the data say so."""

SUFFIXES = {"image": ".npz", "text": ".csv"}


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """What is known of a dataset before its arrays are read. A plugin provides one of these."""

    name: str
    title: str
    kind: str
    """image or text"""
    classes: int
    shape: tuple[int, int, int] | None = None
    """(channels, height, width) of an image"""
    samples: int | None = None
    """as published, train and test together"""
    classes_per_client: int
    """the default of the pathological partition"""
    model: str
    """the default model"""
    standin: Callable[[], Arrays] | None = None
    standin_key: str = ""
    """all that the rendering depends on; another key is another rendering"""
    prepare: Callable[[Path, Path | None], None] | None = None
    """makes the prepared file (first) from what the user has (second), or downloads it"""
    clients: int | None = None
    """to how many the samples belong, where the data say so"""
    needs: str = ""
    """what `data prepare --from` must be given where there is no download"""

    @property
    def filename(self) -> str:
        return self.name + SUFFIXES[self.kind]

    def is_part(self, samples: int) -> bool:
        return self.samples is not None and samples < self.samples

    def counted(self, samples: int) -> str:
        """So many samples, and of how many where they are a part of the published ones."""
        return f"{samples:,}" + (f" of the {self.samples:,}" if self.is_part(samples) else "")

    @property
    def command(self) -> str:
        """How the prepared file is had."""
        source = f" --from {self.needs}" if self.needs else ""
        return f"pfl-bench data prepare {self.name}{source}"


@dataclass(frozen=True)
class Dataset:
    """All samples, train and test part merged."""

    name: str
    source: str
    x: np.ndarray
    """images n×h×w×c, uint8 or float32 in [-1, 1]; text n×200 int32 token indices, 0 is padding"""
    y: np.ndarray
    classes: int
    vocabulary: int | None
    """rows of the embedding of a text set"""
    fingerprint: str
    remark: str = ""
    """what must be said wherever figures made from it appear; nothing if it is as published"""
    owners: np.ndarray | None = None
    """the client of each sample, from 0, where the data say so"""

    @property
    def kind(self) -> str:
        return "image" if self.vocabulary is None else "text"

    @property
    def shape(self) -> tuple[int, int, int] | None:
        if self.kind == "text":
            return None
        height, width, channels = self.x.shape[1:]
        return channels, height, width

    def reduced(self, size: int | None) -> Dataset:
        """The same images at `size`×`size` pixels; None leaves them as they are."""
        return self if size is None else dataclasses.replace(self, x=area_means(self.x, size))


@dataclass(frozen=True)
class Card:
    """What a dataset says of itself without its arrays; remembered between commands."""

    fingerprint: str
    samples: int
    dtype: str
    shape: tuple[int, int, int] | None
    vocabulary: int | None
    classes: int
    smallest_class: int
    largest_class: int
    clients: int | None = None
    """to how many the samples belong, where the data say so"""

    @classmethod
    def of(cls, dataset: Dataset) -> Card:
        counts = np.bincount(dataset.y)
        return cls(
            fingerprint=dataset.fingerprint,
            samples=len(dataset.y),
            dtype=dataset.x.dtype.name,
            shape=dataset.shape,
            vocabulary=dataset.vocabulary,
            classes=dataset.classes,
            smallest_class=int(counts.min()),
            largest_class=int(counts.max()),
            clients=None if dataset.owners is None else int(dataset.owners.max()) + 1,
        )

    def reduced(self, size: int | None) -> Card:
        """What the dataset says of itself once its images are reduced."""
        return dataclasses.replace(self, shape=reduced_shape(self.shape, size))


def content_fingerprint(
    x: np.ndarray,
    y: np.ndarray,
    classes: int,
    vocabulary: int | None,
    owners: np.ndarray | None = None,
) -> str:
    """16 hexadecimal digits over all that an algorithm can see of a dataset."""
    header = [[x.dtype.str, x.shape], [y.dtype.str, y.shape], classes, vocabulary]
    digest = hashlib.sha256(json.dumps(header).encode())
    for array in (x, y) if owners is None else (x, y, owners):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]
