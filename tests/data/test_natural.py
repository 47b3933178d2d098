"""Data that say to whom each sample belongs: from a CSV with named columns to a run."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from toy import toy_dataset

from pfl_bench.base.errors import UserError
from pfl_bench.cli import main
from pfl_bench.config.command_line import run_command
from pfl_bench.config.options import load_profile
from pfl_bench.data.partition import natural_partition
from pfl_bench.data.registry import describe, load
from pfl_bench.data.text import Columns, read_table
from pfl_bench.execution.configuration import configure, load_data

OWNERS = ("zoe", "ada", "bob")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "cache"))


def _reviews(path: Path, rows: int = 36) -> Path:
    """Rows of three users, and one user with a single row."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "User", "title", "Stars", "body"])
        for k in range(rows):
            word = "good" if k % 2 else "bad"
            writer.writerow([k, OWNERS[k % 3], f"title {k}", word, f"{word} thing number {k}"])
        writer.writerow([99, "once", "alone", "good", "only this"])
    return path


def _call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def _prepare(tmp_path: Path, *more: str) -> Result:
    source = _reviews(tmp_path / "reviews.csv")
    return _call(
        "data", "prepare", "reviews", "--from", source, "--data-dir", tmp_path / "data",
        "--label-column", "stars", "--text-column", "title,body", *more,
    )  # fmt: skip


def test_columns_are_found_by_their_names_in_any_spelling(tmp_path: Path) -> None:
    table = read_table(_reviews(tmp_path / "r.csv"), Columns("STARS", ("body", "title"), "user"))
    assert table.labels[:2] == ["bad", "good"]
    assert table.texts[0] == "bad thing number 0 title 0"
    assert table.clients is not None and table.clients[:4] == ["zoe", "ada", "bob", "zoe"]


def test_what_is_not_named_is_the_text_and_the_first_free_column_the_class(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("who,mood,words,more\na,1,x,y\nb,2,z,w\n")
    table = read_table(path, Columns(client="who"))
    assert (table.labels, table.texts) == (["1", "2"], ["x y", "z w"])


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (Columns("star"), "unknown column 'star'; did you mean 'Stars'?"),
        (Columns("stars", ("stars",)), "columns of their own"),
        (Columns("stars", client="stars"), "columns of their own"),
    ],
)
def test_a_column_that_cannot_be_is_a_sentence(
    tmp_path: Path, columns: Columns, complaint: str
) -> None:
    with pytest.raises(UserError) as refused:
        read_table(_reviews(tmp_path / "r.csv"), columns)
    assert complaint in str(refused.value)


