"""Runs whose seals are true and whose content is absurd: they are listed as damaged with the
reason, and no command falls over them. Every place of a stored run is tried with values that have
no business there; `PFL_BENCH_FUZZ=10000` asks for about so many commands."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import invoke
from prepared import NAME

from pfl_bench.store.folder import holder
from pfl_bench.store.records import RoundRecord, seal, to_json, unseal
from pfl_bench.store.stored_run import read_run

CASES = max(40, int(os.environ.get("PFL_BENCH_FUZZ") or 0) // 9)
"""Of each of the three kinds of documents; each is met by two to four commands."""
ABSURD: list[Any] = [
    None, True, False, -1, 0, 10**18, 10**400, -(10**400), 0.5, -0.5, 1e308, -1e308, float("nan"),
    float("inf"), "", "a", "\ud800", "\udfff\ud800", "a\nb", "\x1b]0;title\x07", "<b>", "9" * 5000,
    "2026-01-01", "NaN", [], [[]], [1, 2], [1, "a"], ["a"], [None], {}, {"a": 1}, {"": []},
    {"\ud800": "\ud800"}, [10**400], [1e308] * 3, [True, False],
]  # fmt: skip
Path_ = tuple[str | int, ...]


def places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Every place within a document, and none for the document itself."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in inner:
        yield (*path, name)
        if isinstance(each, dict | list):
            yield from places(each, (*path, name))


def put(document: Any, path: Path_, value: Any) -> None:
    for name in path[:-1]:
        document = document[name]
    if value is Ellipsis:
        del document[path[-1]]
    else:
        document[path[-1]] = value


def sealed(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    document = unseal((folder / name).read_bytes())
    change(document)
    (folder / name).write_text(seal(document), encoding="utf-8")


def rewrite_records(folder: Path, change: Callable[[Any], None]) -> None:
    """Records with true checksums, and a summary that vouches for them."""
    lines = (folder / "rounds.jsonl").read_bytes().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        record.pop("crc32")
    change(records)
    starts = [to_json(record)[:-1] for record in records]
    data = "".join(f'{s},"crc32":"{zlib.crc32(s.encode()):08x}"}}\n' for s in starts)
    (folder / "rounds.jsonl").write_text(data)
    digest = hashlib.sha256(data.encode()).hexdigest()
    sealed(folder, "summary.json", lambda document: document.update(records_sha256=digest))


@pytest.fixture
def copied(stored: Path, tmp_path: Path) -> Callable[[], Path]:
    """A copy of the store, anew each time; its run of FedAvg is the one to spoil."""

    def make() -> Path:
        root = tmp_path / "store"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(stored, root)
        return next(path for path in root.iterdir() if path.name.startswith("fedavg"))

    return make


def tried(kind: str, sound: Any) -> Iterator[tuple[Path_, Any]]:
    """So many pairs of a place and a value, the same every time; every place is among them."""
    draw = random.Random(kind)
    every = list(places(sound))
    values = [*ABSURD, ...]  # the last: it is not there at all
    for number in range(max(CASES, len(every))):
        yield every[number % len(every)], draw.choice(values)


@pytest.mark.parametrize("kind", ["config.json", "summary.json", "rounds.jsonl"])
def test_no_command_falls_over_a_run_that_says_absurd_things(
    copied: Callable[[], Path], inside: Path, kind: str
) -> None:
    folder = copied()
    if kind == "rounds.jsonl":
        lines = (folder / kind).read_bytes().splitlines()
        sound = [json.loads(line) for line in lines]
        for record in sound:
            record.pop("crc32")
    else:
        sound = unseal((folder / kind).read_bytes())
    damaged = turn = 0
    for place, value in tried(kind, sound):
        folder = copied()

        def change(document: Any, place: Path_ = place, value: Any = value) -> None:
            put(document, place, copy.deepcopy(value))

        if kind == "rounds.jsonl":
            rewrite_records(folder, change)
        else:
            sealed(folder, kind, change)
        run = read_run(folder)
        damaged += run.status == "damaged"
        assert (run.status == "damaged") == bool(run.damage)
        invoke("results", "list", "--json", "--results", folder.parent)
        # What is damaged is so in one way, whatever is wrong; what is not meets more of them.
        for _ in range(1 if run.damage else 3):
            every = commands(folder, inside)
            invoke(*every[turn % len(every)])
            turn += 1
    assert damaged > CASES // 3


def commands(folder: Path, inside: Path) -> list[list[Any]]:
    """All that reads results; what would be trained first, were it not for the stored run, is not
    among them."""
    root = ["--results", folder.parent]
    other = next(path for path in folder.parent.iterdir() if path.name.startswith("local"))
    every = [
        ["results", "list", *root],
        ["results", "show", folder.name[-16:], *root],
        ["results", "export", *root],
        ["results", "export", "--rounds", *root],
        ["table", inside / "table.yaml", "--render-only", *root],
        ["table", inside / "table.yaml", "--dry-run", *root],
        ["report", "--out", inside / "report.html", *root],
        ["compare", folder, other],
    ]
    figure = ["figure", "curves", "--dataset", NAME, "--algos", "fedavg,local", "--source", "real",
              "--clients", "2", "--rounds", "2", "--batch-size", "8",
              "--out", inside / "curves.svg", *root]  # fmt: skip
    return every if read_run(folder).damage else [*every, figure]


def test_a_damaged_run_is_named_with_its_reason_and_the_others_are_listed(
    copied: Callable[[], Path],
) -> None:
    folder = copied()
    sealed(folder, "summary.json", lambda document: put(document, ("total_seconds",), 10**400))
    result = invoke("results", "list", "--results", folder.parent)
    assert "local" in result.output and "total_seconds" in result.output
    assert f"damaged: {folder.name}: summary.json is not what it must be" in result.output


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
@pytest.mark.parametrize("depth", [100, 300, 600, 900, 100_000])
def test_a_document_nested_without_end_is_damage(
    copied: Callable[[], Path], name: str, depth: int
) -> None:
    folder = copied()
    inner = "[" * depth + "]" * depth
    (folder / name).write_text(f'{{"key": {inner}, "digest": ""}}', encoding="utf-8")
    for command in (["results", "list"], ["results", "show", folder.name[-16:]]):
        listed = invoke(*command, "--results", folder.parent)
        assert f"{name} is damaged" in listed.output


NO_NOTES = ["[" * 2000, "[" * 2000 + "]" * 2000, "{}", "[]", '{"pid": 1e999}']


@pytest.mark.parametrize("note", NO_NOTES)
def test_a_note_of_an_owner_that_is_none_names_nobody(
    copied: Callable[[], Path], note: str
) -> None:
    folder = copied()
    (folder / "owner.lock").write_text(note, encoding="utf-8")
    assert holder(folder) is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda records: records.pop(), "1 rounds, summary.json 2"),
        (lambda records: records[0]["loss"].pop(), "not of the same clients"),
        (lambda records: records[0].update(correct=[10**6] * 2), "more correct than there are"),
        (lambda records: records[1].update(correct=None), "not of the same clients"),
    ],
)
def test_series_of_different_lengths_are_damage(
    copied: Callable[[], Path], change: Callable[[Any], None], complaint: str
) -> None:
    folder = copied()
    rewrite_records(folder, change)
    assert complaint in str(read_run(folder).damage)


def test_a_round_that_could_not_be_read_again_is_not_recorded(stored: Path) -> None:
    from pfl_bench.base.errors import UserError
    from pfl_bench.config.run_config import RunConfig
    from pfl_bench.store.store import Store

    run = next(Store(stored).all())
    config = RunConfig.from_dict({**run.config, "seed": 7})
    with (
        Store(stored.with_name("other")).open(config) as writer,
        pytest.raises(UserError, match=r"round 1 cannot be recorded: extras\.a"),
    ):
        writer.append(RoundRecord(1, [0], extras={"a": "\ud800"}))
