"""The prepared format: images in `<name>.npz`, read with every check.

x (n×c×h×w; uint8, or float32 in [-1, 1]) and y (n, classes from 0); `client` (n integers) may say
to whom each sample belongs. Text lies in `<name>.csv` and is read in `text`; what makes either from
other files is in `convert`.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pfl_bench.base import UserError, open_regular, replacing

LARGEST_BYTES = 16 * 2**30
"""A set beyond this is refused before memory is asked for: it must be made smaller."""
SUSPICIOUS_BYTES = 2**30
SUSPICIOUS_RATIO = 100
"""An archive that unpacks to more of both is a trap: pictures and tokens pack ten times at best."""


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
