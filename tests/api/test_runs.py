"""pfl-bench from Python: runs, results, the store, tables, and what a session is shown."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

import pfl_bench as pfl
from pfl_bench.api.progress import Lines
from pfl_bench.store.stored_run import read_run

SMALL = {
    "dataset": "mnist", "source": "standin", "fraction": 0.2, "clients": 3, "beta": 1.0,
    "rounds": 2,
}  # fmt: skip
TABLE = """
caption: mine
run: {dataset: mnist, fraction: 0.2, clients: 3, beta: 1.0, rounds: 2, source: standin}
rows: [{name: FedAvg, run: {algo: fedavg}}, {name: FedPer, run: {algo: fedper}}]
columns: [{name: one}]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api") / "results"


@pytest.fixture(scope="module")
def fedper(results: Path) -> pfl.Result:
    return pfl.run(algo="fedper", results=results, workers=1, progress=False, **SMALL)


def test_importing_the_package_loads_no_numerical_library() -> None:
    code = "import sys, pfl_bench; print(sorted({'torch', 'pandas', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_curve_has_the_stored_rounds(fedper: pfl.Result) -> None:
    records = read_run(fedper.path).records()
    assert list(fedper.curve["round"]) == [1, 2]
    assert list(fedper.curve["accuracy"]) == [record.accuracy for record in records]
    assert fedper.best == max(fedper.curve["accuracy"])
    assert fedper.last == fedper.curve["accuracy"].iloc[-1]


def test_the_counts_of_clients_give_the_curve(fedper: pfl.Result) -> None:
    sums = fedper.clients.groupby("round")[["correct", "total"]].sum()
    assert list(sums["correct"] / sums["total"]) == list(fedper.curve["accuracy"])


def test_the_result_is_that_of_the_command(fedper: pfl.Result, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from pfl_bench.cli import main

    flags = [f"--{name}={value}" for name, value in SMALL.items()]
    words = ["run", "--algo", "fedper", *flags, "--results", str(tmp_path), "--quiet"]
    assert CliRunner().invoke(main, words).exit_code == 0
    [run] = pfl.Store(tmp_path).runs()
    assert run.path.name == fedper.path.name
    assert list(run.curve["accuracy"]) == list(fedper.curve["accuracy"])


def test_a_stored_result_is_taken_and_says_nothing(
    fedper: pfl.Result, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = pfl.run("fedper", results=results, **SMALL)
    assert again.summary == fedper.summary
    assert capsys.readouterr() == ("", "")


def test_a_session_keeps_its_threads(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        pfl.run("local", results=tmp_path, workers=1, progress=False, **{**SMALL, "rounds": 1})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_store_answers_by_configuration_in_any_spelling(
    fedper: pfl.Result, results: Path
) -> None:
    store = pfl.Store(results)
    assert [run.path for run in store.runs(dataset="MNIST", seed=0)] == [fedper.path]
    assert store.runs(algo=["fedavg", "fedper"], status="finished")
    assert store.runs(seed=7) == []
    frame = store.frame(algo="fedper")
    assert frame["best.accuracy"].tolist() == [fedper.best]


def test_a_setting_that_no_run_has_is_named_with_its_neighbour(
    fedper: pfl.Result, results: Path
) -> None:
    with pytest.raises(pfl.UserError, match="dataset"):
        pfl.Store(results).runs(datset="mnist")
    with pytest.raises(pfl.UserError, match="'beta'"):
        pfl.run("fedper", bete=0.1)


def test_the_page_names_what_there_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bpfl\.(\w+)", page))
    assert {"run", "table", "Store", "register"} <= named <= set(dir(pfl))


def test_a_table_is_a_frame(fedper: pfl.Result, results: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(TABLE)
    bare = pfl.table(str(file), results=results, seeds=1, render_only=True)
    assert bare.frame["status"].tolist() == ["not run", "done"]
    made = pfl.table(str(file), results=results, seeds=1, workers=1, progress=False)
    assert isinstance(made.frame, pd.DataFrame)
    assert made.values.loc["FedPer", "one"] == pytest.approx(100 * (fedper.best or 0))
    assert list(made.values.index) == ["FedAvg", "FedPer"]
    assert f"{made.values.loc['FedPer', 'one']:.2f}" in made._repr_markdown_()


def test_a_table_refuses_settings_that_are_not_for_all_cells() -> None:
    with pytest.raises(pfl.UserError, match="validation"):
        pfl.table("main", valdation=0.2)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("overwrites", [False, True])
def test_progress_ends_in_one_line_a_run(
    overwrites: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = _Terminal() if overwrites else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    result = pfl.run("local", results=tmp_path, workers=1, **SMALL)
    text = stream.getvalue()
    assert text.endswith("\n") and text.count("\n") == 1
    last = text.rstrip().rsplit("\r", 1)[-1]
    assert f"best accuracy {result.best:.2%}" in last
    assert ("\r" in text) is overwrites
    assert ("round 1/2" in text) is overwrites


def test_a_notebook_gets_its_lines_where_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    assert Lines()._stream is stream


@pytest.fixture(scope="module")
def kept(results: Path) -> pfl.Result:
    return pfl.run("fedcp", results=results, keep_model=True, progress=False, **SMALL)


def test_a_kept_model_scores_what_the_last_round_did(kept: pfl.Result) -> None:
    last = kept.stored.records()[-1]
    assert last.correct is not None and last.total is not None
    for client, (correct, total) in enumerate(zip(last.correct, last.total, strict=True)):
        model = kept.model(client)
        x, y = model.samples()
        assert (int((model(x).argmax(1) == y).sum()), len(y)) == (correct, total)


def test_models_of_clients_are_their_own(kept: pfl.Result) -> None:
    first, second = (kept.model(client).state_dict() for client in (0, 1))
    assert torch.equal(first["parts.cpn.0.weight"], second["parts.cpn.0.weight"])
    assert not torch.equal(first["parts.head.weight"], second["parts.head.weight"])


def test_a_model_that_is_asked_for_later_is_kept_and_the_result_stays(tmp_path: Path) -> None:
    plain = pfl.run("fedper", results=tmp_path, progress=False, **SMALL)
    with pytest.raises(pfl.UserError, match="is not kept; the same run with keep_model=True"):
        plain.model(0)
    before = (plain.path / "rounds.jsonl").read_bytes(), (plain.path / "summary.json").read_bytes()
    again = pfl.run("fedper", results=tmp_path, keep_model=True, progress=False, **SMALL)
    after = (again.path / "rounds.jsonl").read_bytes(), (again.path / "summary.json").read_bytes()
    assert (again.path, after) == (plain.path, before)
    assert pfl.Store(tmp_path).run(again.stored.key[:6]).model(0).samples()[0].shape[0] > 0


def test_a_client_that_there_is_not_has_no_model(kept: pfl.Result) -> None:
    with pytest.raises(pfl.UserError, match="client cannot be 3; allowed: 0 to 2"):
        kept.model(3)
