"""A data folder of a stranger: what is no plain file, or one without measure, hangs nothing, asks
for no memory, and leaves the other sets listed.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import invoke, is_refused
from prepared import NAME, prepare_toy
from test_files import little_memory, pfllib_folder, picture, png_that_claims

from pfl_bench.base import files
from pfl_bench.base.errors import UserError
from pfl_bench.data import convert, text
from pfl_bench.data.pfllib import read_pfllib


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 * 2**30)


def folder(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    other = path.with_name("elsewhere.bin")
    other.write_bytes(b"1,a\n2,b\n1,c\n2,d\n")
    path.symlink_to(other)


STRANGE = pytest.mark.parametrize("make", [pipe, endless, sparse, folder, link])


@STRANGE
@pytest.mark.parametrize("ending", [".npz", ".csv"])
def test_a_set_that_is_no_plain_file_is_called_broken_and_the_others_are_listed(
    tmp_path: Path, make: Callable[[Path], None], ending: str
) -> None:
    data = prepare_toy(tmp_path / "data")
    make(data / f"strange{ending}")
    with little_memory(2**26):
        listed = invoke("data", "list", "--data-dir", data)
    assert "strange" in listed.output and NAME in listed.output
    assert listed.exit_code == 0 and listed.output.count("broken") == 1
    checked = invoke("data", "check", "strange", "--data-dir", data)
    assert is_refused(checked) and f"strange{ending}" in checked.output


@STRANGE
def test_a_note_that_is_no_plain_file_is_one_sentence(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    data = prepare_toy(tmp_path / "data")
    make(data / f"{NAME}.note")
    with little_memory(2**26):
        assert "broken" in invoke("data", "list", "--data-dir", data).output
    refused = invoke("data", "check", NAME, "--data-dir", data)
    assert is_refused(refused) and f"cannot read {data / NAME}.note" in refused.output


@STRANGE
@pytest.mark.parametrize("place", ["config.json", "train/0.npz"])
def test_a_partition_of_pfllib_with_what_is_no_plain_file_is_one_sentence(
    tmp_path: Path, make: Callable[[Path], None], place: str
) -> None:
    partition = pfllib_folder(tmp_path / "set")
    (partition / place).unlink()
    make(partition / place)
    with little_memory(2**26), pytest.raises(UserError, match=place):
        read_pfllib(partition)


def test_a_file_that_grows_while_it_is_read_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "growing"
    path.write_bytes(b"12345")
    assert files.read_regular(path, 5) == b"12345"
    opened = files.open_regular

    def grown(path: Path, most: int | None = None) -> Any:
        file = opened(path, most)
        path.write_bytes(b"123456")
        return file

    monkeypatch.setattr(files, "open_regular", grown)
    with pytest.raises(OSError, match="more than 5 bytes"):
        files.read_regular(path, 5)


# --- CSV ------------------------------------------------------------------------------------------


def test_one_long_label_among_many_rows_asks_for_no_memory(tmp_path: Path) -> None:
    rows = ["1,a b", "2,c d"] * 30_000 + [f"{'x' * 130_000},a"]
    (tmp_path / "words.csv").write_text("\n".join(rows), encoding="utf-8")
    prepare_toy(tmp_path)
    with little_memory(2**26):
        listed = invoke("data", "list", "--data-dir", tmp_path)
    said = "".join(listed.output.split())
    assert "130,000" in said and NAME in said


def test_labels_are_numbered_in_little_memory(tmp_path: Path) -> None:
    labels = ["a", "b" * 200] * 30_000
    tracemalloc.start()
    numbers = text.number_classes(labels, tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
    assert numbers.tolist() == [0, 1] * 30_000


@pytest.mark.parametrize(
    "labels",
    [["10", "2", "-1", "02", "2", "10", "-1", "-1"], ["b", "ä", "a", "B", "a", "b", "ä", "B"]],
)
def test_labels_are_numbered_in_their_order(tmp_path: Path, labels: list[str]) -> None:
    values = np.array([int(label) for label in labels] if labels[0] == "10" else labels)
    expected = np.unique(values, return_inverse=True)[1]
    assert text.number_classes(labels, tmp_path).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("limit", "most", "rows", "complaint"),
    [
        ("MOST_DOCUMENTS", 100, "1,a\n2,b\n" * 51, "more than 100 rows"),
        ("MOST_CELLS", 100, "1,a,b,c\n2,a,b,c\n" * 13, "more than 100 cells"),
        ("MOST_WORDS", 4, "1,a b\n2,c d\n1,a\n2,b\n", None),
        ("MOST_WORDS", 3, "1,a b\n2,c d\n1,a\n2,b\n", "more than 3 different words"),
        ("LONGEST_ROW", 100, "1,a\n2," + "b," * 60 + "\n", "a row has more than 100 letters"),
        ("LONGEST_ROW", 100, "1,a\n2," + '"b\n",' * 60 + "\n", "a row has more than 100 letters"),
        ("LONGEST_ROW", 100, "1,a\n2,b\n" * 60, None),
    ],
)
def test_a_table_that_would_fill_the_memory_is_refused_while_it_is_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    most: int,
    rows: str,
    complaint: str | None,
) -> None:
    monkeypatch.setattr(text, limit, most)
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "cache"))
    data = prepare_toy(tmp_path / "data")
    (data / "words.csv").write_text(rows, encoding="utf-8")
    checked = invoke("data", "check", "words", "--data-dir", data)
    assert is_refused(checked) == bool(complaint) and (complaint or "") in checked.output
    listed = invoke("data", "list", "--data-dir", data)
    assert NAME in listed.output and ("broken" in listed.output) == bool(complaint)


def test_short_rows_without_end_take_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "MOST_DOCUMENTS", 10_000)
    path = tmp_path / "words.csv"
    path.write_text("1,a\n2,b\n" * 250_000, encoding="utf-8")
    with little_memory(2**24), pytest.raises(UserError, match="more than 10,000 rows"):
        text.read_table(path)


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 89_000_000), (89_000_000, 1), (convert.LONGEST_SIDE + 1, 2)])
def test_an_image_of_one_endless_row_is_refused_from_its_header(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "a.png").write_bytes(picture("PNG"))
    (tmp_path / "set" / "dog" / "row.png").write_bytes(png_that_claims(*size))
    result = invoke(
        "data", "prepare", "mine", "--from", tmp_path / "set", "--size", "8", "--data-dir", tmp_path
    )
    assert is_refused(result) and "row.png is refused for its absurd size" in result.output


def test_memory_that_runs_out_over_an_image_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    def none_left(*_: object, **__: object) -> None:
        raise MemoryError

    for name in ("cat", "dog"):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "a.png").write_bytes(picture("PNG"))
    monkeypatch.setattr(Image.Image, "resize", none_left)
    result = invoke(
        "data", "prepare", "mine", "--from", tmp_path / "set", "--size", "8", "--data-dir", tmp_path
    )
    assert is_refused(result) and "a.png is too large for the memory" in result.output


# --- labels of PFLlib -----------------------------------------------------------------------------


def holding_itself() -> list[Any]:
    labels: list[Any] = [0]
    labels.append(labels)
    return labels


@pytest.mark.parametrize(
    "labels",
    [
        [[0], [1, 0]],
        [0, [1]],
        holding_itself(),
        [[holding_itself()]],
        [2**200, 1],
        [None, 1],
        {0: 1},
    ],
)
def test_labels_that_are_no_list_of_numbers_are_one_sentence(tmp_path: Path, labels: Any) -> None:
    with pytest.raises(UserError, match=r"0\.npz does not hold one whole-numbered label"):
        read_pfllib(pfllib_folder(tmp_path / "set", y=labels))


@pytest.mark.parametrize("documents", [holding_itself(), [(holding_itself(), 2), ([1], 1)]])
def test_documents_that_hold_themselves_are_one_sentence(tmp_path: Path, documents: Any) -> None:
    with pytest.raises(UserError, match=r"0\.npz holds"):
        read_pfllib(pfllib_folder(tmp_path / "set", x=documents))
