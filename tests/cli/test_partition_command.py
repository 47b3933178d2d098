"""`pfl-bench data partition`: what is printed is what the partition holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pfl_bench.base.errors import UserError
from pfl_bench.cli.partition import partition as command
from pfl_bench.config.options import load_profile
from pfl_bench.data.partition import make_partition, subset
from pfl_bench.execution.configuration import configure, load_data


def prepared(folder: Path, name: str, samples: int, classes: int) -> np.ndarray:
    """Puts an image set in the prepared format into `folder`; its labels are returned."""
    y = np.arange(samples) % classes
    x = np.random.default_rng(0).integers(0, 256, (samples, 1, 4, 4), dtype=np.uint8)
    np.savez(folder / f"{name}.npz", x=x, y=y)
    return y


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFL_BENCH_CACHE", str(tmp_path / "cache"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def run_on(folder: Path, name: str, *arguments: str) -> str:
    result = run("--dataset", name, "--data-dir", str(folder), *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def table_after_heading(output: str) -> list[list[str]]:
    heading, *rows = output.split("\n\n")[1].splitlines()
    return [row.split() for row in (heading, *rows)]


def test_a_few_classes_are_counted_one_by_one(tmp_path: Path) -> None:
    y = prepared(tmp_path, "few", 600, 4)
    made = make_partition(y, 4, setting="practical", clients=5, beta=0.5)
    heading, *rows = table_after_heading(run_on(tmp_path, "few", "--clients", "5", "--beta", "0.5"))
    assert heading == ["client", "train", "test", "0", "1", "2", "3"]
    for client, (row, counts) in enumerate(zip(rows, made.histogram(y, 4), strict=True)):
        sizes = [str(client), str(len(made.train[client])), str(len(made.test[client]))]
        assert row == sizes + [str(count) if count else "·" for count in counts]


def test_many_classes_are_shown_by_the_number_held_and_the_largest(tmp_path: Path) -> None:
    y = prepared(tmp_path, "many", 900, 30)
    made = make_partition(y, 30, setting="practical", clients=3)
    _, *rows = table_after_heading(run_on(tmp_path, "many", "--clients", "3"))
    for row, counts in zip(rows, made.histogram(y, 30), strict=True):
        assert int(row[3]) == np.count_nonzero(counts)
        shown = [tuple(map(int, cell.split(":"))) for cell in row[4:]]
        assert [count for _, count in shown] == sorted(counts[counts > 0], reverse=True)[:5]
        assert all(counts[label] == count for label, count in shown)


def test_many_clients_are_summed_up_by_quantiles(tmp_path: Path) -> None:
    y = prepared(tmp_path, "few", 4000, 4)
    made = make_partition(y, 4, setting="practical", clients=100)
    sizes = sorted(len(train) for train in made.train)
    rows = table_after_heading(run_on(tmp_path, "few", "--clients", "100"))
    train = next(row for row in rows if row[:2] == ["train", "samples"])
    assert [int(train[2]), int(train[-1])] == [sizes[0], sizes[-1]]
    assert sizes[49] <= int(train[4]) <= sizes[50]


def test_all_shows_each_of_many_clients(tmp_path: Path) -> None:
    prepared(tmp_path, "few", 4000, 4)
    _, *rows = table_after_heading(run_on(tmp_path, "few", "--clients", "100", "--all"))
    assert [row[0] for row in rows] == [str(client) for client in range(100)]


def test_the_fingerprint_is_that_of_the_partition_asked_for(tmp_path: Path) -> None:
    y = prepared(tmp_path, "few", 4000, 4)
    part = y[subset(y, 0.5, 7)]
    made = make_partition(
        part,
        4,
        setting="pathological",
        clients=5,
        sampled_from=10,
        classes_per_client=3,
        seed=7,
    )
    options = "--setting pathological --clients 5 --of 10 --classes-per-client 3"
    rest = "--partition-seed 7 --fraction 0.5"
    output = run_on(tmp_path, "few", *options.split(), *rest.split())
    assert f"partition {made.fingerprint} " in output
    assert f"most frequent class: {100 * made.majority_accuracy(part):.2f}% of the test" in output
    assert output.startswith("few, 50% of it, pathological 5|10, 5 clients")


def test_json_holds_the_sizes_and_the_histogram(tmp_path: Path) -> None:
    y = prepared(tmp_path, "few", 400, 4)
    made = make_partition(y, 4, setting="iid", clients=4)
    output = json.loads(run_on(tmp_path, "few", "--setting", "iid", "--clients", "4", "--json"))
    assert output["fingerprint"] == made.fingerprint
    assert output["majority_accuracy"] == made.majority_accuracy(y)
    assert [client["classes"] for client in output["clients"]] == made.histogram(y, 4).tolist()
    assert [client["train"] for client in output["clients"]] == [75] * 4


def test_a_set_of_ones_own_is_found_without_saying_that_it_is_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path, "few", 400, 4)
    monkeypatch.setenv("PFL_BENCH_DATA", str(tmp_path))
    result = run("--dataset", "few", "--clients", "4")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("few, practical(0.1), 4 clients, cnn_small: 400 samples")


@pytest.mark.parametrize("profile", ["quick", "mine.yaml"])
def test_shown_is_what_a_run_under_the_same_profile_would_use(
    profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("run: {source: standin, fraction: 0.05, beta: 0.5}\n")
    config = configure(load_profile(profile), {"dataset": "mnist"}, {}, tmp_path)
    _, used = load_data(config, tmp_path, None)
    flags = () if profile == "quick" else ("--profile", profile)
    output = json.loads(run("--json", "--dataset", "mnist", *flags).stdout)
    assert (output["profile"], output["fraction"]) == (Path(profile).stem, config.fraction)
    assert output["fingerprint"] == used.fingerprint


def test_a_partition_of_pfllib_is_shown_as_it_is(tmp_path: Path) -> None:
    labels = {"train/0": [0, 0, 1], "test/0": [1], "train/1": [2, 2], "test/1": [0]}
    folder = tmp_path / "MNIST"
    for name, y in labels.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        content = {"x": np.zeros((len(y), 1, 4, 4), dtype=np.float32), "y": np.array(y)}
        np.savez_compressed(folder / f"{name}.npz", data=np.array(content, dtype=object))
    (folder / "config.json").write_text('{"num_clients": 2, "num_classes": 3}')
    result = run("--partition", f"pfllib:{folder}")
    assert result.exit_code == 0, result.output
    _, *rows = table_after_heading(result.output)
    assert rows == [["0", "3", "1", "2", "2", "·"], ["1", "2", "1", "1", "·", "2"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--setting practicl --beta 1", "setting cannot be 'practicl'; did you mean 'practical'"),
        ("--setting iid --beta 1", "beta 1 belongs to the practical setting, not to 'iid'"),
        ("--classes-per-client 2", "2 belongs to the pathological setting, not to 'practical'"),
        ("--partition pfllib:x --clients 3", "clients cannot be 3: the partition 'x' decides it"),
        ("--partition somewhere", "--partition cannot be 'somewhere'; allowed: pfllib:PATH"),
        ("--partition pfllib:nowhere", "nowhere is not a partition of PFLlib"),
    ],
)
def test_a_mistake_is_named_in_a_sentence(arguments: str, message: str) -> None:
    error = run(*arguments.split()).exception
    assert isinstance(error, UserError)
    assert message in str(error)


def test_the_module_does_not_import_numpy_or_torch_by_itself() -> None:
    """Help must come at once, so heavy packages wait until the command runs."""
    code = (
        "import importlib.util, sys, pfl_bench\n"
        "path = importlib.util.find_spec('pfl_bench').submodule_search_locations[0]\n"
        "spec = importlib.util.spec_from_file_location('alone', path + '/cli/partition.py')\n"
        "spec.loader.exec_module(importlib.util.module_from_spec(spec))\n"
        "print(sorted({'numpy', 'torch', 'pandas', 'matplotlib'} & sys.modules.keys()))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
