"""Partitions made by PFLlib, used as they are: its samples, its clients, its train/test split.

PFLlib stores a pickled dictionary of arrays per client. A pickle is a program, so it is not run
with numpy's own constructors: each name it may call is bound to a stand-in defined here that can
only collect numbers and plain containers, and any other name is refused.
"""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from pfl_bench.base import UserError, open_regular, read_regular, shown
from pfl_bench.data.dataset import Dataset, content_fingerprint
from pfl_bench.data.partition import Partition
from pfl_bench.data.prepared import LARGEST_BYTES, refuse_bomb
from pfl_bench.data.text import LENGTH, pad

LARGEST_COUNT = 100_000
"""Clients or classes; what a file declares is believed up to here, then memory would be asked."""
LARGEST_CONFIG = 2**20
"""Bytes; PFLlib lists the classes of every client there."""
LARGEST_VOCABULARY = 10_000_000

_PARTS = ("train", "test")
_DTYPE_CODE = re.compile(r"[biuf][1248]|O8?")


def read_pfllib(path: Path) -> tuple[Dataset, Partition]:
    """The dataset and the partition in the folder `path` (config.json, train/0.npz, test/0.npz …).

    Samples are numbered client by client, train before test. PFLlib does not store the size of a
    text set's vocabulary, so the largest token index that occurs stands for it.
    """
    clients, classes = _read_config(path)
    files = _client_files(path, clients)
    x_parts: list[np.ndarray] = []
    y_parts: list[np.ndarray] = []
    for file in files:
        x, y = _read_client(file, classes)
        if x_parts and x.shape[1:] != x_parts[0].shape[1:]:
            raise UserError(f"{file} holds samples of another shape than {files[0]}")
        x_parts.append(x)
        y_parts.append(y)

    x, y = _joined(x_parts), np.concatenate(y_parts)
    vocabulary = int(x.max()) + 1 if x.dtype == np.int32 else None
    if vocabulary is not None and vocabulary > LARGEST_VOCABULARY:
        raise UserError(
            f"{path} holds the token index {vocabulary - 1}; allowed: below {LARGEST_VOCABULARY:,}"
        )
    fingerprint = content_fingerprint(x, y, classes, vocabulary)
    dataset = Dataset(_dataset_name(path), "pfllib", x, y, classes, vocabulary, fingerprint)
    indices = np.split(np.arange(len(y)), np.cumsum([len(part) for part in y_parts])[:-1])
    return dataset, Partition(tuple(indices[0::2]), tuple(indices[1::2]))


def _dataset_name(path: Path) -> str:
    """PFLlib names the folder after the dataset: Cifar10 is our cifar10."""
    return re.sub(r"[^a-z0-9_-]+", "-", path.resolve().name.lower()).strip("-_") or "pfllib"


