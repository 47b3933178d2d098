"""The prepared format: read with every check, and made from torchvision, class folders or CSV.

Images lie in `<name>.npz` with x (n×c×h×w; uint8, or float32 in [-1, 1]) and y (n, classes from
0); text lies in `<name>.csv` with the class in the first column. Either may say to whom each sample
belongs: `client` (n integers), or a CSV header of class, client, text. Which dataset is made from
what is said in the dataset's own file.
"""

from __future__ import annotations

import contextlib
import csv
import io
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np

from pfl_bench.base import (
    UserError,
    cache_dir,
    open_regular,
    replacing,
    standard_error,
    write_atomically,
)
from pfl_bench.data import text

if TYPE_CHECKING:
    from PIL import Image

LARGEST_BYTES = 16 * 2**30
"""A set beyond this is refused before memory is asked for: it must be made smaller."""
SUSPICIOUS_BYTES = 2**30
SUSPICIOUS_RATIO = 100
"""An archive that unpacks to more of both is a trap: pictures and tokens pack ten times at best."""
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


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; nothing pickled in it is ever executed."""
    try:
        with open_regular(path, LARGEST_BYTES) as file:
            refuse_bomb(file, path)
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, SyntaxError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    except Exception as error:  # the parsers raise what they like on arbitrary bytes
        raise UserError(f"{path} is not a readable .npz file of plain arrays: {error}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy gives the bytes of what is none
            raise UserError(f"{path} is not an .npz file of plain arrays: {name!r} is none")
    return arrays


def refuse_bomb(file: BinaryIO, path: Path) -> None:
    """A `UserError` for an archive that unpacks to far more than it is; no more is ever unpacked
    of a member than its declared size."""
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    file.seek(0)
    is_trap = unpacked > max(SUSPICIOUS_BYTES, SUSPICIOUS_RATIO * size)
    if is_trap or unpacked > LARGEST_BYTES:
        raise UserError(
            f"{path} is refused for its absurd size: it unpacks to {unpacked / 2**30:,.0f} GB"
        )


def write_arrays(path: Path, **arrays: Any) -> None:
    with replacing(path) as temporary, temporary.open("wb") as handle:
        np.savez(handle, **arrays)


def read_images(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images n×h×w×c and labels of a prepared .npz, or a `UserError` that names the defect."""
    return read_owned_images(path)[:2]


def read_owned_images(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The same, and the number of each image's client where the file tells."""
    arrays = read_arrays(path)
    if missing := {"x", "y"} - arrays.keys():
        raise UserError(f"{path} lacks the array {' and '.join(sorted(missing))}")
    x, y = arrays["x"], arrays["y"]
    if defect := _defect_of_images(x) or _defect_of_labels(y, len(x)):
        raise UserError(f"{path}: {defect}")
    owners = arrays.get("client")
    if owners is not None:
        if owners.shape != y.shape or owners.dtype.kind not in "iu":
            raise UserError(f"{path}: client must hold one integer per sample ({len(y)})")
        owners = np.unique(owners, return_inverse=True)[1].astype(np.int64)
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)), y.astype(np.int64), owners


def _defect_of_images(x: np.ndarray) -> str | None:
    if x.ndim != 4 or 0 in x.shape:
        return f"x must be n×channels×height×width, but its shape is {x.shape}"
    if x.shape[1] > 4 >= x.shape[3]:
        return f"x has its channels last {x.shape}; they belong before height and width"
    if x.dtype == np.uint8:
        return None
    if x.dtype != np.float32:
        return f"x must be uint8, or float32 in [-1, 1], but it is {x.dtype}"
    if not np.isfinite(x).all():
        return "x holds values that are not finite"
    return "x is float32 outside [-1, 1]" if np.abs(x).max() > 1 else None


def _defect_of_labels(y: np.ndarray, samples: int) -> str | None:
    if y.shape != (samples,):
        return f"y must hold one label per sample ({samples}), but its shape is {y.shape}"
    if y.dtype.kind not in "iu":
        return f"y must hold integers, but it is {y.dtype}"
    if y.min() < 0:
        return f"y holds the negative label {y.min()}"
    present = np.unique(y)
    if present[-1] != len(present) - 1:
        absent = next(number for number, label in enumerate(present) if label != number)
        return f"labels must run from 0 without a gap, but {absent} is absent below {present[-1]}"
    return None


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
