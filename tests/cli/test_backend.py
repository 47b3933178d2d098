"""--backend on the command line: what is refused, in one sentence, before anything is started."""

from __future__ import annotations

import importlib.util
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pfl_bench.base.version import install_command
from pfl_bench.cli import main
from pfl_bench.config.options import load_profile
from pfl_bench.reporting.tables.plan import plan_table
from pfl_bench.reporting.tables.reading import load_table
from pfl_bench.store.records import RoundRecord
from pfl_bench.store.store import Store

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="ray is not installed: pip install 'pfl-bench[ray]'",
)
RUN = ("run", "--algo", "fedavg", "--dataset", "mnist", "--fraction", "0.02", "--rounds", "1")


def _call(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--results", "nowhere"])


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--backend", "rays"], "unknown backend 'rays'; did you mean 'ray'?"),
        (["--address", "auto"], "--address goes with --backend ray"),
        (["--gpus", "0.5"], "--gpus goes with --backend ray"),
    ],
)
@pytest.mark.parametrize("command", [("table", "main"), RUN])
def test_a_mistake_is_one_sentence_and_exit_code_2(
    command: tuple[str, ...], arguments: list[str], sentence: str
) -> None:
    result = _call(*command, *arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("command", [("table", "main"), RUN])
def test_without_the_package_the_command_that_installs_it_is_named(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = _call(*command, "--backend", "ray")
    assert result.exit_code == 2
    assert result.output == (
        f"Error: --backend ray needs the package ray; install it with: {install_command('ray')}\n"
    )


@needs_ray
@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:port"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    result = _call(*RUN, "--backend", "ray", "--address", address)
    assert result.exit_code == 2
    assert f"--address cannot be '{address}'; allowed: HOST:PORT" in result.output


@needs_ray
def test_an_address_where_nobody_answers_is_named_at_once() -> None:
    address = f"127.0.0.1:{_free_port()}"
    result = _call(*RUN, "--backend", "ray", "--address", address)
    assert result.exit_code == 2
    assert f"no Ray cluster answers at '{address}'" in result.output


@needs_ray
def test_a_dry_run_on_a_cluster_needs_no_cluster_and_tells_the_time_with_so_many_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(
        "caption: two\nrun: {dataset: mnist, clients: 2, beta: 1}\ncolumns: [{name: only}]\n"
        "rows: [{name: FedAvg, run: {algo: fedavg}}, {name: Local, run: {algo: local}}]\n"
    )
    Path("tiny.yaml").write_text("run: {source: standin, rounds: 8, fraction: 0.02}\n")
    table = ("table", "mine.yaml", "--profile", "tiny.yaml", "--seeds", "2")
    store, profile = Store(Path("nowhere")), load_profile("tiny.yaml")
    plan = plan_table(load_table("mine.yaml"), profile, 2, store, Path("data"))
    with store.open(plan.missing()[0].config) as writer:
        for round in range(1, 9):
            writer.append(RoundRecord(round, [0], [1], [2], [0.1], seconds={"total": 1.5}))
        writer.finish("finished")
    result = _call(*table, "--dry-run", "--backend", "ray", "--jobs", "2")
    assert result.exit_code == 0, result.output
    assert "missing:    2 cells, 3 runs" in result.output
    assert "about 36 s for 3 runs, one at a time" in result.output
    assert "about 24 s with 2 at a time, the longest first" in result.output  # 12 s twice | 12 s