def _read_config(path: Path) -> tuple[int, int]:
    """The number of clients and of classes."""
    file = path / "config.json"
    try:
        config = json.loads(read_regular(file, LARGEST_CONFIG))
    except FileNotFoundError as error:
        raise UserError(f"{path} is not a partition of PFLlib: config.json is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error

    def number(key: str) -> int:
        value = config.get(key) if isinstance(config, dict) else None
        if type(value) is not int or not 1 <= value <= LARGEST_COUNT:
            raise UserError(
                f"{file} gives {key} as {shown(value)}; "
                f"allowed: a whole number from 1 to {LARGEST_COUNT:,}"
            )
        return value

    return number("num_clients"), number("num_classes")


def _client_files(path: Path, clients: int) -> list[Path]:
    """Train and test file of each client in turn, all of which exist and beside which none does."""
    files = [path / part / f"{client}.npz" for client in range(clients) for part in _PARTS]
    for file in files:
        if not file.is_file():
            raise UserError(f"{path / 'config.json'} names {clients} clients but {file} is missing")
    for part in _PARTS:
        if (further := path / part / f"{clients}.npz").exists():
            raise UserError(
                f"{path / 'config.json'} names {clients} clients but there is also {further}"
            )
    return files


def _read_client(file: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
    content = _load(file)
    if not isinstance(content, dict) or not {"x", "y"} <= content.keys():
        raise UserError(f"{file} does not hold a dictionary with x and y")
    x, y = _plain(content["x"]), _labels(content["y"], file)
    is_image = isinstance(x, np.ndarray) and x.dtype != object
    x = _images(x, file) if is_image else _documents(x, file)
    if len(y) != len(x):
        raise UserError(f"{file} does not hold one whole-numbered label per sample")
    if len(y) == 0:
        raise UserError(f"{file} holds no samples; every client needs some to train and to test")
    if y.min() < 0 or y.max() >= classes:
        raise UserError(
            f"{file} holds labels from {y.min()} to {y.max()}; "
            f"allowed by its config.json: 0 to {classes - 1}"
        )
    return x, y.astype(np.int64)


def _labels(content: Any, file: Path) -> np.ndarray:
    try:
        y = np.asarray(_plain(content))
    except (TypeError, ValueError, OverflowError, RecursionError, MemoryError):
        y = np.empty(0)  # lists of different lengths, or one that holds itself
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise UserError(f"{file} does not hold one whole-numbered label per sample")
    return y


def _images(x: np.ndarray, file: Path) -> np.ndarray:
    """Channels last, as bytes where nothing is lost by it and else as float32 in [-1, 1]."""
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise UserError(f"{file} holds an array of shape {x.shape}; allowed: n×c×h×w images")
    x = x.transpose(0, 2, 3, 1)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    x = np.ascontiguousarray(x, dtype=np.float32)
    if not (np.abs(x) <= 1).all():
        raise UserError(f"{file} holds pixels outside [-1, 1]")
    pixels = np.rint((x * 0.5 + 0.5) * 255).astype(np.uint8)
    return pixels if np.array_equal(scaled(pixels), x) else x


def scaled(pixels: np.ndarray) -> np.ndarray:
    """The values PFLlib makes of bytes, to the bit."""
    return (pixels.astype(np.float32) / 255 - 0.5) / 0.5


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    if any(part.dtype == np.float32 for part in parts):
        parts = [scaled(part) if part.dtype == np.uint8 else part for part in parts]
    return np.concatenate(parts)


def _documents(x: Any, file: Path) -> np.ndarray:
    """Rows of token indices from pairs of (token list, length)."""
    try:
        documents = [np.asarray(_plain(tokens))[: min(int(length), LENGTH)] for tokens, length in x]
        lengths = np.array([len(document) for document in documents], dtype=np.int64)
        # An empty list has no type of its own and would turn all indices into floats.
        filled = [document for document in documents if len(document)]
        tokens = np.concatenate([np.empty(0, dtype=np.int32), *filled])
    except (TypeError, ValueError, IndexError, OverflowError, RecursionError, MemoryError) as error:
        raise UserError(f"{file} holds neither images nor (token list, length) pairs") from error
    if tokens.dtype.kind not in "iu":
        raise UserError(f"{file} holds documents that are not lists of token indices")
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < np.iinfo(np.int32).max:
        raise UserError(f"{file} holds a token index below 0 or beyond 32 bits")
    return pad(tokens, lengths)


def _load(file: Path) -> Any:
    """What `np.savez(file, data=…)` was given, with stand-ins for the arrays inside."""
    try:
        with open_regular(file, LARGEST_BYTES) as content:
            refuse_bomb(content, file)
            with zipfile.ZipFile(content) as archive, archive.open("data.npy") as stream:
                _skip_header(stream)
                return _plain(_Unpickler(stream, file).load()).item()
    except UserError:
        raise
    # A damaged or hostile pickle can fail with almost any exception.
    except Exception as error:
        raise UserError(f"{file} is not a client's file of PFLlib: {error}") from error


def _skip_header(stream: IO[bytes]) -> None:
    if np.lib.format.read_magic(stream) == (1, 0):
        np.lib.format.read_array_header_1_0(stream)
    else:
        np.lib.format.read_array_header_2_0(stream)


class _Unpickler(pickle.Unpickler):
    """Knows the few names that a pickled numpy array refers to, and no others."""

    def __init__(self, stream: IO[bytes], file: Path) -> None:
        super().__init__(stream)
        self._file = file

    def find_class(self, module: str, name: str) -> Any:
        # numpy 2 calls its core numpy._core; files of either age are in use.
        key = module.replace("numpy.core.", "numpy._core."), name
        if key not in _ADMITTED:
            raise UserError(
                f"{self._file} was refused: it asks for {module}.{name}, "
                f"and only numpy arrays and plain containers are read"
            )
        return _ADMITTED[key]


class _Dtype:
    """Stand-in for `numpy.dtype`: numbers or objects, never structured."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        if not _DTYPE_CODE.fullmatch(code):
            raise ValueError(f"arrays of type {code!r} are not read")
        self.code = code
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, self.order, *structure = state[:5]
        if self.order not in ("<", ">", "|", "=") or structure != [None, None, None]:
            raise ValueError("structured arrays are not read")

    @property
    def holds_objects(self) -> bool:
        return self.code.startswith("O")

    def numbers(self, content: bytes) -> np.ndarray:
        """Raises ValueError for objects: bytes are never taken for pointers."""
        return np.frombuffer(content, np.dtype(self.order + self.code))


class _Array:
    """Stand-in for `numpy.ndarray`: empty until its pickled state arrives."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = np.empty(0, dtype=np.int8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, fortran_order, content = state
        flat = _object_array(content) if dtype.holds_objects else dtype.numbers(content)
        self.value = flat.reshape(shape, order="F" if fortran_order else "C")


def _object_array(items: Any) -> np.ndarray:
    if not isinstance(items, list):
        raise ValueError("an array of objects without a list of them")
    flat = np.empty(len(items), dtype=object)
    for position, item in enumerate(items):
        flat[position] = item
    return flat


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, _Array) else value


# The stand-ins for functions are instances without attributes, so that a pickle, which may set
# attributes of whatever it is handed, finds none to set.


class _Reconstruct:
    __slots__ = ()

    def __call__(self, _subtype: Any, _shape: Any, _code: Any) -> _Array:
        return _Array()


class _FromBuffer:
    __slots__ = ()

    def __call__(self, content: bytes, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
        array = _Array()
        array.__setstate__((1, shape, dtype, order == "F", content))
        return array


class _Scalar:
    __slots__ = ()

    def __call__(self, dtype: _Dtype, content: bytes) -> int | float | bool:
        return dtype.numbers(content).item()


class _MakeDtype:
    __slots__ = ()

    def __call__(self, code: str, _align: Any = False, _copy: Any = True) -> _Dtype:
        return _Dtype(code)


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): _MakeDtype(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "scalar"): _Scalar(),
    ("numpy._core.numeric", "_frombuffer"): _FromBuffer(),
}
