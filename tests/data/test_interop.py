"""Partitions that leave for other frameworks and come from them."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from prepared import NAME, prepare_toy

from pfl_bench.cli import main
from pfl_bench.data.partition import make_partition
from pfl_bench.data.pfllib import read_pfllib
from pfl_bench.data.pfllib_export import write_pfllib
from pfl_bench.data.registry import load
from pfl_bench.store.records import same_result
from pfl_bench.store.store import Store

PAGE = Path(__file__).resolve().parents[2] / "docs/interop.md"
DEALT = ("--clients", "3", "--beta", "0.5", "--fraction", "1", "--image-size", "0")
TRAINED = ("--algo", "fedper", "--model", "cnn", "--rounds", "2", "--lr", "0.05", "--quiet")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "cache"))


def _call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def _succeed(*arguments: object) -> Result:
    result = _call(*arguments)
    assert result.exit_code == 0, result.output
    return result


def _as_pfllib_reads(file: Path) -> dict[str, Any]:
    """PFLlib unpickles; only a test does so, with what it has written itself."""
    with np.load(file, allow_pickle=True) as archive:
        return archive["data"].tolist()


def test_an_exported_partition_read_back_gives_the_same_bits(tmp_path: Path) -> None:
    folder = prepare_toy(tmp_path / "data", samples=120)
    out = tmp_path / "Toy"
    data = ("--dataset", NAME, "--data-dir", folder)
    _succeed("data", "partition", *data, *DEALT, "--export", f"pfllib:{out}")
    _succeed("run", *data, *DEALT, *TRAINED, "--results", tmp_path / "ours")
    _succeed("run", "--partition", f"pfllib:{out}", *TRAINED, "--results", tmp_path / "theirs")
    (ours,), (theirs,) = Store(tmp_path / "ours").all(), Store(tmp_path / "theirs").all()
    pairs = list(zip(ours.records(), theirs.records(), strict=True))
    assert len(pairs) == 2
    assert all(same_result(a, b) for a, b in pairs)


def test_pfllib_finds_scaled_images_labels_and_what_it_asks_of_a_configuration(
    tmp_path: Path,
) -> None:
    dataset = load(NAME, "real", prepare_toy(tmp_path / "data", samples=120))
    dealt = make_partition(dataset.y, dataset.classes, setting="practical", clients=3, beta=0.5)
    write_pfllib(tmp_path / "out", dataset, dealt, setting="practical", beta=0.5)
    for part, held in (("train", dealt.train), ("test", dealt.test)):
        for client, own in enumerate(held):
            content = _as_pfllib_reads(tmp_path / "out" / part / f"{client}.npz")
            by_hand = dataset.x[own].transpose(0, 3, 1, 2).astype(np.float64) / 127.5 - 1
            if dataset.x.dtype != np.uint8:
                by_hand = dataset.x[own].transpose(0, 3, 1, 2)
            assert content["x"].dtype == np.float32
            np.testing.assert_allclose(content["x"], by_hand, atol=1e-6)
            assert content["y"].tolist() == dataset.y[own].tolist()
    config = json.loads((tmp_path / "out/config.json").read_text())
    asked = ("num_clients", "num_classes", "non_iid", "balance", "partition", "alpha", "batch_size")
    assert [config[key] for key in asked] == [3, dataset.classes, True, False, "dir", 0.5, 10]
    counts = config["Size of samples for labels in clients"]
    assert sum(count for row in counts for _, count in row) == len(dataset.y)


def test_documents_leave_and_come_back_as_they_are(tmp_path: Path) -> None:
    rows = "".join(f"{k % 2},word{k % 7} and {'more ' * (k % 3)}\n" for k in range(80))
    (tmp_path / "mood.csv").write_text(rows)
    dataset = load("mood", "real", tmp_path)
    dealt = make_partition(dataset.y, dataset.classes, setting="iid", clients=2)
    write_pfllib(tmp_path / "out", dataset, dealt, setting="iid", beta=None)
    back, again = read_pfllib(tmp_path / "out")
    assert back.vocabulary == dataset.vocabulary
    for ours, theirs in zip((*dealt.train, *dealt.test), (*again.train, *again.test), strict=True):
        assert np.array_equal(dataset.x[ours], back.x[theirs])
    tokens, length = _as_pfllib_reads(tmp_path / "out/train/0.npz")["x"][0]
    assert len(tokens) == 200 and set(tokens[length:]) <= {0} and tokens[length - 1] != 0


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    folder = prepare_toy(tmp_path / "data", samples=120)
    data = ("--dataset", NAME, "--data-dir", folder)
    refused = _call("data", "partition", *data, *DEALT, "--export", f"pfllib:{folder}")
    assert refused.exit_code == 2 and "is there already" in refused.output
    refused = _call("data", "partition", *data, *DEALT, "--export", "flower:here")
    assert refused.exit_code == 2
    assert "--export cannot be 'flower:here'; allowed: pfllib:PATH" in refused.output


# --- flwr-datasets --------------------------------------------------------------------------------


class _Rows(dict[str, list[int]]):
    """As much of `datasets.Dataset` as the page uses."""

    @classmethod
    def from_dict(cls, columns: dict[str, list[int]]) -> _Rows:
        return cls(columns)


class _ByRow:
    """A partitioner that deals rows in turn."""

    dataset: _Rows

    def __init__(self, num_partitions: int, partition_by: str, alpha: float):
        self.num_partitions = num_partitions

    def load_partition(self, number: int) -> dict[str, list[int]]:
        return {"row": self.dataset["row"][number :: self.num_partitions]}


def _program(tmp_path: Path) -> str:
    """The page's program for few clients, with the toy problem where it looks for data."""
    toy = prepare_toy(tmp_path / "data", samples=400) / f"{NAME}.npz"
    toy.rename(tmp_path / "data/cifar10.npz")
    program = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[0]
    return program.replace("num_partitions=20", "num_partitions=4").replace("0.1)", "5.0)")


def test_the_pages_program_makes_natural_clients_of_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, members in (
        ("datasets", {"Dataset": _Rows}),
        ("flwr_datasets", {}),
        ("flwr_datasets.partitioner", {"DirichletPartitioner": _ByRow}),
    ):
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    program = _program(tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    dataset = load("cifar10_flwr", "real", tmp_path / "data")
    assert dataset.owners is not None
    assert dataset.owners.tolist() == [row % 4 for row in range(400)]


@pytest.mark.skipif(
    importlib.util.find_spec("flwr_datasets") is None, reason="flwr-datasets is not installed"
)
def test_the_pages_program_works_with_flwr_datasets_itself(tmp_path: Path) -> None:
    # In a process of its own: in a clone, the folder datasets/ would hide the library.
    subprocess.run((sys.executable, "-c", _program(tmp_path)), cwd=tmp_path, check=True)
    shown = _succeed(
        "data", "partition", "--dataset", "cifar10_flwr", "--data-dir", tmp_path / "data",
        "--setting", "natural", "--fraction", "1", "--image-size", "0", "--json",
    )  # fmt: skip
    clients = json.loads(shown.stdout)["clients"]
    assert len(clients) == 4
    assert sum(one["train"] + one["test"] for one in clients) == 400
