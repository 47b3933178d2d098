"""PFLlib's folders: read as they are, and nothing in them is ever executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_bench.base.errors import UserError
from pfl_bench.data.dataset import content_fingerprint
from pfl_bench.data.pfllib import read_pfllib

CLASSES = 5
SIZES = {"train": (6, 9), "test": (2, 3)}


def write_client(file: Path, x: Any, y: Any) -> None:
    """The way PFLlib does it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        np.savez_compressed(stream, data=np.array({"x": x, "y": y}, dtype=object))


def write_pickle(file: Path, content: bytes) -> None:
    """A client's file whose pickle is exactly `content`."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|O", "fortran_order": False, "shape": ()}
    )
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.npy", header.getvalue() + content)


def write_folder(path: Path, sample: Callable[[int], tuple[Any, Any]]) -> Path:
    """Two clients with `SIZES` samples; `sample(n)` makes n of them."""
    for part, sizes in SIZES.items():
        for client, size in enumerate(sizes):
            write_client(path / part / f"{client}.npz", *sample(size))
    config = {"num_clients": 2, "num_classes": CLASSES, "alpha": 0.1, "batch_size": 10}
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture
def pixels() -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)

    def sample(size: int) -> tuple[np.ndarray, np.ndarray]:
        images = rng.integers(0, 256, (size, 3, 4, 5), dtype=np.uint8)
        scaled = (images.astype(np.float32) / 255 - 0.5) / 0.5
        return scaled, rng.integers(0, CLASSES, size)

    return sample


@pytest.fixture
def folder(tmp_path: Path, pixels: Callable[[int], tuple[np.ndarray, np.ndarray]]) -> Path:
    return write_folder(tmp_path / "Cifar10", pixels)


def original(file: Path) -> dict[str, Any]:
    """What numpy itself reads from a file that the test has written."""
    with np.load(file, allow_pickle=True) as archive:
        return archive["data"].item()


def test_each_client_gets_exactly_the_samples_of_its_files(folder: Path) -> None:
    dataset, partition = read_pfllib(folder)
    for part, indices in (("train", partition.train), ("test", partition.test)):
        for client, own in enumerate(indices):
            expected = original(folder / part / f"{client}.npz")
            values = (dataset.x[own].transpose(0, 3, 1, 2) / np.float32(255) - 0.5) / 0.5
            assert np.allclose(values, expected["x"], atol=1e-6)
            assert np.array_equal(dataset.y[own], expected["y"])


def test_the_partition_is_disjoint_and_covers_the_dataset(folder: Path) -> None:
    dataset, partition = read_pfllib(folder)
    assert sorted(np.concatenate(partition.train + partition.test)) == list(range(len(dataset.y)))


def test_pixels_that_were_bytes_become_the_same_bytes_again(tmp_path: Path) -> None:
    every_value = np.arange(256, dtype=np.uint8).reshape(4, 1, 8, 8)
    scaled = (every_value.astype(np.float32) / 255 - 0.5) / 0.5
    write_folder(tmp_path, lambda size: (scaled, np.zeros(4, dtype=np.int64)))
    dataset, _ = read_pfllib(tmp_path)
    assert dataset.x.dtype == np.uint8
    assert np.array_equal(dataset.x[:4], every_value.transpose(0, 2, 3, 1))


def test_pixels_that_never_were_bytes_stay_floats_channels_last(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    write_folder(
        tmp_path,
        lambda size: (
            rng.uniform(-1, 1, (size, 1, 3, 2)).astype(np.float32),
            np.zeros(size, dtype=np.int64),
        ),
    )
    dataset, partition = read_pfllib(tmp_path)
    assert dataset.x.dtype == np.float32
    assert dataset.x.flags.c_contiguous
    expected = original(tmp_path / "test" / "1.npz")["x"].transpose(0, 2, 3, 1)
    assert np.array_equal(dataset.x[partition.test[1]], expected)


def test_the_dataset_says_what_it_is(folder: Path) -> None:
    dataset, _ = read_pfllib(folder)
    assert (dataset.name, dataset.source, dataset.classes) == ("cifar10", "pfllib", CLASSES)
    assert (dataset.kind, dataset.shape) == ("image", (3, 4, 5))
    expected = content_fingerprint(dataset.x, dataset.y, CLASSES, None)
    assert dataset.fingerprint == expected


def test_documents_are_cut_and_padded_to_200_tokens(tmp_path: Path) -> None:
    documents = [[5, 7, 9], [], list(range(1, 301))]

    def sample(size: int) -> tuple[np.ndarray, np.ndarray]:
        pairs = [(documents[i % 3] + [0] * 4, len(documents[i % 3])) for i in range(size)]
        return np.array(pairs, dtype=object), np.arange(size) % CLASSES

    dataset, partition = read_pfllib(write_folder(tmp_path, sample))
    assert (dataset.kind, dataset.vocabulary) == ("text", 201)
    assert dataset.x.dtype == np.int32
    rows = dataset.x[partition.test[1]]
    assert rows.tolist() == [[5, 7, 9] + [0] * 197, [0] * 200, list(range(1, 201))]


def test_documents_in_a_plain_list_with_array_tokens_are_read(tmp_path: Path) -> None:
    def sample(size: int) -> tuple[list[Any], list[int]]:
        return [(np.array([3, 4]), np.int64(2))] * size, [1] * size

    dataset, _ = read_pfllib(write_folder(tmp_path, sample))
    assert dataset.x[0, :3].tolist() == [3, 4, 0]
    assert set(dataset.y) == {1}


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("core", [b"numpy._core", b"numpy.core"])
def test_pickles_of_older_and_newer_numpy_are_read(
    folder: Path, protocol: int, core: bytes
) -> None:
    file = folder / "train" / "0.npz"
    content = original(file)
    # Not contiguous in C order, so that the order of the stored bytes matters.
    content["x"] = np.asfortranarray(content["x"])
    before = read_pfllib(folder)[0].fingerprint
    pickled = pickle.dumps(np.array(content, dtype=object), protocol)
    if protocol == 3:
        pickled = pickled.replace(b"numpy._core.", core + b".")
    write_pickle(file, pickled)
    assert read_pfllib(folder)[0].fingerprint == before


def test_big_endian_numbers_keep_their_values(folder: Path) -> None:
    file = folder / "train" / "0.npz"
    content = original(file)
    before = read_pfllib(folder)[0].fingerprint
    write_client(file, content["x"].astype(">f4"), content["y"].astype(">i8"))
    assert read_pfllib(folder)[0].fingerprint == before


# Hostile files


class Calls:
    """Pickles to a call of `function` with `arguments`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("place", ["whole", "value", "inside an array", "y"])
