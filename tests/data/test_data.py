"""Datasets by name: reading with every check, conversion, fingerprints, caches, plugins."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import pickle
import urllib.error
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pfl_bench.base.errors import UserError
from pfl_bench.data import convert, prepared
from pfl_bench.data import registry as data
from pfl_bench.data.dataset import Arrays, DatasetSpec, content_fingerprint
from pfl_bench.data.notes import write_note

SHARED = Path(__file__).resolve().parents[3] / "shared"
BUILTIN = ["agnews", "cifar10", "cifar100", "mnist", "tinyimagenet"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


@pytest.fixture
def rediscover() -> Iterator[None]:
    data._discover.cache_clear()
    yield
    data._discover.cache_clear()


def _images(n: int = 6, classes: int = 2, shape: tuple[int, ...] = (3, 4, 5)) -> dict[str, Any]:
    x = np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8)
    return {"x": x, "y": np.arange(n) % classes}


def _save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_the_five_datasets_of_the_paper_are_known() -> None:
    assert sorted(data.specs()) == BUILTIN
    assert data.broken() == {}


@pytest.mark.parametrize("name", BUILTIN)
def test_classes_per_client_follow_the_paper_and_its_continuation(name: str) -> None:
    spec = data.specs()[name]
    assert spec.classes_per_client == data.default_classes_per_client(spec.classes)


@pytest.mark.parametrize("name", ["mnist", "agnews"])
def test_a_standin_fits_its_specification(name: str, folder: Path) -> None:
    dataset, spec = data.load(name, "standin", folder), data.specs()[name]
    assert (dataset.classes, dataset.shape, dataset.kind) == (spec.classes, spec.shape, spec.kind)
    assert data.title(dataset.name, dataset.source) == f"{spec.title} (stand-in)"


def test_a_standin_is_rendered_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    spec = data.specs()["agnews"]

    def render() -> Arrays:
        calls.append(1)
        assert spec.standin is not None
        return spec.standin()

    counted = dataclasses.replace(spec, standin=render)
    monkeypatch.setattr(data, "_discover", lambda: ({"agnews": counted}, {}))
    first = data.load("agnews", "standin", folder)
    second = data.load("agnews", "standin", folder)
    assert len(calls) == 1
    assert first.fingerprint == second.fingerprint


def test_another_rendering_key_is_another_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = data.specs()["agnews"]
    for key in ("one", "two"):
        changed = dataclasses.replace(spec, standin_key=key)
        monkeypatch.setattr(data, "_discover", lambda changed=changed: ({"agnews": changed}, {}))
        data.load("agnews", "standin", folder)
    assert len(list((tmp_path / "cache" / "standins").iterdir())) == 2


def test_prepared_images_come_channels_last_and_contiguous(folder: Path) -> None:
    arrays = _images()
    _save(folder / "mine.npz", **arrays)
    dataset = data.load("mine", "real", folder)
    np.testing.assert_array_equal(dataset.x, arrays["x"].transpose(0, 2, 3, 1))
    assert dataset.x.flags.c_contiguous
    assert dataset.shape == (3, 4, 5)
    assert dataset.y.dtype == np.int64


def test_an_own_set_is_described_from_its_file(folder: Path) -> None:
    _save(folder / "mine.npz", **_images(n=60, classes=30))
    spec = data.describe("mine", folder)
    assert (spec.kind, spec.classes, spec.shape) == ("image", 30, (3, 4, 5))
    assert (spec.classes_per_client, spec.model) == (3, "cnn")


def test_an_own_text_set_is_described_from_its_file(folder: Path) -> None:
    (folder / "mine.csv").write_text("pos,good day\nneg,bad day\npos,good\nneg,bad\n")
    spec = data.describe("mine", folder)
    assert (spec.kind, spec.classes, spec.shape, spec.model) == ("text", 2, None, "fasttext")
    assert data.load("mine", "real", folder).vocabulary == 4


def test_tokens_from_the_cache_are_the_tokens_made_anew(folder: Path) -> None:
    (folder / "mine.csv").write_text("1,a b c\n2,b c\n1,c\n2,d e f g\n")
    first = data.load("mine", "real", folder)
    second = data.load("mine", "real", folder)
    np.testing.assert_array_equal(first.x, second.x)
    assert first.fingerprint == second.fingerprint


def test_a_damaged_token_cache_is_made_again(folder: Path, tmp_path: Path) -> None:
    (folder / "mine.csv").write_text("1,a b c\n2,b c\n1,c\n2,d e f g\n")
    before = data.load("mine", "real", folder).fingerprint
    (cached,) = (tmp_path / "cache" / "tokens").iterdir()
    cached.write_bytes(b"not an archive")
    assert data.load("mine", "real", folder).fingerprint == before


def test_float_images_in_range_are_kept_as_they_are(folder: Path) -> None:
    arrays = _images()
    arrays["x"] = (arrays["x"] / 127.5 - 1).astype(np.float32)
    _save(folder / "mine.npz", **arrays)
    loaded = data.load("mine", "real", folder).x
    np.testing.assert_array_equal(loaded, arrays["x"].transpose(0, 2, 3, 1))


def _nan() -> np.ndarray:
    x = np.zeros((6, 1, 2, 2), np.float32)
    x[3, 0, 1, 1] = np.nan
    return x


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"y": np.array([0, 1, 0, 1, 3, 3])}, "2 is absent below 3"),
        ({"y": np.array([1, 2, 1, 2, 1, 2])}, "0 is absent below 2"),
        ({"y": np.array([0, -1, 0, 1, 0, 1])}, "negative label -1"),
        ({"y": np.zeros(5, np.int64)}, r"one label per sample \(6\)"),
        ({"y": np.zeros((6, 1), np.int64)}, "one label per sample"),
        ({"y": np.zeros(6, np.float32)}, "must hold integers"),
        ({"x": np.zeros((6, 2, 2), np.uint8)}, "n×channels×height×width"),
        ({"x": np.zeros((6, 32, 32, 3), np.uint8)}, "channels last"),
        ({"x": np.zeros((6, 1, 2, 2), np.float64)}, "float64"),
        ({"x": _nan()}, "not finite"),
        ({"x": np.full((6, 1, 2, 2), 255, np.float32)}, r"outside \[-1, 1\]"),
        ({"x": np.array([{}] * 6, object)}, "plain arrays"),
    ],
)
def test_a_defect_of_a_prepared_file_is_named(
    folder: Path, change: dict[str, np.ndarray], complaint: str
) -> None:
    _save(folder / "mine.npz", **(_images() | change))
    with pytest.raises(UserError, match=complaint) as caught:
        data.load("mine", "real", folder)
    assert "mine.npz" in str(caught.value)


def test_a_missing_array_is_named(folder: Path) -> None:
    _save(folder / "mine.npz", x=_images()["x"])
    with pytest.raises(UserError, match="lacks the array y"):
        data.load("mine", "real", folder)


@pytest.mark.parametrize("cut", [0, 10, 300])
def test_a_truncated_file_is_a_mistake_not_a_crash(folder: Path, cut: int) -> None:
    path = _save(folder / "mine.npz", **_images())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match=r"mine\.npz"):
        data.load("mine", "real", folder)


def test_a_pickle_in_place_of_an_archive_is_never_executed(folder: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(folder / "executed"),)

    (folder / "mine.npz").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(UserError):
        data.load("mine", "real", folder)
    assert not (folder / "executed").exists()


def test_a_file_under_a_known_name_must_hold_that_dataset(folder: Path) -> None:
    _save(folder / "cifar10.npz", **_images(n=20, classes=10, shape=(1, 28, 28)))
    with pytest.raises(UserError, match=r"cifar10\.npz has images of \(1, 28, 28\)"):
        data.load("cifar10", "real", folder)


def test_a_part_of_a_published_dataset_is_remarked_on(folder: Path) -> None:
    _save(folder / "mnist.npz", **_images(20, 10, (1, 28, 28)))
    assert data.load("mnist", "real", folder).remark == "20 of the 70,000 samples"


def test_what_the_user_says_of_a_file_is_remarked_on_beside_what_can_be_told(folder: Path) -> None:
    _save(folder / "mnist.npz", **_images(20, 10, (1, 28, 28)))
    write_note("mnist", folder, " scanned anew ")
    found = data.load("mnist", "real", folder)
    assert found.remark == "20 of the 70,000 samples; scanned anew"
    assert data.load("mnist", "standin", folder).remark == ""
    write_note("mnist", folder, "")
    assert data.load("mnist", "real", folder).remark == "20 of the 70,000 samples"


def test_an_own_set_has_nothing_to_be_a_part_of(folder: Path) -> None:
    _save(folder / "toy.npz", **_images())
    assert data.load("toy", "real", folder).remark == ""


@pytest.mark.parametrize(
    "content",
    [b"two\nlines", b"x" * 100 + b"\n\nmore", b"x" * 101, "\u202egnp".encode(), b"\xff\xfe"],
    ids=repr,
)
def test_a_note_is_one_short_readable_line(folder: Path, content: bytes) -> None:
    _save(folder / "toy.npz", **_images())
    (folder / "toy.note").write_bytes(content)
    with pytest.raises(UserError, match=r"toy\.note"):
        data.load("toy", "real", folder)


def test_missing_data_says_what_where_and_how(folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        data.load("cifar10", "real", folder)
    for part in ("cifar10.npz", str(folder), "pfl-bench data prepare cifar10"):
        assert part in str(caught.value)


def test_a_misspelt_dataset_gets_the_nearest_name(folder: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        data.load("cifar1O", "standin", folder)


def test_an_unknown_source_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="unknown source 'fake'"):
        data.load("mnist", "fake", folder)


def test_a_link_to_nowhere_is_no_set(folder: Path) -> None:
    (folder / "birds.npz").symlink_to(folder / "unmounted" / "birds.npz")
    assert "birds" not in data.own_names(folder)
    with pytest.raises(UserError, match="unknown dataset 'birds'"):
        data.describe("birds", folder)


def test_an_own_set_in_two_formats_is_refused(folder: Path) -> None:
    _save(folder / "mine.npz", **_images())
    (folder / "mine.csv").write_text("1,a\n2,b\n1,c\n2,d\n")
    with pytest.raises(UserError, match="both"):
        data.describe("mine", folder)


def test_a_name_cannot_leave_the_folder(folder: Path) -> None:
    with pytest.raises(UserError):
        data.check_name("../mine")


def test_the_fingerprint_sees_every_part_of_the_content() -> None:
    x, y = np.zeros((4, 2, 2, 1), np.uint8), np.array([0, 1, 0, 1])
    pixel, label = x.copy(), y.copy()
    pixel[3, 1, 1, 0], label[0] = 1, 1
    versions = [
        (x, y, 2, None),
        (pixel, y, 2, None),
        (x, label, 2, None),
        (x.reshape(4, 4, 1, 1), y, 2, None),
        (x.view(np.int8), y, 2, None),
        (x, y, 3, None),
        (x, y, 2, 5),
    ]
    prints = {content_fingerprint(*version) for version in versions}
    assert len(prints) == len(versions)
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in prints)


def test_the_fingerprint_without_arrays_is_that_of_the_arrays(folder: Path) -> None:
    _save(folder / "mine.npz", **_images())
    assert data.fingerprint("mine", "real", folder) == data.load("mine", "real", folder).fingerprint


def test_a_known_fingerprint_is_had_without_reading_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(folder / "mine.npz", **_images())
    first = data.fingerprint("mine", "real", folder)

    def refuse(path: Path) -> None:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(prepared, "read_arrays", refuse)
    assert data.fingerprint("mine", "real", folder) == first


def test_a_changed_file_has_another_fingerprint(folder: Path) -> None:
    arrays = _images()
    path = _save(folder / "mine.npz", **arrays)
    first = data.fingerprint("mine", "real", folder)
    arrays["x"][0, 0, 0, 0] ^= 1
    _save(path, **arrays)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert data.fingerprint("mine", "real", folder) != first


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "file"))
    (folder / "mine.csv").write_text("1,a\n2,b\n1,c\n2,d\n")
    assert data.load("mine", "real", folder).classes == 2


class _Point:
    """An entry point as importlib.metadata gives it."""

    def __init__(self, name: str, outcome: object) -> None:
        self.name, self.value, self._outcome = name, f"{name}:SPEC", outcome

    def load(self) -> object:
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


def _plug(monkeypatch: pytest.MonkeyPatch, *points: _Point) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: list(points))


def _spec(name: str) -> DatasetSpec:
    return DatasetSpec(
        name=name, title=name, kind="text", classes=2, classes_per_client=2, model="fasttext"
    )


@pytest.mark.usefixtures("rediscover")
def test_a_broken_plugin_does_not_take_the_others_down(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = _Point("bad", ImportError("no module named wrong"))
    odd = _Point("odd", "a string")
    base = _Point("base", BaseException("of all"))
    _plug(monkeypatch, broken, odd, base, _Point("good", (_spec("one"), _spec("two"))))
    assert {"one", "two", "mnist"} <= data.specs().keys()
    assert data.broken() == {
        "bad": "ImportError: no module named wrong",
        "base": "BaseException: of all",
        "odd": "odd:SPEC is not a DatasetSpec or a tuple of them",
    }


@pytest.mark.usefixtures("rediscover")
def test_a_name_defined_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _plug(monkeypatch, _Point("mine", _spec("mnist")))
    with pytest.raises(UserError, match=r"'mnist' is defined twice, by .* and the plugin mine"):
        data.specs()


def _picture(path: Path, value: int, size: tuple[int, int] = (5, 4), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(path)


def test_class_folders_become_numbered_classes_in_order(tmp_path: Path) -> None:
    for number, name in enumerate(["2", "10", "9"]):
        _picture(tmp_path / "set" / name / "a.png", number)
    convert.from_class_folders(tmp_path / "out.npz", tmp_path / "set")
    x, y = prepared.read_images(tmp_path / "out.npz")
    assert x.shape == (3, 4, 5, 3)
    assert x[:, 0, 0].tolist() == [[0, 0, 255], [2, 0, 255], [1, 0, 255]]
    assert y.tolist() == [0, 1, 2]


def test_train_and_test_folders_are_merged(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            _picture(tmp_path / "set" / part / name / f"{part}.png", 0)
    convert.from_class_folders(tmp_path / "out.npz", tmp_path / "set")
    assert prepared.read_images(tmp_path / "out.npz")[1].tolist() == [0, 0, 1, 1]


def test_a_set_without_colour_has_one_channel(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        _picture(tmp_path / "set" / name / "a.png", 9, mode="L")
    convert.from_class_folders(tmp_path / "out.npz", tmp_path / "set")
    assert prepared.read_images(tmp_path / "out.npz")[0].shape == (2, 4, 5, 1)


def test_one_colour_image_gives_all_three_channels(tmp_path: Path) -> None:
    _picture(tmp_path / "set" / "cat" / "a.png", 9, mode="L")
    _picture(tmp_path / "set" / "dog" / "a.png", 9)
    convert.from_class_folders(tmp_path / "out.npz", tmp_path / "set")
    x, _ = prepared.read_images(tmp_path / "out.npz")
    assert x[:, 0, 0].tolist() == [[9, 9, 9], [9, 0, 255]]


def test_images_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    _picture(tmp_path / "set" / "cat" / "a.png", 9)
    _picture(tmp_path / "set" / "dog" / "a.png", 9, size=(8, 8))
    with pytest.raises(UserError, match=r"a\.png is 8×8, not 4×5; .*--size"):
        convert.from_class_folders(tmp_path / "out.npz", tmp_path / "set")
    convert.from_class_folders(tmp_path / "out.npz", tmp_path / "set", size=(6, 7))
    assert prepared.read_images(tmp_path / "out.npz")[0].shape == (2, 6, 7, 3)


def test_a_decompression_bomb_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cat", "dog"):
        _picture(tmp_path / "set" / name / "bomb.png", 9, size=(50, 50))
    for limit in (2000, 1000):  # beyond the limit PIL warns, beyond twice the limit it raises
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(UserError, match=r"bomb\.png is refused for its absurd size"):
            convert.from_class_folders(tmp_path / "out.npz", tmp_path / "set")


def test_a_set_beyond_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cat", "dog"):
        _picture(tmp_path / "set" / name / "a.png", 9)
    monkeypatch.setattr(convert, "LARGEST_BYTES", 100)
    with pytest.raises(UserError, match="give a smaller --size"):
        convert.from_class_folders(tmp_path / "out.npz", tmp_path / "set")


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n" + b"x" * 50])
def test_a_file_that_is_no_image_is_named(tmp_path: Path, content: bytes) -> None:
    _picture(tmp_path / "set" / "cat" / "a.png", 9)
    _picture(tmp_path / "set" / "dog" / "b.png", 9)
    (tmp_path / "set" / "dog" / "b.png").write_bytes(content)
    with pytest.raises(UserError, match=r"b\.png is not an image"):
        convert.from_class_folders(tmp_path / "out.npz", tmp_path / "set")


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(UserError, match="holds 0 class folders"):
        convert.from_class_folders(tmp_path / "out.npz", tmp_path / "set")


def test_a_failed_conversion_leaves_the_old_file(tmp_path: Path) -> None:
    out = _save(tmp_path / "out.npz", **_images())
    before = out.read_bytes()
    _picture(tmp_path / "set" / "cat" / "a.png", 9)
    _picture(tmp_path / "set" / "dog" / "a.png", 9, size=(8, 8))
    with pytest.raises(UserError):
        convert.from_class_folders(out, tmp_path / "set")
    assert out.read_bytes() == before


def test_tiny_imagenet_takes_the_official_layout_without_its_validation_images(
    tmp_path: Path,
) -> None:
    root = tmp_path / "tiny-imagenet-200"
    for number in range(200):
        wnid = f"n{number:08}"
        _picture(root / "train" / wnid / "images" / f"{wnid}_0.JPEG", 7, size=(64, 64))
    _picture(root / "val" / "images" / "val_0.JPEG", 7, size=(64, 64))
    prepare = data.specs()["tinyimagenet"].prepare
    assert prepare is not None
    prepare(tmp_path / "tinyimagenet.npz", root)
    assert data.card("tinyimagenet", "real", tmp_path).samples == 200


@pytest.mark.parametrize("name", ["tinyimagenet", "agnews"])
def test_a_set_without_download_says_how_it_is_prepared(name: str, tmp_path: Path) -> None:
    prepare = data.specs()[name].prepare
    assert prepare is not None
    with pytest.raises(UserError, match=f"pfl-bench data prepare {name} --from"):
        prepare(tmp_path / "out", None)


def test_ag_news_is_merged_from_its_two_files(tmp_path: Path) -> None:
    source = tmp_path / "ag"
    source.mkdir()
    for part in ("train", "test"):
        rows = "".join(f"{label},Title,{part} text\n" for label in (1, 2, 3, 4))
        (source / f"{part}.csv").write_text("Class Index,Title,Description\n" + rows)
    prepare = data.specs()["agnews"].prepare
    assert prepare is not None
    prepare(tmp_path / "agnews.csv", source)
    dataset = data.load("agnews", "real", tmp_path)
    assert dataset.y.tolist() == [0, 1, 2, 3] * 2
    assert dataset.vocabulary == len({"title", "test", "train", "text"}) + 1


def test_a_csv_with_other_classes_is_not_ag_news(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("1,a\n2,b\n1,c\n2,d\n")
    prepare = data.specs()["agnews"].prepare
    assert prepare is not None
    with pytest.raises(UserError, match=r"two\.csv has 2 classes in its first column, not 4"):
        prepare(tmp_path / "agnews.csv", tmp_path / "two.csv")


def _write_idx(path: Path, array: np.ndarray) -> None:
    """The file format of MNIST: type, dimensions, big-endian sizes, bytes."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def test_mnist_is_read_from_where_torchvision_left_it(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    for part, rows in (("train", slice(0, 12)), ("t10k", slice(12, 20))):
        _write_idx(raw / f"{part}-images-idx3-ubyte", images[rows])
        _write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(20)[rows] % 10)
    prepare = data.specs()["mnist"].prepare
    assert prepare is not None
    prepare(tmp_path / "mnist.npz", tmp_path)
    dataset = data.load("mnist", "real", tmp_path)
    np.testing.assert_array_equal(dataset.x[..., 0], images)
    assert dataset.y.tolist() == [*range(10), *range(10)]


