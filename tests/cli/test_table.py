"""`pfl-bench table` as a user meets it: planned, run, killed, stopped, continued, rendered."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from commands import started, wait_until
from smalltables import loaded_plugins

from pfl_bench.cli import Commands
from pfl_bench.cli.table import table
from pfl_bench.cli.views.filling import Filling
from pfl_bench.cli.views.table import SILENT_SECONDS, Countdown, grid, label, watch_table
from pfl_bench.config.options import load_profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.estimates import Pace
from pfl_bench.execution.observer import Began, Round
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.execution.worker import STOP_SECONDS
from pfl_bench.reporting.figures import tablecurves
from pfl_bench.reporting.tables.plan import TablePlan, plan_table
from pfl_bench.reporting.tables.reading import load_table
from pfl_bench.store.records import RoundRecord, same_result
from pfl_bench.store.store import Store

SPEC = """
caption: two ways to deal MNIST
run: {dataset: mnist, clients: 2}
columns:
  - {name: skewed, run: {beta: 1}}
  - {name: even, run: {beta: 5}}
rows:
  - {name: FedAvg, run: {algo: fedavg}}
  - {name: Meta, run: {algo: perfedavg, batch_size: 100}}
"""
PROFILE = "run: {source: standin, rounds: 8, fraction: 0.02}\n"
COMMAND = (
    "from pfl_bench.cli import Commands\n"
    "from pfl_bench.cli.table import table\n"
    "Commands(commands=[table])()\n"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a table and a profile of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("mine.yaml").write_text(SPEC)
    Path("attack.yaml").write_text(f"metric: psnr{SPEC}")
    Path("tiny.yaml").write_text(PROFILE)
    return tmp_path


def _call(*arguments: str) -> Result:
    return CliRunner().invoke(Commands(commands=[table]), ["table", *arguments])


def _mine(*arguments: str) -> Result:
    return _call("mine.yaml", "--profile", "tiny.yaml", "--seeds", "2", *arguments)


def _plan(seeds: int = 2) -> TablePlan:
    profile = load_profile("tiny.yaml")
    return plan_table(load_table("mine.yaml"), profile, seeds, Store(Path("results")), Path("data"))


def _records(store: Store) -> dict[str, list[RoundRecord]]:
    return {run.key: run.records() for run in store.all() if run.is_final}


def _keep_all(store: Store) -> dict[str, list[RoundRecord]]:
    """Run the whole table in this process; its records."""
    for run in _plan().missing():
        execute(run.config, store, Execution(Path("data"), workers=1))
    return _records(store)


def _is_same(found: dict[str, list[RoundRecord]], expected: dict[str, list[RoundRecord]]) -> bool:
    return found.keys() == expected.keys() and all(
        len(found[key]) == len(expected[key]) and all(map(same_result, found[key], expected[key]))
        for key in expected
    )


# --- without training -----------------------------------------------------------------------------


def test_a_dry_run_counts_what_is_stored_missing_and_impossible_and_stores_nothing() -> None:
    output = _mine("--dry-run").output
    assert "stored:     0 of 4 cells whole, 0 results in all" in output
    assert "missing:    2 cells, 4 runs" in output
    assert "impossible: 2 cells" in output
    assert "Meta, even: Per-FedAvg needs two batches (200 training samples)" in output
    assert "unknown until measured for 4 runs" in output
    assert not Path("results").exists()


def test_a_dry_run_estimates_the_time_from_stored_rounds() -> None:
    store = Store(Path("results"))
    run = _plan().missing()[0]
    with store.open(run.config) as writer:
        for round in range(1, 9):
            writer.append(RoundRecord(round, [0], [1], [2], [0.1], seconds={"total": 1.5}))
        writer.finish("finished")
    output = _mine("--dry-run", "--jobs", "2").output
    assert "missing:    2 cells, 3 runs" in output
    assert "about 36 s for 3 runs" in output  # 3 runs × 8 rounds × 1.5 s
    assert "about 24 s with 2 at a time, if each keeps that pace" in output  # 12 s twice | 12 s


def test_a_dry_run_tells_of_results_on_other_data_than_those_here() -> None:
    store = Store(Path("results"))
    config = replace(_plan().missing()[0].config, data_fingerprint="theirs")
    with store.open(config) as writer:
        writer.finish("finished")
    output = _mine("--dry-run").output
    assert "stored:     0 of 4 cells whole, 0 results in all" in output
    assert "elsewhere:  1 more results are from other data" in output


def test_rendering_only_shows_what_is_stored_and_never_trains() -> None:
    store = Store(Path("results"))
    cell = _plan().cells["FedAvg", "even"]
    for config, correct in zip(cell.configs, (4, 6), strict=True):
        with store.open(config) as writer:
            writer.append(RoundRecord(1, [0], [correct], [10], [0.1]))
            writer.finish("finished")
    result = _mine("--render-only")
    assert result.exit_code == 0
    assert "50.00 ± 14.14" in result.output
    assert len(list(store.all())) == 2


def test_the_command_under_a_table_names_profile_and_plugins_as_they_were_typed() -> None:
    Path("my files").mkdir()
    Path("my files/tiny.yml").write_text(PROFILE)
    with loaded_plugins(Path("my files"), {"twin": "pass"}):
        files = ("--profile", "my files/tiny.yml", "--plugin", "my files/twin.py")
        result = _call("mine.yaml", "--seeds", "1", "--render-only", *files)
    expected = (
        "pfl-bench table mine.yaml --plugin 'my files/twin.py' --profile 'my files/tiny.yml' "
        "--seeds 1"
    )
    assert f"Command: {expected}" in " ".join(result.output.split())


def test_the_algorithm_of_a_plugin_is_a_row_below_the_others_unless_rows_are_named(
    tmp_path: Path,
) -> None:
    with loaded_plugins(tmp_path, {"twin": "pass"}):
        whole = _mine("--dry-run", "--plugin", "twin.py").output
        some = _mine("--dry-run", "--plugin", "twin.py", "--rows", "fedavg").output
        named = _mine("--dry-run", "--plugin", "twin.py", "--rows", "twin").output
    assert re.findall(r"^ (\w+) +\S+ +\S+ *$", whole, re.M) == ["FedAvg", "Meta", "Own"]
    assert "Own" not in some and "FedAvg" in some
    assert "Own" in named and "FedAvg" not in named


def _finish(store: Store, config: RunConfig, correct: int) -> None:
    with store.open(config) as writer:
        writer.append(RoundRecord(1, [0], [correct], [10], [0.1]))
        writer.finish("finished")


def test_a_watched_table_shows_who_computes_what_and_what_has_come() -> None:
    store = Store(Path("results"))
    seen = Filling(_plan(), store)
    first, second, *others = (run.config for run in seen.plan.missing())
    assert seen.look()
    assert "0 of 8 missing runs have come; nobody computes one now" in str(seen)
    with store.open(first) as writer:
        writer.append(RoundRecord(1, [0], [5], [10], [0.1]))
        _finish(store, second, 4)
        assert seen.look()
        assert "1 of 8 missing runs have come" in str(seen)
        assert re.search(r"FedAvg, \w+, seed 0: round 1/8", str(seen))
        writer.finish("finished")
    for config in others:
        _finish(store, config, 6)
    assert not seen.look()
    assert not seen.plan.missing()


def test_watching_ends_with_the_whole_table_and_computes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store(Path("results"))
    configs = [run.config for run in _plan().missing()]
    naps: list[float] = []

    def others_work(seconds: float) -> None:
        naps.append(seconds)
        _finish(store, configs.pop(), 5)

    monkeypatch.setattr("pfl_bench.cli.views.filling.sleep", others_work)
    result = _mine("--watch")
    assert result.exit_code == 0, result.output
    assert len(naps) == 8 and "50.00 ± 0.00" in result.stdout
    assert "7 of 8 missing runs have come" in result.stderr
    assert _mine("--watch", "--dry-run").exit_code == 2


def test_another_score_is_shown_named_and_kept_beside_the_paper_s(tmp_path: Path) -> None:
    _keep_all(Store(Path("results")))
    best = _mine("--render-only", "--out", "out")
    loss = _mine("--render-only", "--out", "out", "--score", "loss")
    assert (best.exit_code, loss.exit_code) == (0, 0)
    assert {"mine.md", "mine-loss.md"} <= {path.name for path in Path("out").iterdir()}
    text = Path("out/mine-loss.md").read_text()
    assert "Here: test loss after the last round." in text and "--score loss" in text
    assert "cross-entropy after the last round" in text and "paper" not in text.split("Scoring")[0]


def test_several_scores_give_each_the_table_that_it_gives_alone(tmp_path: Path) -> None:
    _keep_all(Store(Path("results")))
    together = _mine("--render-only", "--out", "all", "--score", "best,loss,best, late")
    assert together.exit_code == 0
    alone = [_mine("--render-only", "--out", "out", "--score", s) for s in ("best", "loss", "late")]
    assert together.stdout == "".join(one.stdout for one in alone)
    files = {path.name for path in Path("all").iterdir()}
    assert files == {path.name for path in Path("out").iterdir()}
    for name in files:
        assert Path("all", name).read_bytes() == Path("out", name).read_bytes()


def test_rows_and_columns_restrict_the_table() -> None:
    output = _mine("--dry-run", "--rows", "fedavg", "--columns", "even").output
    assert "missing:    1 cells, 2 runs" in output


def test_the_list_says_how_much_of_each_table_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    # By name, because the package has a command called table in the module's place.
    module = importlib.import_module("pfl_bench.cli.table")
    monkeypatch.setattr(module, "table_names", lambda: ["mine.yaml"])
    config = _plan().missing()[0].config
    with Store(Path("results")).open(config) as writer:
        writer.finish("finished")
    output = _call("list", "--seeds", "2", "--profile", "tiny.yaml").output
    assert "mine.yaml     1 of    8 runs stored ( 12%)  two ways to deal MNIST" in output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mian"], "unknown table 'mian'; did you mean 'main'?"),
        (["mine.yaml", "--rows", "fedavgg"], "unknown row 'fedavgg'"),
        (["mine.yaml", "--profile", "paper"], "pfl-bench data prepare mnist"),
        (["mine.yaml", "--data-dir", "nowhere"], "pfl-bench data prepare mnist"),
        (["mine.yaml", "--dry-run", "--render-only"], "exclude each other"),
        (["list", "--rows", "fedavg"], "--rows does not go with `table list`"),
        (["mine.yaml", "--attack", "victims=1"], "which shows no attack"),
        (["list", "--attack", "victims=1"], "--attack does not go with `table list`"),
        (["list", "--score", "last"], "--score does not go with `table list`"),
        (["mine.yaml", "--score", "lost"], "unknown score 'lost'; did you mean 'loss'?"),
        (["mine.yaml", "--score", "late,lost"], "unknown score 'lost'; did you mean 'loss'?"),
        (["mine.yaml", "--score", ""], "--score cannot be ''"),
        (["mine.yaml", "--columns", ""], "--columns cannot be ''; allowed: names separated by"),
        (["mine.yaml", "--rows", "fedavg", "--rows", ","], "--rows cannot be ','"),
        (["overhead", "--score", "last"], "which shows no accuracy"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    result = _call(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_the_training_runs_under_an_attack_can_be_planned() -> None:
    result = _call("attack.yaml", "--profile", "tiny.yaml", "--seeds", "1", "--dry-run")
    assert result.exit_code == 0
    assert "missing:    2 cells, 2 runs" in result.output


# --- the view -------------------------------------------------------------------------------------


def _grid_text(plan: TablePlan, running: dict[tuple[str, str], str]) -> list[str]:
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as capture:
        console.print(grid(plan, running))
    return capture.get().splitlines()


def test_the_grid_shows_means_counts_and_what_is_running() -> None:
    store = Store(Path("results"))
    config = _plan().cells["FedAvg", "even"].configs[0]
    with store.open(config) as writer:
        writer.append(RoundRecord(1, [0], [3], [8], [0.1]))
        run = writer.finish("finished")
    lines = _grid_text(_plan().with_run(config, run), {("FedAvg", "skewed"): "40%"})
    row = next(line for line in lines if "FedAvg" in line)
    assert row.split() == ["FedAvg", "0/2", "40%", "37.50", "1/2"]


def test_time_left_follows_from_what_was_done_since_the_first_run_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("pfl_bench.cli.views.table.time.monotonic", lambda: now[0])
    configs = [run.config for run in _plan(seeds=5).missing()[:10]]
    countdown = Countdown(configs, Pace())
    assert countdown.seconds_left() is None
    now[0] += 50  # a process starts
    countdown.begin()
    now[0] += 6
    countdown.advance(configs[0], 0.5)
    # Half a run of ten took 6 s, so that nine and a half take 19 times as long.
    assert countdown.seconds_left() == pytest.approx(19 * 6)


def test_in_a_pipe_a_long_silence_is_broken_by_what_is_under_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("pfl_bench.cli.views.table.time.monotonic", lambda: now[0])
    plan = _plan()
    one, other = plan.missing()[:2]
    with watch_table(plan, Pace()) as display:
        for run in (one, other):
            display.tell(Began(run.config))
        for _ in range(4):
            now[0] += SILENT_SECONDS / 3
            for run in (one, other):
                display.tell(Round(run.config, RoundRecord(1, [0])))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2  # at the first round, and after the silence
    assert f"{label(one)}: round 1/" in lines[1]
    assert f"{label(other)}: round 1/" in lines[1]
    assert "left]" in lines[1]


# --- running --------------------------------------------------------------------------------------


def test_a_table_is_run_rendered_and_written_and_then_taken_from_the_store() -> None:
    first = _mine("--out", "made")
    assert first.exit_code == 0
    assert first.stderr.count("seed") >= 8
    assert "Meta, even, seed 0: skipped, Per-FedAvg needs two batches" in first.stderr
    assert {"mine.md", "mine.tex", "mine.csv"} <= {path.name for path in Path("made").iterdir()}
    again = _mine()
    assert "seed 0" not in again.stderr
    assert not _plan().missing()


def test_the_curves_behind_a_table_are_drawn_a_line_per_cell_that_has_run(folder: Path) -> None:
    store = Store(Path("results"))
    for config in _plan().cells["FedAvg", "even"].configs:
        with store.open(config) as writer:
            for round in (1, 2, 3):
                writer.append(RoundRecord(round, [0], [round], [8], [0.1]))
            writer.finish("finished")
    found = tablecurves.lines(_plan())
    assert {line: [m.title for m in methods] for line, methods in found.items()} == {
        "even": ["FedAvg"]
    }
    assert [len(trial.records) for trial in found["even"][0].trials] == [3, 3]
    drawn = _mine("--render-only", "--out", "made", "--curves")
    assert drawn.exit_code == 0, drawn.output
    assert [path.name for path in sorted(Path("made").glob("*curves*"))] == [
        "mine-curves-even.png",
        "mine-curves-even.svg",
    ]


def test_every_line_has_a_file_of_its_own_whose_name_any_disk_takes() -> None:
    several = ["a-b-3", "a b", "a-b", "λ" * 60, "λ" * 61, "→", "../x"]
    names = list(tablecurves.file_names(several).values())
    assert len(set(names)) == len(several)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]{,89}", name) for name in names)


def test_curves_that_cannot_be_drawn_are_refused() -> None:
    assert "there is none" in _mine("--curves").stderr
    refused = _call("attack.yaml", "--profile", "tiny.yaml", "--out", "made", "--curves")
    assert refused.exit_code == 2
    assert "--curves is for tables of accuracy; attack shows something else" in refused.stderr


def test_runs_that_failed_are_named_at_the_end_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(plan: TablePlan, *_: object) -> tuple[TablePlan, dict[str, str]]:
        return plan, {plan.missing()[0].config.request: "ArithmeticError: no such luck"}

    monkeypatch.setattr("pfl_bench.reporting.tables.plan.run_missing", fail)
    result = _mine()
    assert result.exit_code == 1
    assert result.stderr.endswith(
        "1 run(s) failed:\n  FedAvg, skewed, seed 0: ArithmeticError: no such luck\n"
    )


@contextlib.contextmanager
def _started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a session of its own, like one that a user started in a terminal."""
    command = [sys.executable, "-c", COMMAND, "table", "mine.yaml", "--profile", "tiny.yaml"]
    with started(*command, "--seeds", "2", *arguments) as process:
        yield process


