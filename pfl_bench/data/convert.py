"""Prepared files made from what users have: torchvision's, class folders of images, or CSV.

Images become `<name>.npz` as in `prepared`; text becomes `<name>.csv` with the class in the first
column, or with a header of class, client, text. Which dataset is made from what is said in the
dataset's own file.
"""

from __future__ import annotations

import contextlib
import csv
import io
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pfl_bench.base import (
    UserError,
    cache_dir,
    standard_error,
    write_atomically,
)
from pfl_bench.data import text
from pfl_bench.data.prepared import LARGEST_BYTES, write_arrays

if TYPE_CHECKING:
    from PIL import Image

LONGEST_SIDE = 2**16
"""Of an image, in pixels. One of a single row passes a limit on the area, and resizing it would
still ask for gigabytes."""

_PARTS = frozenset({"train", "test", "val", "valid", "validation"})
_GREY_MODES = frozenset({"1", "L", "LA"})
# Pixels and nothing else. Pillow knows more formats, one of which it hands to another program.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_TORCHVISION_FOLDERS = {
    "MNIST": Path("MNIST"),
    "CIFAR10": Path("cifar-10-batches-py"),
    "CIFAR100": Path("cifar-100-python"),
}

Item = TypeVar("Item")


def from_torchvision(kind: str, out: Path, source: Path | None) -> None:
    """Train and test part of torchvision's dataset `kind`, from `source` or downloaded."""
    parts = [_torchvision_part(kind, source, train, out.stem) for train in (True, False)]
    images = np.concatenate([np.asarray(part.data) for part in parts])
    labels = np.concatenate([np.asarray(part.targets, np.int64) for part in parts])
    channels_last = images.reshape(*images.shape[:3], -1)
    x = np.ascontiguousarray(channels_last.transpose(0, 3, 1, 2))
    write_arrays(out, x=x, y=labels)


def _torchvision_part(kind: str, source: Path | None, train: bool, name: str) -> Any:
    """Cifar's own files are pickles: torchvision opens only those whose checksum it knows."""
    import torchvision

    root = source or cache_dir() / "downloads"
    folder = _TORCHVISION_FOLDERS[kind]
    if root.name == folder.name and not (root / folder).exists():
        root = root.parent
    try:
        return getattr(torchvision.datasets, kind)(root, train=train, download=source is None)
    except Exception as error:  # what torchvision raises on damaged files is not documented
        reason = str(error).split("\n")[0].strip(" .:")
        command = f"`pfl-bench data prepare {name} --from FOLDER`"
        if source is None:
            raise UserError(
                f"{kind} is not in {root} and cannot be downloaded ({reason}); run this with a "
                f"network, or {command} with the folder torchvision downloaded it to"
            ) from error
        raise UserError(
            f"{source} does not hold {kind} whole as torchvision keeps it in {folder} ({reason}); "
            f"`pfl-bench data prepare {name}` downloads it"
        ) from error


def _holds_torchvision(kind: str, source: Path) -> bool:
    folder = _TORCHVISION_FOLDERS[kind]
    return (source / folder).is_dir() or source.name == folder.name


def from_torchvision_or_folders(
    kind: str, classes: int, shape: tuple[int, int, int], out: Path, source: Path | None
) -> None:
    """A dataset that torchvision knows: downloaded, as torchvision left it, or class folders."""
    if source is None or _holds_torchvision(kind, source) or not _subfolders(source):
        from_torchvision(kind, out, source)
    else:
        from_class_folders(out, source, classes=classes, shape=shape)


def from_class_folders(
    out: Path,
    source: Path,
    *,
    classes: int | None = None,
    shape: tuple[int, int, int] | None = None,
    size: tuple[int, int] | None = None,
) -> None:
    """One class per folder of images, in the order of their names.

    Parts (train, test, val …) that each hold class folders are merged. A known dataset demands its
    `classes` and its `shape` (channels, height, width). Of an unknown one, `size` (height, width)
    resizes every image and without it all must be as large as the first; if no image has colour
    there is one channel, else there are three.
    """
    files = _class_files(source)
    if classes not in (None, len(files)):
        raise UserError(f"{source} holds {len(files)} class folders, not {classes}")
    paths = [path for group in files.values() for path in group]
    labels = np.repeat(np.arange(len(files)), [len(group) for group in files.values()])
    channels, height, width = shape or (_channels(paths), *(size or _size(paths[0])))
    if (needed := len(paths) * channels * height * width) > LARGEST_BYTES:
        raise UserError(
            f"{len(paths)} images of {height}×{width} from {source} would take "
            f"{needed / 2**30:.0f} GB; give a smaller --size"
        )
    x = np.empty((len(paths), channels, height, width), np.uint8)
    for row, path in enumerate(_progress(paths, f"reading {source.name}")):
        x[row] = _pixels(path, channels, height, width, resize=size is not None)
    write_arrays(out, x=x, y=labels.astype(np.int64))