def test_a_pickle_that_would_run_a_command_is_refused_and_not_run(
    folder: Path, tmp_path: Path, place: str
) -> None:
    mark = tmp_path / "executed"
    bomb = Calls(os.system, f"touch {mark}")
    harmless = np.zeros((6, 3, 4, 5), dtype=np.float32)
    content: Any = {
        "whole": bomb,
        "value": {"x": harmless, "y": np.zeros(6, dtype=int), "more": bomb},
        "inside an array": {"x": np.array([bomb, 1], dtype=object), "y": [0, 0]},
        "y": {"x": harmless, "y": bomb},
    }[place]
    write_pickle(folder / "train" / "0.npz", pickle.dumps(np.array(content, dtype=object)))
    with pytest.raises(UserError, match=r"train/0\.npz was refused: it asks for \w+\.system"):
        read_pfllib(folder)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("copyreg", "_reconstructor"),
        ("numpy", "load"),
        ("numpy", "dtype.__class__"),
        ("numpy", "ndarray.tofile"),
        ("numpy.core.multiarray", "fromfile"),
        ("pfl_bench.data.pfllib", "_Array"),
    ],
)
def test_every_name_but_those_of_an_array_is_refused(folder: Path, module: str, name: str) -> None:
    def short(text: str) -> bytes:
        return pickle.SHORT_BINUNICODE + bytes([len(text)]) + text.encode()

    content = pickle.PROTO + b"\x04" + short(module) + short(name) + pickle.STACK_GLOBAL
    write_pickle(folder / "train" / "0.npz", content + pickle.STOP)
    with pytest.raises(UserError, match=f"it asks for {module}.{name},"):
        read_pfllib(folder)


def test_a_container_that_is_not_plain_is_refused(folder: Path) -> None:
    write_pickle(folder / "train" / "0.npz", pickle.dumps(OrderedDict(x=[], y=[])))
    with pytest.raises(UserError, match=r"asks for collections\.OrderedDict"):
        read_pfllib(folder)


def test_bytes_are_never_taken_for_object_pointers(folder: Path) -> None:
    """numpy's own `__setstate__` is not involved, so a forged state reaches no pointer."""
    forged = Calls(np.zeros(1).__reduce__()[0], np.ndarray, (0,), b"b")
    content = pickle.dumps(forged, 4)[:-1]
    state = (1, (1,), np.dtype(object), False, b"\x10" * 8)
    content += pickle.dumps(state, 4)[2:-1] + pickle.BUILD + pickle.STOP
    write_pickle(folder / "train" / "0.npz", content)
    with pytest.raises(UserError, match=r"train/0\.npz .* objects without a list of them"):
        read_pfllib(folder)