def _has_begun() -> bool:
    return any(path.stat().st_size for path in Path("results").glob("*/rounds.jsonl"))


def _is_empty(group: int) -> bool:
    """Whether no process of the group is left, zombies of other parents aside."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    states = (_state(path, group) for path in Path("/proc").glob("[0-9]*/stat"))
    return all(state in (None, "Z") for state in states)


def _state(stat: Path, group: int) -> str | None:
    try:
        state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return None
    return state if int(its_group) == group else None


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@needs_proc
def test_killed_half_way_and_called_again_the_results_are_whole_and_the_same(folder: Path) -> None:
    expected = _keep_all(Store(folder / "expected"))
    with _started() as process:
        wait_until(_has_begun)
        os.killpg(process.pid, signal.SIGKILL)
    assert _plan().missing()
    assert _mine().exit_code == 0
    assert _is_same(_records(Store(Path("results"))), expected)


@needs_proc
def test_ctrl_c_ends_every_process_at_once_and_says_how_to_continue() -> None:
    with _started("--jobs", "2") as process:
        beginning = wait_until(_has_begun)
        os.killpg(process.pid, signal.SIGINT)
        seconds = wait_until(lambda: process.poll() is not None and _is_empty(process.pid))
        assert process.stderr is not None
        message = process.stderr.read()
    assert process.returncode == 130
    assert seconds < STOP_SECONDS + beginning  # as slow as the machine is at this moment
    assert "The same command continues where it left off" in message
    assert "Traceback" not in message


@needs_proc
def test_workers_do_not_outlive_a_command_that_was_killed() -> None:
    with _started() as process:
        wait_until(_has_begun)
        process.kill()
        process.wait()
        wait_until(lambda: _is_empty(process.pid), seconds=10)
