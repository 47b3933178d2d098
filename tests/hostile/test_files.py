"""Hostile files: nothing in them is executed, none takes the program down, names stay names.

What each reader checks of an honest mistake is in the tests of that reader.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import struct
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import fuzz, invoke, is_refused, junk
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from prepared import prepare_toy

from pfl_bench.base import yamlfile
from pfl_bench.base.errors import UserError
from pfl_bench.base.paths import cache_dir
from pfl_bench.base.yamlfile import read_yaml
from pfl_bench.config.run_config import RunConfig
from pfl_bench.data import convert, prepared
from pfl_bench.data.pfllib import read_pfllib
from pfl_bench.data.registry import card
from pfl_bench.store import checkpoint
from pfl_bench.store.records import (
    DamagedError,
    RoundRecord,
    from_json,
    read_lines,
    seal,
    to_json,
    unseal,
)
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import read_run

FUZZED_FILES = 400


# --- pickles --------------------------------------------------------------------------------------


class Payload:
    """Pickles to a program that creates a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def payload(tmp_path: Path) -> Iterator[Payload]:
    """A test with it passes only if it was not executed."""
    mark = tmp_path / "executed"
    yield Payload(mark)
    assert not mark.exists()


def test_the_payload_would_have_worked(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    pickle.loads(pickle.dumps(Payload(mark)))
    assert mark.exists()


@pytest.mark.parametrize("array", ["x", "y", "more"])
def test_a_pickle_inside_an_archive_of_arrays_is_not_executed(
    tmp_path: Path, payload: Payload, array: str
) -> None:
    arrays: dict[str, Any] = {"x": np.zeros((4, 1, 2, 2), np.uint8), "y": np.array([0, 1, 0, 1])}
    arrays[array] = np.array([payload], dtype=object)
    np.savez(tmp_path / "mine.npz", **arrays)
    result = invoke("data", "check", "mine", "--data-dir", tmp_path)
    assert is_refused(result) and "plain arrays" in result.output


def test_a_pickle_in_a_partition_of_pfllib_is_not_executed_by_any_command(
    inside: Path, payload: Payload
) -> None:
    folder = pfllib_folder(inside / "cifar")
    content = {"x": np.zeros((2, 1, 16, 16), np.float32), "y": np.array([0, 1]), "more": payload}
    np.savez(folder / "test" / "0.npz", data=np.array(content, dtype=object))
    for command in (["run", "--algo", "fedavg"], ["data", "partition"]):
        result = invoke(*command, "--partition", f"pfllib:{folder}")
        assert is_refused(result) and "was refused: it asks for" in result.output


def test_a_pickle_in_place_of_a_checkpoint_is_not_executed(
    tmp_path: Path, payload: Payload
) -> None:
    path = tmp_path / "checkpoint-1.safetensors"
    pickled = pickle.dumps(payload)
    torch.save({"state": payload}, path)
    for content in (pickled, struct.pack("<Q", len(pickled)) + pickled, path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(checkpoint.DamagedCheckpoint):
            checkpoint.read(path)


def test_a_pickle_in_the_cache_is_not_executed(
    tmp_path: Path, payload: Payload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "cache"))
    data = prepare_toy(tmp_path / "data")
    (data / "words.csv").write_text("1,a b\n2,c d\n1,a a\n2,d d\n", encoding="utf-8")
    before = card("words", "real", data), card("toy", "real", data)
    for kept in (path for path in cache_dir().rglob("*") if path.is_file()):
        kept.write_bytes(pickle.dumps(payload))
    assert (card("words", "real", data), card("toy", "real", data)) == before


@contextlib.contextmanager
def little_memory(most: int) -> Iterator[None]:
    """Fails the test where more bytes are held at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


# --- archives of arrays ---------------------------------------------------------------------------


def archive(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def sound_archive() -> bytes:
    return archive(x=np.zeros((6, 1, 4, 4), np.uint8), y=np.arange(6) % 2)


def header(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    """The beginning of a stored array, without its content."""
    buffer = io.BytesIO()
    described = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, described)
    return buffer.getvalue()


def packed(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members.items():
            target.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def with_field(content: bytes, local: int, central: int, value: int) -> bytes:
    """A zip archive with a 16-bit field of its first member changed in both of its headers."""
    changed = bytearray(content)
    for start, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        struct.pack_into("<H", changed, changed.find(start) + offset, value)
    return bytes(changed)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(with_field(sound_archive(), 6, 8, 1), id="encrypted"),
        pytest.param(with_field(sound_archive(), 8, 10, 99), id="compressed in an unknown way"),
        pytest.param(packed(x=header((2**50,)), y=header((3,))), id="more declared than memory"),
        pytest.param(packed(x=header((10**30,)), y=header((3,))), id="more declared than numbers"),
        pytest.param(packed(x=header((-5, 1, 1, 1)), y=b""), id="a negative size"),
        pytest.param(packed(x=header((2, 1, 2, 2), "|V8"), y=b""), id="a type without meaning"),
        pytest.param(packed(x=b"\x93NUMPY\x01\x00\xff\xff{'descr': " + b"(" * 60_000), id="code"),
        pytest.param(sound_archive()[:-1], id="cut"),
        pytest.param(io.BytesIO(sound_archive()).read(100) * 50, id="no archive"),
    ],
)
def test_an_archive_made_to_hurt_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"mine\.npz"):
        prepared.read_images(path)


def test_a_single_array_in_place_of_an_archive_is_one_sentence(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "mine.npz")
    with pytest.raises(UserError, match=r"mine\.npz"):
        prepared.read_images(tmp_path / "mine.npz")


def test_an_archive_that_unpacks_to_far_more_than_it_is_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(packed(x=header((2**22, 1, 1, 1)) + bytes(2**22), y=header((1,)) + bytes(1)))
    assert path.stat().st_size < 2**14
    monkeypatch.setattr(prepared, "SUSPICIOUS_BYTES", 2**20)
    with little_memory(2**20), pytest.raises(UserError, match="refused for its absurd size"):
        prepared.read_images(path)


def test_an_archive_as_large_as_it_says_is_no_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "SUSPICIOUS_BYTES", 2**10)
    (tmp_path / "mine.npz").write_bytes(sound_archive())
    assert len(prepared.read_images(tmp_path / "mine.npz")[1]) == 6


def mutations(content: bytes, seed: int) -> Iterator[bytes]:
    """Copies with a few bytes changed, some cut."""
    generator = random.Random(seed)
    for _ in range(FUZZED_FILES):
        changed = bytearray(content)
        for _ in range(generator.choice([1, 1, 2, 5, 20])):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        cut = generator.randrange(len(changed)) if generator.random() < 0.2 else len(changed)
        yield bytes(changed[:cut])


def test_no_byte_of_an_archive_can_be_changed_to_take_the_reader_down(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    for content in mutations(sound_archive(), seed=1):
        path.write_bytes(content)
        refusal_or_result(prepared.read_images, path)


def refusal_or_result(read: Callable[[Path], object], path: Path) -> None:
    """Anything but a `UserError` that names the file fails the test."""
    try:
        read(path)
    except UserError as error:
        assert path.name in str(error)


# --- partitions of PFLlib -------------------------------------------------------------------------


def pfllib_folder(path: Path, clients: int = 1, classes: int = 2, **content: Any) -> Path:
    """A partition of images, or of what `content` says."""
    images = {"x": np.zeros((2, 1, 16, 16), np.float32), "y": np.array([0, 1])}
    for part in ("train", "test"):
        (path / part).mkdir(parents=True)
        np.savez(path / part / "0.npz", data=np.array(images | content, dtype=object))
    config = {"num_clients": clients, "num_classes": classes}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def token_pairs(token: int) -> np.ndarray:
    pairs = np.empty(2, dtype=object)
    pairs[:] = [([1, token], 2), ([1], 1)]
    return pairs


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"clients": 10**9}, "num_clients as 1000000000"),
        ({"classes": 10**12}, "num_classes as 1000000000000"),
        ({"y": np.array([0, 2])}, "labels from 0 to 2"),
        ({"y": np.array([0, -1])}, "labels from -1 to 0"),
        ({"x": np.full((2, 1, 16, 16), np.nan, np.float32)}, "outside"),
        ({"x": np.zeros((2, 0, 16, 16), np.float32)}, r"shape \(2, 0, 16, 16\)"),
        ({"x": token_pairs(2**31 - 2)}, "token index 2147483646"),
        ({"x": token_pairs(2**40)}, "beyond 32 bits"),
    ],
)
def test_what_a_partition_declares_is_not_believed_beyond_reason(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match=complaint):
        read_pfllib(pfllib_folder(tmp_path / "set", **changes))
    assert time.monotonic() - began < 5


def test_a_partition_described_in_endless_nesting_is_refused(tmp_path: Path) -> None:
    folder = pfllib_folder(tmp_path / "set")
    (folder / "config.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        read_pfllib(folder)


def test_a_client_s_file_that_unpacks_to_far_more_than_it_is_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pfllib_folder(tmp_path / "set")
    (folder / "train" / "0.npz").write_bytes(packed(data=bytes(2**22)))
    monkeypatch.setattr(prepared, "SUSPICIOUS_BYTES", 2**20)
    with pytest.raises(UserError, match="refused for its absurd size"):
        read_pfllib(folder)


def test_no_byte_of_a_client_s_file_can_be_changed_to_take_the_reader_down(tmp_path: Path) -> None:
    folder = pfllib_folder(tmp_path / "set")
    path = folder / "train" / "0.npz"
    with zipfile.ZipFile(path) as source:
        inner = source.read("data.npy")
    for content in mutations(inner, seed=2):
        path.write_bytes(packed(data=content))
        try:
            read_pfllib(folder)
        except UserError as error:
            assert "0.npz" in str(error)


# --- YAML -----------------------------------------------------------------------------------------


def billion_laughs() -> str:
    lines = ["a0: &a0 [lol, lol]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 30)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (billion_laughs(), "aliases are not allowed"),
        ("a: &a [*a]", "aliases are not allowed"),
        ("a: !!python/object/apply:os.mkdir [executed]", "tags are not allowed"),
        ("a: !!python/name:os.system", "tags are not allowed"),
        ("!!python/object/new:type {args: [z, [], {}]}", "tags are not allowed"),
        ("rounds: !!bool maybe", "tags are not allowed"),
        ("rounds: !!int ''", "tags are not allowed"),
        ("when: !!timestamp soon", "tags are not allowed"),
        ("rounds: 0x" + "f" * 5_000, "too long"),
        ("rounds: " + ":".join(["1"] * 100_000), "too long"),
        ("lr: " + ":".join(["1"] * 400) + ".5", "too long"),
        ("a: " + "[" * 100_000, "nested too deeply"),
        ("a: " + "{b: " * 50_000, "nested too deeply"),
        ("# " + "x" * 2**19, "too large"),
        ("a: 1\nb: {c: 2, c: 3}", "the key 'c' is given twice"),
        ("a: \0", "not valid YAML"),
    ],
)
def test_yaml_made_to_hurt_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "any.yaml"
    path.write_text(text, encoding="utf-8")
    began = time.process_time()
    with pytest.raises(UserError, match=complaint) as caught:
        read_yaml(path)
    assert time.process_time() - began < 10
    assert len(str(caught.value)) < 1_000
    assert not (tmp_path / "executed").exists()


def test_a_yaml_bomb_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    path.write_text(billion_laughs(), encoding="utf-8")
    with little_memory(2**22), pytest.raises(UserError):
        read_yaml(path)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no /dev/zero")
def test_a_file_without_end_is_not_read_to_its_end() -> None:
    refused = pytest.raises(UserError, match="'/dev/zero' is too large")
    with little_memory(4 * yamlfile.LARGEST_BYTES), refused:
        read_yaml(Path("/dev/zero"))


# --- images ---------------------------------------------------------------------------------------


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Two class folders with a sound image each."""
    folder = tmp_path / "set"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a.png").write_bytes(picture("PNG"))
    return folder


def picture(kind: str, side: int = 16) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(2**16)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(100_000, 100_000), (2**31 - 1, 2**31 - 1), (10_000, 9_999)])
def test_an_image_of_absurd_size_is_refused_before_its_pixels_are_read(
    classes: Path, tmp_path: Path, size: tuple[int, int]
) -> None:
    (classes / "dog" / "bomb.png").write_bytes(png_that_claims(*size))
    result = invoke(
        "data", "prepare", "mine", "--from", classes, "--size", "8", "--data-dir", tmp_path / "data"
    )
    assert is_refused(result) and "bomb.png is refused for its absurd size" in result.output
    assert not list((tmp_path / "data").glob("*.npz"))


