"""Thousands of commands on files that are whole, sealed and wrong: every one is carried out, or
refused in a sentence. A bounded part runs with the suite; PFL_BENCH_FUZZ=10000 asks for so many.

Each case is drawn from a seed of its own, which a failure names.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases import LONG, invoke
from conftest import TABLE

from pfl_bench.store.records import RoundRecord, seal, to_json, unseal

COMMANDS = int(os.environ.get("PFL_BENCH_FUZZ") or 270)
NASTY: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, -(2**63), 10**30, 10**400, 1e300, -1e300, 1e-320, 0.5,
    float("nan"), float("inf"), "", " ", "a", LONG, "\x1b[31m", "\x00", "\ud800", "../..", "=1+1",
    "2026-01-01T00:00:00+00:00", "nan", [], [[]], {}, {"a": 1}, [1, 2, 3], [None], ["a"],
    [1e308, 1e308], [[1, 2], [3]], {"": None}, list(range(500)),
]  # fmt: skip
READERS = [
    ["results", "list"], ["results", "list", "--json"], ["results", "export"],
    ["results", "export", "--rounds"], ["results", "show", "KEY"], ["compare", "KEY", "OTHER"],
    ["table", "table.yaml", "--render-only"], ["table", "table.yaml", "--dry-run"],
    ["figure", "curves", "--dataset", "toy", "--algos", "fedavg,local", "--out", "OUT"],
    ["report", "--out", "OUT/report.html"],
]  # fmt: skip

PROFILE = {"about": "small", "seeds": 2, "run": {"rounds": 2, "source": "real"},
           "datasets": {"toy": {"clients": 2}}, "models": {"cnn": {"lr": 0.1}}}  # fmt: skip
PLUGIN = """
from dataclasses import dataclass
from pfl_bench.config import knob
from pfl_bench.engine import Algorithm

@dataclass(frozen=True)
class Hyper:
    mu: float = knob(0.1, "a weight", source="none", low=0)

class Mine(Algorithm):
    title, summary, citation, scored_model = "Mine", "Mine.", "none", "the global model"
    shared = ("extractor", "head")
    Hyper = Hyper