def test_a_short_row_and_an_empty_client_are_named(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("label,who,text\na,x,one\nb,y\n")
    with pytest.raises(UserError, match="document 2 has 2 of 3 columns"):
        read_table(path, Columns(client="who"))
    path.write_text("label,who,text\na,x,one\nb, ,two\n")
    with pytest.raises(UserError, match="document 2 names no client"):
        read_table(path, Columns(client="who"))


def test_a_client_column_makes_natural_clients(tmp_path: Path) -> None:
    said = _prepare(tmp_path, "--client-column", "user")
    assert said.exit_code == 0, said.output
    assert "1 clients with fewer than 8 rows are left out" in said.output
    assert "3 clients of its own (--setting natural)" in said.output
    dataset = load("reviews", "real", tmp_path / "data")
    assert dataset.owners is not None
    names = sorted(OWNERS)
    assert [names[k] for k in dataset.owners] == [OWNERS[k % 3] for k in range(36)]
    again = load("reviews", "real", tmp_path / "data")  # now from the cache of tokens
    assert again.owners is not None and again.fingerprint == dataset.fingerprint
    assert again.owners.tolist() == dataset.owners.tolist()


def test_without_a_client_column_there_is_no_natural_setting(tmp_path: Path) -> None:
    assert _prepare(tmp_path).exit_code == 0
    with pytest.raises(UserError, match="no natural setting"):
        configure(
            load_profile("paper"), {"dataset": "reviews", "setting": "natural"}, {},
            tmp_path / "data",
        )  # fmt: skip


def test_who_owns_what_is_part_of_the_datas_identity(tmp_path: Path) -> None:
    prints = []
    for order in ((0, 1), (1, 0)):
        folder = tmp_path / str(order[0])
        folder.mkdir()
        rows = "".join(f"{k % 2},{order[k % 4 // 2]},word {k}\n" for k in range(16))
        (folder / "mine.csv").write_text("class,client,text\n" + rows)
        prints.append(load("mine", "real", folder).fingerprint)
    assert prints[0] != prints[1]


def test_images_may_bring_their_clients_too(tmp_path: Path) -> None:
    toy = toy_dataset(samples=40)
    owners = np.arange(40) % 4 + 10
    np.savez(tmp_path / "faces.npz", x=toy.x.transpose(0, 3, 1, 2), y=toy.y, client=owners)
    assert describe("faces", tmp_path).clients == 4
    np.savez(tmp_path / "bad.npz", x=toy.x.transpose(0, 3, 1, 2), y=toy.y, client=owners[:5])
    with pytest.raises(UserError, match="client must hold one integer per sample"):
        load("bad", "real", tmp_path)


def test_everybody_trains_and_is_tested_on_their_own_samples_alone(tmp_path: Path) -> None:
    _prepare(tmp_path, "--client-column", "user")
    chosen = {"dataset": "reviews", "setting": "Natural", "algo": "local"}
    config = configure(load_profile("paper"), chosen, {}, tmp_path / "data")
    assert (config.clients, config.sampled_from, config.setting_label) == (3, None, "natural")
    dataset, dealt = load_data(config, tmp_path / "data", None)
    assert dataset.owners is not None
    for client in range(3):
        held = np.concatenate([dealt.train[client], dealt.test[client]])
        assert sorted(held) == np.flatnonzero(dataset.owners == client).tolist()


def test_some_of_the_natural_clients_may_take_part(tmp_path: Path) -> None:
    _prepare(tmp_path, "--client-column", "user")
    chosen = {"dataset": "reviews", "setting": "natural", "clients": 2}
    config = configure(load_profile("paper"), chosen, {}, tmp_path / "data")
    assert (config.clients, config.sampled_from) == (2, 3)
    command = run_command(config)
    assert command is not None and "--clients 2 --of 3" in command
    with pytest.raises(UserError, match="comes with 3"):
        configure(load_profile("paper"), {**chosen, "clients": 4}, {}, tmp_path / "data")
    with pytest.raises(UserError, match="of cannot be 7"):
        configure(load_profile("paper"), {**chosen, "of": 7}, {}, tmp_path / "data")


def test_a_run_on_natural_clients_ends_with_a_result(tmp_path: Path) -> None:
    _prepare(tmp_path, "--client-column", "user")
    ended = _call(
        "run", "--algo", "fedavg", "--dataset", "reviews", "--setting", "natural", "--rounds", "1",
        "--fraction", "1", "--data-dir", tmp_path / "data", "--results", tmp_path / "results",
    )  # fmt: skip
    assert ended.exit_code == 0, ended.output
    assert "natural, 3 clients" in ended.output


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 5))
def test_a_natural_partition_is_that_of_the_owners_or_is_refused(
    owners: list[int], seed: int
) -> None:
    held = np.bincount(owners, minlength=5)
    if (held < 2).any():
        with pytest.raises(UserError, match="fewer than two samples"):
            natural_partition(np.array(owners), 5, 5, seed)
        return
    dealt = natural_partition(np.array(owners), 5, 5, seed)
    for client, (train, test) in enumerate(zip(dealt.train, dealt.test, strict=True)):
        assert len(train) and len(test)
        assert sorted([*train, *test]) == [k for k, owner in enumerate(owners) if owner == client]