def _class_files(source: Path) -> dict[str, list[Path]]:
    """The images of each class, classes in order."""
    folders = _subfolders(source)
    parts = [folder for folder in folders if folder.name.lower() in _PARTS]
    if parts and len(parts) == len(folders):
        folders = [folder for part in parts for folder in _subfolders(part)]
    endings = _image_endings()
    files: dict[str, list[Path]] = {}
    for folder in sorted(folders, key=_class_order):
        named = (path for path in folder.rglob("*") if path.suffix.lower() in endings)
        found = sorted(path for path in named if path.is_file())
        files.setdefault(folder.name, []).extend(found)
    if len(files) < 2:
        raise UserError(f"{source} holds {len(files)} class folders; at least two are needed")
    if empty := [name for name, found in files.items() if not found]:
        raise UserError(f"the class folder {empty[0]!r} of {source} holds no image")
    return files


def _channels(paths: list[Path]) -> int:
    for path in paths:
        with _open(path) as image:
            if image.mode not in _GREY_MODES:
                return 3
    return 1


def _size(path: Path) -> tuple[int, int]:
    """(height, width)"""
    with _open(path) as image:
        return image.height, image.width


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder")
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._")


def _class_order(folder: Path) -> tuple[int, str]:
    """Numbers by value, then names: 2 comes before 10."""
    number = int(folder.name) if folder.name.isdecimal() else -1
    return (number, folder.name)


def _image_endings() -> frozenset[str]:
    from PIL import Image

    known = Image.registered_extensions()
    return frozenset(ending for ending, kind in known.items() if kind in _FORMATS)


def _open(path: Path) -> Image.Image:
    """An image whose header has been read and whose size is sane; its pixels are not read yet."""
    from PIL import Image

    with _decoding(path):
        image = Image.open(path, formats=_FORMATS)
    if max(image.size) > LONGEST_SIDE:
        image.close()
        raise UserError(
            f"{path} is refused for its absurd size: {image.height:,}×{image.width:,} pixels; "
            f"allowed: {LONGEST_SIDE:,} a side"
        )
    return image


@contextlib.contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """Whatever Pillow says of a file becomes one sentence; what it only warns of is read."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(f"{path} is refused for its absurd size: {error}") from error
    except MemoryError as error:
        raise UserError(f"{path} is too large for the memory of this machine") from error
    except Exception as error:  # decoders raise what they like on arbitrary bytes
        raise UserError(f"{path} is not an image that can be read: {error}") from error


def _pixels(path: Path, channels: int, height: int, width: int, *, resize: bool) -> np.ndarray:
    """Channels×height×width."""
    with _open(path) as image:
        if image.size != (width, height) and not resize:
            raise UserError(
                f"{path} is {image.height}×{image.width}, not {height}×{width}; "
                "a set of one's own is resized with --size"
            )
        with _decoding(path):
            picture = image.convert("L" if channels == 1 else "RGB")
            if resize:
                picture = picture.resize((width, height))
    return np.asarray(picture).reshape(height, width, channels).transpose(2, 0, 1)


def _progress(items: Sequence[Item], what: str) -> Iterable[Item]:
    from rich.progress import track

    console = standard_error()
    return track(items, what, console=console, transient=True, disable=not console.is_terminal)


def from_csv(
    out: Path,
    source: Path,
    *,
    classes: int | None = None,
    columns: text.Columns = text.UNNAMED,
    least: int = 0,
) -> int:
    """One CSV file, or a folder whose CSV files (train.csv, test.csv) are merged. Returns how many
    clients were left out.

    A known dataset demands its number of `classes`. Where documents belong to clients, those of
    clients with fewer than `least` are left out.
    """
    files = sorted(source.glob("*.csv")) if source.is_dir() else [source.resolve()]
    if not files:
        raise UserError(f"{source} holds no .csv file")
    tables = [text.read_table(file, columns) for file in files]
    if len({table.clients is None for table in tables}) > 1:
        raise UserError(f"{source} names clients in some of its files and not in all")
    labels = [label for table in tables for label in table.labels]
    texts = [document for table in tables for document in table.texts]
    owners = [owner for table in tables for owner in table.clients or ()]
    held = Counter(owners)
    if owners:
        kept = [k for k, owner in enumerate(owners) if held[owner] >= least]
        if not kept:
            raise UserError(f"{source} has no client with at least {least} documents")
        labels, texts, owners = ([column[k] for k in kept] for column in (labels, texts, owners))
    found = int(text.number_classes(labels, source).max()) + 1
    if classes not in (None, found):
        raise UserError(f"{source} has {found} classes in its first column, not {classes}")
    merged = io.StringIO()
    # With csv's own line ends, or a carriage return within a text would not be quoted.
    writer = csv.writer(merged)
    if owners:
        writer.writerow(text.WITH_CLIENTS)
        writer.writerows(zip(labels, owners, texts, strict=True))
    else:
        writer.writerows(zip(labels, texts, strict=True))
    write_atomically(out, merged.getvalue())
    return len(held) - len(set(owners))