def test_cifar_files_with_an_unknown_checksum_are_never_unpickled(tmp_path: Path) -> None:
    batches = tmp_path / "cifar-10-batches-py"
    batches.mkdir()

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"):
        (batches / name).write_bytes(pickle.dumps(Payload()))
    prepare = data.specs()["cifar10"].prepare
    assert prepare is not None
    with pytest.raises(UserError, match="does not hold CIFAR10 whole"):
        prepare(tmp_path / "cifar10.npz", tmp_path)
    assert not (tmp_path / "executed").exists()


def test_no_network_is_one_sentence_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torchvision

    def offline(*args: object, **options: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(torchvision.datasets, "CIFAR100", partial(offline))
    prepare = data.specs()["cifar100"].prepare
    assert prepare is not None
    with pytest.raises(UserError) as caught:
        prepare(tmp_path / "cifar100.npz", None)
    message = str(caught.value)
    for part in ("no route to host", "downloads", "pfl-bench data prepare cifar100 --from"):
        assert part in message
    assert "\n" not in message


def test_the_real_mnist_passes_every_check(folder: Path) -> None:
    source = SHARED / "data" / "mnist.npz"
    if not source.exists():
        pytest.skip(f"{source} is not there")
    card = data.card("mnist", "real", source.parent)
    assert (card.samples, card.smallest_class, card.largest_class) == (70_000, 6_313, 7_877)


def test_a_damaged_standin_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path))
    whole = data.load("agnews", "standin", tmp_path)
    (cached,) = (tmp_path / "standins").iterdir()
    cached.write_bytes(cached.read_bytes()[:100])
    assert data.load("agnews", "standin", tmp_path).fingerprint == whole.fingerprint
