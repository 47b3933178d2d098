"""`pfl-bench results`: what it tells agrees with what is stored."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pfl_bench.base.errors import UserError
from pfl_bench.cli.results import results
from pfl_bench.store.records import RoundRecord
from pfl_bench.store.store import Store


@dataclass(frozen=True)
class Config:
    algo: str = "fedcp"
    dataset: str = "cifar10"
    source: str = "real"
    seed: int = 0
    lam: float = 5.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "algo": self.algo,
            "hyper": {"lambda": self.lam},
            "dataset": self.dataset,
            "source": self.source,
            "data_fingerprint": "0123456789abcdef",
            "model": "cnn",
            "batch_size": 10,
            "lr": 0.005,
            "setting": "practical",
            "beta": 0.1,
            "clients": 20,
            "rounds": 100,
            "joining_ratio": [0.5, 1.0],
            "seed": self.seed,
        }

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.to_dict()).encode()).hexdigest()[:16]

    @property
    def slug(self) -> str:
        return f"{self.algo}-{self.dataset}-s{self.seed}"


RUNS = (Config(), Config(seed=1), Config("fedavg", "mnist", "standin"))
CORRECT = (2, 9, 5)


def call(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(results, [*arguments, "--results", str(root)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = Store(tmp_path / "my résults")
    for config in RUNS:
        with store.open(config) as writer:
            for round, correct in enumerate(CORRECT, start=1):
                writer.append(
                    RoundRecord(
                        round,
                        [0, 1],
                        [correct, 0],
                        [10, 10],
                        [0.5, float("nan")],
                        extras={"PIR": 0.25},
                        seconds={"total": 2.0},
                    )
                )
            writer.finish("finished")
    return store.root


def test_list_has_a_line_for_each_run(root: Path) -> None:
    lines = call(root, "list").stdout.splitlines()
    assert len(lines) == 1 + len(RUNS)
    for config in RUNS:
        [line] = [line for line in lines if config.key[:8] in line]
        assert config.algo in line and "45.00" in line and "practical β=0.1" in line


def test_list_labels_stand_ins_and_only_them(root: Path) -> None:
    lines = call(root, "list").stdout.splitlines()
    assert [("mnist" in line) for line in lines] == [("(stand-in)" in line) for line in lines]


def test_list_labels_a_partition_of_pfllib(tmp_path: Path) -> None:
    with Store(tmp_path).open(Config(source="pfllib")) as writer:
        writer.finish("finished")
    assert "cifar10 (PFLlib)" in call(tmp_path, "list").stdout


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (("--algo", "FedCP"), 2),
        (("--dataset", "mnist"), 1),
        (("--setting", "practical"), 3),
        (("--algo", "fedcp", "--dataset", "mnist"), 0),
    ],
)
def test_filters_keep_what_agrees_with_all_of_them(
    root: Path, arguments: tuple[str, ...], seen: int
) -> None:
    assert len(json.loads(call(root, "list", "--json", *arguments).stdout)) == seen


def test_json_list_tells_best_accuracy_and_rounds(root: Path) -> None:
    for line in json.loads(call(root, "list", "--json").stdout):
        assert (line["best_accuracy"], line["rounds"], line["status"]) == (0.45, 3, "finished")


def test_a_damaged_run_is_listed_with_its_problem(root: Path) -> None:
    (Store(root).folder(RUNS[0]) / "rounds.jsonl").write_bytes(b"")
    result = call(root, "list")
    assert "damaged" in result.stdout and "rounds.jsonl is not the one" in result.stderr


def test_an_interrupted_run_is_listed_with_the_rounds_it_has(root: Path) -> None:
    with Store(root).open(Config(seed=7)) as writer:
        writer.append(RoundRecord(1, [0]))
    [line] = [x for x in json.loads(call(root, "list", "--json").stdout) if x["seed"] == 7]
    assert (line["status"], line["rounds"], line["best_accuracy"]) == ("interrupted", 1, None)


def test_list_tells_apart_what_its_other_columns_do_not(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, lam in enumerate((5.0, 5.0, 5.0, 1.0)):
        with store.open(Config(seed=seed, lam=lam)) as writer:
            writer.finish("finished")
    with store.open(Config("fedavg")) as writer:
        writer.finish("finished")
    lines = call(tmp_path, "list").stdout.splitlines()
    assert [("lambda=1.0" in line) for line in lines[1:]] == [False, False, False, False, True]
    assert "differs in" in lines[0] and not any("lambda=5.0" in line for line in lines)


def test_records_that_cannot_be_read_do_not_take_the_list_down(root: Path) -> None:
    folder = Store(root).folder(Config(seed=7))
    with Store(root).open(Config(seed=7)):
        pass
    (folder / "rounds.jsonl").mkdir()
    lines = {line["key"]: line for line in json.loads(call(root, "list", "--json").stdout)}
    assert lines[Config(seed=7).key]["status"] == "damaged"
    assert len(lines) == 1 + len(RUNS)
    assert call(root, "export", "--rounds").exit_code == 0


@pytest.mark.parametrize("arguments", [("list",), ("export",), ("export", "--rounds")])
def test_an_empty_store_is_no_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = call(tmp_path / "none", *arguments)
    assert result.exit_code == 0 and "No results in" in result.output


def test_an_empty_store_is_an_empty_json_list(tmp_path: Path) -> None:
    assert json.loads(call(tmp_path / "none", "list", "--json").stdout) == []


def test_show_finds_a_run_by_the_beginning_of_its_key(root: Path) -> None:
    output = call(root, "show", RUNS[1].key[:6]).stdout
    assert output.startswith(f"{RUNS[1].slug}-{RUNS[1].key}: finished")
    for told in ("hyper.lambda", "best.accuracy", "0.45", "machine.cores"):
        assert told in output


def test_show_finds_a_run_by_its_folder(root: Path) -> None:
    folder = Store(root).folder(RUNS[0])
    assert call(root, "show", str(folder)).stdout == call(root, "show", RUNS[0].key).stdout


def test_show_draws_the_accuracy_from_its_lowest_to_its_highest(root: Path) -> None:
    output = call(root, "show", RUNS[0].key).stdout
    assert "▁█▄  10.00 % to 45.00 %, rounds 1 to 3" in output


def test_show_leaves_rounds_blank_that_come_before_the_first_score(tmp_path: Path) -> None:
    config = Config(seed=7)
    with Store(tmp_path).open(config) as writer:
        for number, correct in enumerate((None, [2], None, [8]), start=1):
            total = None if correct is None else [10]
            writer.append(RoundRecord(number, [0], correct, total, correct and [1.0]))
        writer.finish("finished")
    output = call(tmp_path, "show", config.key).stdout
    assert "accuracy   ▁▁█  20.00 % to 80.00 %, rounds 1 to 4" in output


def test_show_names_the_nearest_key(root: Path) -> None:
    key = RUNS[0].key
    wrong = key[:4] + ("0" if key[4] != "0" else "1") + key[5:8]
    result = call(root, "show", wrong)
    assert isinstance(result.exception, UserError)
    assert f"did you mean {key[:8]!r}" in str(result.exception)


def test_show_refuses_a_beginning_that_several_keys_share(root: Path) -> None:
    keys = [config.key for config in RUNS]
    config = next(c for seed in range(1000) if (c := Config(seed=seed)).key[0] == keys[0][0]
                  and c.key not in keys)  # fmt: skip
    with Store(root).open(config) as writer:
        writer.finish("skipped", "a reason")
    result = call(root, "show", keys[0][0])
    assert isinstance(result.exception, UserError)
    assert keys[0] in str(result.exception) and config.key in str(result.exception)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_export_has_a_row_per_run_with_plan_and_outcome(root: Path) -> None:
    table = {row["key"]: row for row in rows(call(root, "export").stdout)}
    assert set(table) == {config.key for config in RUNS}
    row = table[RUNS[2].key]
    assert (row["algo"], row["source"], row["hyper.lambda"]) == ("fedavg", "standin", "5.0")
    assert (row["rounds"], row["summary.rounds"], row["best.accuracy"]) == ("100", "3", "0.45")
    assert json.loads(row["joining_ratio"]) == [0.5, 1.0]


def test_export_of_rounds_has_a_row_per_round(root: Path) -> None:
    table = rows(call(root, "export", "--rounds", "--algo", "fedavg").stdout)
    assert [float(row["accuracy"]) for row in table] == [c / 20 for c in CORRECT]
    assert json.loads(table[0]["loss"]) == [0.5, "NaN"]
    assert table[0]["extras.PIR"] == "0.25" and table[0]["seconds.total"] == "2.0"


def test_rounds_of_variants_tell_what_the_variants_differ_in(root: Path) -> None:
    with Store(root).open(other := Config(lam=1.0)) as writer:
        writer.append(RoundRecord(1, [0], [1], [10], [0.5]))
        writer.finish("finished")
    table = rows(call(root, "export", "--rounds", "--algo", "fedcp").stdout)
    assert {row["hyper.lambda"] for row in table} == {"1.0", "5.0"}
    assert [row["test_loss"] for row in table if row["key"] == other.key] == ["0.5"]
    assert "rounds" not in table[0]


def test_export_to_a_file_writes_what_it_would_print(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "résultats.csv"
    call(root, "export", "--out", str(out))
    assert out.read_text(encoding="utf-8") == call(root, "export").stdout


def test_export_to_an_impossible_place_is_one_sentence(root: Path) -> None:
    out = Store(root).folder(RUNS[0]) / "config.json" / "x.csv"
    result = call(root, "export", "--out", str(out))
    assert isinstance(result.exception, UserError) and "cannot write" in str(result.exception)


def test_listing_needs_none_of_the_numerical_libraries(root: Path) -> None:
    script = (
        "import sys\n"
        "from pfl_bench.cli.results import results\n"
        "results(['list', '--results', sys.argv[1]], standalone_mode=False)\n"
        "print({'torch', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"
