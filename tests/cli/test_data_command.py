"""`pfl-bench data list | prepare | check` as a user meets them."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from pfl_bench.base.errors import UserError
from pfl_bench.cli.data import data
from pfl_bench.cli.describe import list_
from pfl_bench.data.registry import load
from pfl_bench.data.text import read_table


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PFL_BENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "data"


def _call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(data, [str(argument) for argument in arguments])


def _mistake(*arguments: str | Path) -> str:
    """The sentence of the `UserError` that a command ends with."""
    error = _call(*arguments).exception
    assert isinstance(error, UserError), error
    return str(error)


def _pictures(folder: Path, side: int = 6) -> Path:
    for number, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for shade in (10, 20):
            image = Image.new("RGB", (side, side), (shade, number, 0))
            image.save(folder / name / f"{shade}.png")
    return folder


def _csv(path: Path) -> Path:
    path.write_text("label,text\npos,good day\nneg,bad day\npos,good\nneg,bad\n")
    return path


def test_list_names_every_dataset_with_its_shape() -> None:
    lines = _call("list").output.splitlines()
    for name, shape in (("mnist", "1×28×28"), ("tinyimagenet", "3×64×64"), ("agnews", "text")):
        assert any(name in line and shape in line for line in lines)


def test_list_shows_an_own_set_with_its_samples(tmp_path: Path) -> None:
    _call("prepare", "pets", "--from", _pictures(tmp_path / "pets"))
    (line,) = [line for line in _call("list").output.splitlines() if "pets" in line]
    assert "your own" in line
    assert "3×6×6" in line
    assert "4 samples" in line


def test_a_note_given_at_any_time_stands_in_the_verdict(tmp_path: Path) -> None:
    pictures = _pictures(tmp_path / "pets")
    _call("prepare", "pets", "--from", pictures)
    assert _call("note", "pets", "JPEG copy").output.rstrip().endswith("pets.npz; JPEG copy")
    assert _call("check", "pets").output.rstrip().endswith("pets.npz; JPEG copy")
    remade = _call("prepare", "pets", "--from", pictures, "--force").output.rstrip()
    assert remade.endswith("pets.npz")  # another file, of which nothing was said
    _call("note", "pets", "JPEG copy")
    assert _call("note", "pets", "").output.rstrip().endswith("pets.npz")


def test_a_note_needs_a_prepared_set_and_one_line() -> None:
    assert "Cifar10 is not prepared" in _mistake("note", "cifar10", "JPEG copy")


def test_the_names_one_may_run_on_include_ones_own(tmp_path: Path, folder: Path) -> None:
    _call("prepare", "pets", "--from", _pictures(tmp_path / "pets"))
    for arguments in ([], ["--data-dir", str(folder)]):
        lines = CliRunner().invoke(list_, ["datasets", *arguments]).stdout.splitlines()
        assert lines[-1].split() == ["pets", "your", "own,", "prepared", "in", str(folder)]


def test_list_survives_a_broken_file(folder: Path) -> None:
    folder.mkdir()
    (folder / "pets.npz").write_bytes(b"junk")
    result = _call("list")
    assert result.exit_code == 0
    assert "broken" in result.output


def test_prepare_makes_an_image_set_from_class_folders(tmp_path: Path, folder: Path) -> None:
    result = _call("prepare", "pets", "--from", _pictures(tmp_path / "pets"))
    assert result.exit_code == 0, result.exception
    dataset = load("pets", "real", folder)
    assert dataset.x[:, 0, 0].tolist() == [[10, 0, 0], [20, 0, 0], [10, 1, 0], [20, 1, 0]]
    assert dataset.y.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(("size", "shape"), [("3", (3, 3, 3)), ("4x2", (3, 4, 2))])
def test_prepare_resizes_to_the_size_asked_for(
    tmp_path: Path, folder: Path, size: str, shape: tuple[int, int, int]
) -> None:
    _call("prepare", "pets", "--from", _pictures(tmp_path / "pets"), "--size", size)
    assert load("pets", "real", folder).shape == shape


@pytest.mark.parametrize("size", ["0", "-3", "big", "3x", "99999"])
def test_prepare_refuses_an_odd_size_by_its_value(tmp_path: Path, size: str) -> None:
    source = _pictures(tmp_path / "pets")
    assert repr(size) in _mistake("prepare", "pets", "--from", source, f"--size={size}")


def test_prepare_makes_a_text_set_from_csv(tmp_path: Path, folder: Path) -> None:
    result = _call("prepare", "mood", "--from", _csv(tmp_path / "mood.csv"))
    assert result.exit_code == 0, result.exception
    assert load("mood", "real", folder).y.tolist() == [1, 0, 1, 0]


def test_prepared_texts_are_those_of_the_source_whatever_they_hold(
    tmp_path: Path, folder: Path
) -> None:
    texts = ["one\rtwo", "three\nfour", 'said "five"', "six, seven", "eight\r\nnine", "ten"]
    source = tmp_path / "mood.csv"
    with source.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows((k % 2, t) for k, t in enumerate(texts))
    assert _call("prepare", "mood", "--from", source).exit_code == 0
    assert read_table(folder / "mood.csv").texts == read_table(source).texts == texts


def test_prepare_takes_the_folder_of_the_option_over_that_of_the_environment(
    tmp_path: Path, folder: Path
) -> None:
    source = _csv(tmp_path / "mood.csv")
    _call("prepare", "mood", "--from", source, "--data-dir", tmp_path / "other")
    assert (tmp_path / "other" / "mood.csv").exists()
    assert not folder.exists()


def test_prepare_does_not_replace_an_own_set_unasked(tmp_path: Path, folder: Path) -> None:
    source = _csv(tmp_path / "mood.csv")
    _call("prepare", "mood", "--from", source)
    assert "--force" in _mistake("prepare", "mood", "--from", source)
    pictures = _pictures(tmp_path / "pets")
    assert _call("prepare", "mood", "--from", pictures, "--force").exit_code == 0
    assert load("mood", "real", folder).kind == "image"


def test_prepare_of_an_unknown_name_hints_at_the_nearest_and_at_from() -> None:
    sentence = _mistake("prepare", "cifar1O")
    assert "did you mean 'cifar10'" in sentence
    assert "--from PATH" in sentence


def test_prepare_names_a_source_that_does_not_exist(tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in _mistake("prepare", "pets", "--from", tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["../pets", "a/b", ".hidden", "a b"])
def test_prepare_refuses_a_name_that_is_no_file_name(tmp_path: Path, name: str) -> None:
    assert repr(name) in _mistake("prepare", name, "--from", _csv(tmp_path / "x.csv"))


def test_prepare_of_a_known_set_refuses_a_size(tmp_path: Path) -> None:
    source = _pictures(tmp_path / "pets")
    assert "MNIST has its own size" in _mistake("prepare", "mnist", "--from", source, "--size", "9")


def test_prepare_of_a_known_set_from_wrong_folders_leaves_nothing(
    tmp_path: Path, folder: Path
) -> None:
    sentence = _mistake("prepare", "cifar10", "--from", _pictures(tmp_path / "pets", side=32))
    assert "2 class folders, not 10" in sentence
    assert list(folder.iterdir()) == []


def test_check_prints_one_line_with_counts_and_fingerprint(tmp_path: Path, folder: Path) -> None:
    _call("prepare", "pets", "--from", _pictures(tmp_path / "pets"))
    result = _call("check")
    (line,) = result.output.splitlines()
    assert result.exit_code == 0
    for part in (
        "4 samples of 3×6×6 uint8 in 2 classes (2 to 2 per class)",
        load("pets", "real", folder).fingerprint,
    ):
        assert part in line


def test_check_says_how_much_of_a_published_set_is_there(tmp_path: Path) -> None:
    rows = "".join(f"{label},a title,some words\n" for label in (1, 2, 3, 4) * 3)
    (tmp_path / "some.csv").write_text(rows)
    _call("prepare", "agnews", "--from", tmp_path / "some.csv")
    assert "agnews: 12 of the 127,600 samples of text" in _call("check").output


def test_check_reads_the_file_even_if_it_was_good_before(tmp_path: Path, folder: Path) -> None:
    _call("prepare", "pets", "--from", _pictures(tmp_path / "pets"))
    path = folder / "pets.npz"
    status, content = path.stat(), bytearray(path.read_bytes())
    content[200] ^= 255
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert _call("check").exit_code == 2


def test_check_ends_with_two_if_any_file_is_broken_and_still_checks_the_rest(
    tmp_path: Path, folder: Path
) -> None:
    _call("prepare", "pets", "--from", _pictures(tmp_path / "pets"))
    np.savez(folder / "bad.npz", x=np.zeros((2, 1, 2, 2), np.uint8), y=np.array([0, 2]))
    result = _call("check")
    assert result.exit_code == 2
    assert "bad: broken: " in result.output
    assert "pets: 4 samples" in result.output


def test_check_of_a_set_that_is_not_prepared_says_how_to_get_it() -> None:
    result = _call("check", "cifar10")
    assert result.exit_code == 2
    assert "pfl-bench data prepare cifar10" in result.output


def test_check_of_an_empty_folder_says_so_and_how_to_fill_it(folder: Path) -> None:
    result = _call("check")
    assert result.exit_code == 0
    assert f"nothing is prepared in {folder}" in result.output
    assert "pfl-bench data prepare" in result.output


def test_importing_the_commands_imports_no_heavy_library() -> None:
    code = (
        "import sys, pfl_bench.cli.data;"
        "print([m for m in ('numpy', 'torch', 'pandas', 'matplotlib', 'rich') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