@pytest.mark.parametrize("dtype", [np.dtype([("a", "O")]), np.dtype("M8[s]"), np.dtype("U3")])
def test_arrays_of_anything_but_numbers_and_containers_are_refused(
    folder: Path, dtype: np.dtype[Any]
) -> None:
    write_client(folder / "train" / "0.npz", np.zeros(6, dtype=dtype), np.zeros(6, dtype=int))
    with pytest.raises(UserError, match=r"train/0\.npz .* are not read"):
        read_pfllib(folder)


def test_a_pickle_cannot_change_how_the_next_file_is_read(folder: Path) -> None:
    before = read_pfllib(folder)[0].fingerprint
    file = folder / "train" / "0.npz"
    good = file.read_bytes()
    reconstruct = b"cnumpy.core.multiarray\n_reconstruct\n"
    forged = pickle.dumps((None, {"__call__": 1, "value": 2}), 4)[2:-1]
    write_pickle(file, pickle.PROTO + b"\x04" + reconstruct + forged + pickle.BUILD + pickle.STOP)
    with pytest.raises(UserError, match="is read-only"):
        read_pfllib(folder)
    file.write_bytes(good)
    assert read_pfllib(folder)[0].fingerprint == before


# Damaged and inconsistent folders


def test_a_folder_without_config_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json is missing"):
        read_pfllib(tmp_path / "nowhere")


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_missing_client_file_is_named(folder: Path, part: str) -> None:
    (folder / part / "1.npz").unlink()
    with pytest.raises(UserError, match=rf"names 2 clients but .*{part}/1\.npz is missing"):
        read_pfllib(folder)


def test_more_client_files_than_clients_are_an_error(folder: Path) -> None:
    (folder / "train" / "2.npz").touch()
    with pytest.raises(UserError, match=r"names 2 clients but there is also .*train/2\.npz"):
        read_pfllib(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"num_clients": 2}', "gives num_classes as None"),
        ('{"num_clients": "2", "num_classes": 5}', "gives num_clients as '2'"),
        ('{"num_clients": true, "num_classes": 5}', "gives num_clients as True"),
        ('{"num_clients": 0, "num_classes": 5}', "gives num_clients as 0"),
        ("[1, 2]", "gives num_clients as None"),
        ("{", "cannot be read"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_value(
    folder: Path, config: str, message: str
) -> None:
    (folder / "config.json").write_text(config)
    with pytest.raises(UserError, match=message):
        read_pfllib(folder)


IMAGES = np.zeros((2, 3, 4, 5), dtype=np.float32)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (IMAGES, np.array([0, 5]), "labels from 0 to 5; allowed by its config.json: 0 to 4"),
        (IMAGES, np.array([-1, 0]), "labels from -1 to 0"),
        (IMAGES, np.array([0]), "one whole-numbered label per sample"),
        (IMAGES, np.array([0.0, 1.0]), "one whole-numbered label per sample"),
        (IMAGES[:0], np.array([], dtype=int), "holds no samples"),
        (IMAGES + 1.5, np.array([0, 1]), r"pixels outside \[-1, 1\]"),
        (IMAGES * np.nan, np.array([0, 1]), r"pixels outside \[-1, 1\]"),
        (IMAGES[0], np.array([0, 1, 2]), "allowed: n×c×h×w images"),
        (IMAGES[:, :, :2], np.array([0, 1]), "samples of another shape"),
        (["a", "b"], np.array([0, 1]), "neither images nor"),
        ([(["a"], 1)], np.array([0]), "not lists of token indices"),
        ([([-1], 1)], np.array([0]), "a token index below 0"),
        (7, np.array([0]), "neither images nor"),
    ],
)
def test_inconsistent_content_is_an_error_that_names_the_file(
    folder: Path, x: Any, y: Any, message: str
) -> None:
    write_client(folder / "test" / "1.npz", x, y)
    with pytest.raises(UserError, match=rf"test/1\.npz .*{message}"):
        read_pfllib(folder)


def test_a_file_without_x_is_an_error(folder: Path) -> None:
    with (folder / "train" / "0.npz").open("wb") as stream:
        np.savez(stream, data=np.array({"y": np.array([1])}, dtype=object))
    with pytest.raises(UserError, match="does not hold a dictionary with x and y"):
        read_pfllib(folder)


def test_a_truncated_file_is_an_error_that_names_it(folder: Path) -> None:
    file = folder / "train" / "0.npz"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(UserError, match=r"train/0\.npz is not a client's file of PFLlib"):
        read_pfllib(folder)