def test_postscript_under_the_name_of_an_image_reaches_no_interpreter(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\nshowpage\n"
    (classes / "dog" / "b.png").write_bytes(program)

    def started(*_: object, **__: object) -> None:
        raise AssertionError("another program was started")

    monkeypatch.setattr("subprocess.Popen", started)
    with pytest.raises(UserError, match=r"b\.png is not an image that can be read"):
        convert.from_class_folders(tmp_path / "out.npz", classes)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_under_the_name_of_an_image_is_passed_over(classes: Path, tmp_path: Path) -> None:
    os.mkfifo(classes / "dog" / "b.png")
    convert.from_class_folders(tmp_path / "out.npz", classes)
    assert len(prepared.read_images(tmp_path / "out.npz")[1]) == 2


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_no_byte_of_an_image_can_be_changed_to_take_the_reader_down(
    classes: Path, tmp_path: Path, kind: str
) -> None:
    path = classes / "dog" / "fuzzed.png"
    for content in list(mutations(picture(kind), seed=3))[: FUZZED_FILES // 4]:
        path.write_bytes(content)
        refusal_or_result(lambda path: convert._pixels(path, 3, 16, 16, resize=True), path)


# --- CSV ------------------------------------------------------------------------------------------

ROWS = b"2,b\n1,c\n2,d\n1,e\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"1,a\0b\n" + ROWS, "document 1 holds a NUL character"),
        (b"a\0,x\na,y\na\0,z\na,w\n", "document 1 holds a NUL character"),
        (b"1," + b"x" * 200_000 + b"\n" + ROWS, "field larger than field limit"),
        (b"1\n" + ROWS, "document 1 needs a class and a text column"),
        (b"1,a\n" + ROWS + b",b\n", "document 6 needs a class and a text column"),
        (b'1,"a' + ROWS, "it has 1 values in 1 documents"),
        (b"007,a\n7,b\n007,c\n7,d\n", "it has 1 values in 4 documents"),
        (b"1,\xff\xfe\n" + ROWS, "is not UTF-8"),
        (b"", "has no rows"),
    ],
)
def test_a_csv_file_made_to_hurt_is_one_sentence(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    (tmp_path / "source.csv").write_bytes(content)
    result = invoke(
        "data",
        "prepare",
        "mine",
        "--from",
        tmp_path / "source.csv",
        "--data-dir",
        tmp_path / "data",
    )
    assert is_refused(result) and complaint in result.output
    assert not (tmp_path / "data" / "mine.csv").exists()


def test_class_numbers_of_any_length_stay_apart(tmp_path: Path) -> None:
    long, longer = b"9" * 5_000, b"9" * 5_001
    rows = [long + b",a\n", longer + b",b\n", b"18446744073709551616,c\n"] * 2
    (tmp_path / "mine.csv").write_bytes(b"".join(rows))
    assert card("mine", "real", tmp_path).classes == 3


# --- names ----------------------------------------------------------------------------------------

TRICKS = ["../up", "../../up", "/tmp/up", "a/../../up", "..", ".", "a/b", "a\\b", "%2e%2e/up",
          "up\n", "n" * 300, "-", "--force", "~", "~/up", "con:", "\udcff"]  # fmt: skip


def everything_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize(
    "command",
    [
        ["new", "{}"],
        ["data", "prepare", "{}", "--from", "classes"],
        ["data", "check", "{}"],
        ["run", "--algo", "fedavg", "--dataset", "{}"],
        ["run", "--algo", "fedavg", "--dataset", "toy", "--algo", "{}"],
        ["run", "--algo", "fedavg", "--dataset", "toy", "--model", "{}"],
        ["run", "--algo", "fedavg", "--dataset", "toy", "--profile", "{}"],
        ["run", "--algo", "fedavg", "--dataset", "toy", "--record", "{}"],
        ["table", "{}", "--render-only"],
        ["show", "{}"],
        ["results", "show", "{}"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("untrained")
def test_a_name_cannot_leave_its_folder(
    inside: Path, tmp_path: Path, data: Path, classes: Path, command: list[str], trick: str
) -> None:
    (inside / "classes").symlink_to(classes)
    before = everything_below(tmp_path), everything_below(data)
    result = invoke(*(word.format(trick) for word in command))
    assert is_refused(result)
    assert (everything_below(tmp_path), everything_below(data)) == before


def test_a_run_s_folder_is_named_within_the_store_whatever_its_dataset_is_called(
    inside: Path, data: Path
) -> None:
    folder = pfllib_folder(inside / "…..%2e%2e evil\nname")
    result = invoke(
        "run",
        "--algo",
        "fedavg",
        "--partition",
        f"pfllib:{folder}",
        "--rounds",
        "1",
        "--results",
        inside / "results",
    )
    assert result.exit_code == 0, result.output
    (run,) = (path for path in (inside / "results").iterdir())
    assert run.name.isascii() and run.name.isprintable() and "/" not in run.name


def test_the_files_of_a_table_stay_in_the_folder_asked_for(inside: Path) -> None:
    table = (inside / "table.yaml").rename(inside / "..%2fup.yaml")
    invoke("table", table, "--render-only", "--out", inside / "out")
    assert {path.stem for path in (inside / "out").iterdir()} == {"..%2fup"}


# --- results from somewhere else ------------------------------------------------------------------


def forge(stored: Path, to: Path, name: str, **changes: Any) -> Path:
    """A copy of a stored run whose document `name` says something else, properly sealed."""
    source = next(path for path in sorted(stored.iterdir()) if path.name.startswith("fedavg"))
    folder = to / source.name
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    document = unseal((folder / name).read_bytes())
    (folder / name).write_text(seal({**document, **changes}), encoding="utf-8")
    return folder


def test_a_sealed_document_that_says_nonsense_takes_no_command_down(
    stored: Path, tmp_path: Path
) -> None:
    """A digest tells damage; whoever writes a store by hand can make any digest."""
    keys = {
        "summary.json": [
            "status",
            "rounds",
            "best",
            "last",
            "total_seconds",
            "provenance",
            "reason",
            "seconds_per_round",
            "bytes_up_per_client",
            "parameters_down_per_client",
            "data",
        ],
        "config.json": ["config"],
    }
    places = [(name, key) for name, several in keys.items() for key in several]

    @fuzz(80)
    @given(st.sampled_from(places), junk)
    def attack(place: tuple[str, str], value: Any) -> None:
        name, key = place
        folder = forge(stored, tmp_path / "store", name, **{key: from_json(to_json(value))})
        other = next(path for path in stored.iterdir() if path.name.startswith("local"))
        for command in (["list"], ["list", "--json"], ["show", folder.name[-16:]], ["export"]):
            invoke("results", *command, "--results", folder.parent)
        invoke("compare", folder, other)

    attack()


def test_a_record_with_a_true_checksum_and_false_content_is_not_believed() -> None:
    sound = asdict(RoundRecord(1, [0], [1], [2], [0.5], 0.5, seconds={"total": 1.0}))
    refused = 0

    @fuzz(200)
    @given(st.sampled_from(sorted(set(sound) - {"extras"})), junk)
    def attack(field: str, value: Any) -> None:
        nonlocal refused
        line = RoundRecord(**{**sound, field: value}).to_line()
        try:
            record = RoundRecord.from_line(line)
        except DamagedError:
            refused += 1
        else:
            assert record.accuracy is None or 0 <= record.accuracy <= 1
            assert record.total_seconds >= 0 and isinstance(record.test_loss, float | None)

    attack()
    assert refused > 100


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"{" * 1_000_000, id="nesting"),
        pytest.param(b'{"round":' + b"9" * 1_000_000 + b"}", id="number"),
        pytest.param(b'{"a":"' + b"x" * 20_000_000 + b'"}', id="text"),
        pytest.param(b',"crc32":"00000000"}' * 50_000, id="checksums"),
    ],
)
def test_a_line_without_end_is_read_in_a_moment_and_not_believed(line: bytes) -> None:
    start = line.removesuffix(b"}")
    whole = start + b',"crc32":"%08x"}\n' % zlib.crc32(start)
    began = time.process_time()
    for content in (line, line + b"\n", whole):
        assert read_lines(content)[0] == []
    assert time.process_time() - began < 5


def test_a_checkpoint_that_belongs_to_nothing_is_dropped(stored: Path, tmp_path: Path) -> None:
    folder = forge(stored, tmp_path / "store", "summary.json")
    (folder / "summary.json").unlink()
    records = (folder / "rounds.jsonl").read_bytes()
    true = {"records": records.count(b"\n"), "sha256": hashlib.sha256(records).hexdigest()}
    for number, bond in enumerate(({}, {"bond": 3}, {"bond": {"records": "two"}},
                                   {"bond": {"records": -1, "sha256": ""}},
                                   {"bond": true}, {"bond": true, "meta": 3})):  # fmt: skip
        path = folder / f"checkpoint-{number + 1}.safetensors"
        checkpoint.write(path, {"server/x": torch.zeros(1)}, bond)
    config = RunConfig.from_dict(read_run(folder).config)
    with Store(folder.parent).open(config) as writer:
        assert writer.checkpoint is None and writer.records == []
        assert "the run starts over" in writer.notes[-1]