"""
LINES = [
    "raise BaseException('no')", "import nothing_of_this_name", "1 / 0",
    "class Other(Algorithm): pass", "Mine = 3", "Mine.title = None", "Mine.Hyper = int",
    "Mine.shared = 5", "def f(:", "\x00",
    "raise SystemExit(0)", "del Mine", "Mine.title = '\\x1b[31m'", "import sys; sys.exit('no')",
]  # fmt: skip


class Place:
    """A folder of its own for each case: a store with two finished runs, and what points to it."""

    def __init__(self, folder: Path, stored: Path):
        self.folder, self._stored = folder, stored
        self.store = folder / "results"
        self.renew()

    def renew(self) -> None:
        shutil.rmtree(self.store, ignore_errors=True)
        shutil.copytree(self._stored, self.store)
        self.run, self.other = sorted(path for path in self.store.iterdir() if path.is_dir())

    def command(self, words: list[str]) -> list[str]:
        spelt = {"KEY": self.run.name[-16:], "OTHER": self.other.name[-16:]}
        out = str(self.folder / "out")
        return [spelt.get(word, word).replace("OUT", out) for word in words]


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner: Any = enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict):
        inner = value.items()
    return [path, *(deep for key, item in inner for deep in paths_in(item, (*path, key)))]


def mutated(document: Any, rng: random.Random) -> Any:
    """A copy in which one or two places hold something else, are gone, or have company."""
    changed = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2])):
        *before, last = rng.choice(paths_in(changed)[1:] or [("x",)])
        place = changed
        for key in before:
            place = place[key]
        action = rng.random()
        if action < 0.15:
            del place[last]
        elif action < 0.25 and isinstance(place, dict):
            place[rng.choice(["unknown", "", "\x1b[0m", LONG])] = copy.deepcopy(rng.choice(NASTY))
        else:
            place[last] = copy.deepcopy(rng.choice(NASTY))
    return changed


def written(document: Any) -> Any:
    """What JSON makes of it, as the store writes it; nothing where it cannot be written."""
    try:
        return json.loads(to_json(document))
    except (ValueError, TypeError, UnicodeError):
        return None


def document(place: Place, rng: random.Random, name: str) -> list[str]:
    place.renew()
    path = place.run / name
    found = mutated(unseal(path.read_bytes()), rng)
    if isinstance(found, dict) and written(found) is not None:
        path.write_bytes(seal(found).encode(errors="surrogatepass"))
    return place.command(rng.choice(READERS))


def config(place: Place, rng: random.Random) -> list[str]:
    return document(place, rng, "config.json")


def summary(place: Place, rng: random.Random) -> list[str]:
    return document(place, rng, "summary.json")


def record(place: Place, rng: random.Random) -> list[str]:
    """Records with true checksums that are also those of the summary."""
    import hashlib

    place.renew()
    path = place.run / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.pop("crc32", None)
    number = rng.randrange(len(lines))
    changed = mutated(lines[number], rng)
    fields = set(RoundRecord.__dataclass_fields__)
    if isinstance(changed, dict) and written(changed) is not None and set(changed) <= fields:
        lines[number] = {**lines[number], **changed}
        path.write_bytes(
            "".join(RoundRecord(**one).to_line() for one in lines).encode(errors="surrogatepass")
        )
        told = unseal((place.run / "summary.json").read_bytes())
        told["records_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (place.run / "summary.json").write_text(seal(told))
    return place.command(rng.choice(READERS))


def checkpoint(place: Place, rng: random.Random) -> list[str]:
    """A run to be continued from a checkpoint that is whole and does not fit."""
    import torch

    from pfl_bench.store import checkpoint as format

    place.renew()
    (place.run / "summary.json").unlink()
    tensors = {
        rng.choice(["server/x", "a", "", "round"]): rng.choice(
            [torch.zeros(0), torch.full((3,), torch.nan), torch.zeros(2, dtype=torch.float64)]
        )
    }
    envelope = mutated({"bond": {"round": 2, "records": 2, "sha256": "0" * 64}, "meta": {}}, rng)
    if isinstance(envelope, dict) and written(envelope) is not None:
        format.write(place.run / "checkpoint-2.safetensors", tensors, written(envelope))
    resume = ["run", "--dataset", "toy", "--source", "real", "--algo", "fedavg", "--clients", "2"]
    return place.command(rng.choice([*READERS, resume]))


def profile(place: Place, rng: random.Random) -> list[str]:
    path = place.folder / "profile.yaml"
    path.write_text(yaml.safe_dump(mutated(PROFILE, rng)), encoding="utf-8", errors="replace")
    return rng.choice([["run", "--profile", str(path), "--dataset", "toy"],
                       ["table", "table.yaml", "--profile", str(path), "--dry-run"]])  # fmt: skip


def spec(place: Place, rng: random.Random) -> list[str]:
    path = place.folder / "spec.yaml"
    changed = mutated(yaml.safe_load(TABLE), rng)
    path.write_text(yaml.safe_dump(changed), encoding="utf-8", errors="replace")
    return ["table", str(path), rng.choice(["--dry-run", "--render-only"])]


def archive(place: Place, rng: random.Random) -> list[str]:
    """An archive of a store, of arrays, or of nothing, with a member that is not what it says."""
    path = place.folder / rng.choice(["store.zip", "mine.npz"])
    names = [f"{place.run.name}/config.json", "x.npy", "../out", "/abs", "a" * 300, "y.npy", ""]
    with zipfile.ZipFile(path, "w") as target:
        for name in rng.sample(names, 3):
            member = zipfile.ZipInfo(name or "x")
            member.external_attr = rng.choice([0, 0o120777 << 16, 0o010644 << 16])
            target.writestr(member, rng.randbytes(rng.choice([0, 10, 1000])))
    return rng.choice([["results", "list", "--results", str(path)],
                       ["data", "list", "--data-dir", str(place.folder)],
                       ["data", "check", "--data-dir", str(place.folder)]])  # fmt: skip


def plugin(place: Place, rng: random.Random) -> list[str]:
    path = place.folder / "plugins" / f"mine{rng.randrange(10**9)}.py"
    path.parent.mkdir(exist_ok=True)
    lines = PLUGIN.splitlines()
    lines.insert(rng.choice([0, len(lines)]), rng.choice(LINES))
    path.write_text("\n".join(lines), encoding="utf-8")
    return ["run", "--plugin", str(path), "--algo", path.stem, "--dataset", "toy", "--rounds", "1"]


def command_line(place: Place, rng: random.Random) -> list[str]:
    words = place.command(rng.choice([*READERS, ["list", "algos"], ["show", "fedcp"], ["run"]]))
    strange = [str(one) for one in NASTY if not isinstance(one, str) or "\x00" not in one]
    flags = ["--results", "--rows", "--columns", "--seeds", "--algo", "--beta", "--jobs", "--score"]
    for _ in range(rng.choice([1, 2])):
        words.insert(rng.randrange(1, len(words) + 1), rng.choice([*strange, *flags]))
    return words


KINDS = (config, record, summary, checkpoint, profile, spec, archive, plugin, command_line)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("kind", KINDS)
def test_no_command_ends_in_a_traceback(
    inside: Path, stored: Path, kind: Callable[[Place, random.Random], list[str]]
) -> None:
    place = Place(inside, stored)
    for number in range(-(-COMMANDS // len(KINDS))):
        words = kind(place, random.Random(f"{kind.__name__} {number}"))
        try:
            invoke(*words)
        except AssertionError as error:
            raise AssertionError(f"{kind.__name__} {number}: {error}") from None
