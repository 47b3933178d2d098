"""TensorBoard's view of a run: every round once, with the figures of the store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from madestore import made_record
from prepared import NAME

from pfl_bench.base.errors import UserError
from pfl_bench.base.version import install_command
from pfl_bench.cli import main
from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.many import run_all
from pfl_bench.execution.observer import Observer, Round
from pfl_bench.execution.options import Execution
from pfl_bench.execution.request import Request
from pfl_bench.execution.runner import execute
from pfl_bench.execution.trackers.tracker import scalars
from pfl_bench.store.records import RoundRecord, same_result
from pfl_bench.store.store import Store

events = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator",
    reason="the extra tensorboard is not installed",
)

ROUNDS = 4


@pytest.fixture
def config(folder: Path) -> RunConfig:
    chosen = {"dataset": NAME, "clients": 2, "rounds": ROUNDS, "lr": 0.05, "batch_size": 8}
    return configure(Profile("none", "", {}, {}, {}), chosen, {}, folder)


@pytest.fixture
def options(folder: Path, tmp_path: Path) -> Execution:
    board = f"tensorboard:{tmp_path / 'board'}"
    return Execution(folder, workers=1, checkpoint_every=1, track=(board,))


def place(options: Execution) -> Path:
    return Path(options.track[0].removeprefix("tensorboard:"))


def shown(
    options: Execution, store: Store, config: RunConfig
) -> dict[str, list[tuple[int, float]]]:
    """The curves that TensorBoard would draw."""
    board = events.EventAccumulator(str(place(options) / store.folder(config).name))
    board.Reload()
    return {
        name: [(point.step, point.value) for point in board.Scalars(name)]
        for name in board.Tags()["scalars"]
    }


def expected(records: Sequence[RoundRecord]) -> list[tuple[int, float]]:
    return [(r.round, pytest.approx(r.accuracy, rel=1e-6)) for r in records]


def logged(
    config: RunConfig, store: Store, options: Execution, observer: Observer | None = None
) -> list[RoundRecord]:
    """The records of the run, stored or made now, and written for TensorBoard."""
    return run_all([Request(config)], store, options, observer).runs[config.request].records()


class Dying(Observer):
    """Ends the run after a round, as the death of the process would."""

    def __init__(self, round: int, error: type[BaseException]):
        self.round, self.error = round, error

    def on_round(self, event: Round) -> None:
        if event.record.round == self.round:
            raise self.error


class Killed(BaseException):
    pass


def test_every_round_is_shown_with_the_figures_of_the_store(
    config: RunConfig, store: Store, options: Execution
) -> None:
    records = logged(config, store, options)
    curves = shown(options, store, config)
    assert curves["accuracy/test"] == expected(records)
    for name, read in {
        "loss/train": lambda r: r.train_loss,
        "loss/test": lambda r: (
            sum(x * n for x, n in zip(r.loss, r.total, strict=True)) / sum(r.total)
        ),
        "traffic/MB up": lambda r: r.bytes_up / 1e6,
        "traffic/MB down": lambda r: r.bytes_down / 1e6,
        "seconds/total": lambda r: r.seconds["total"],
    }.items():
        assert [value for _, value in curves[name]] == pytest.approx(
            [read(r) for r in records], rel=1e-6
        )


@pytest.mark.parametrize("error", [KeyboardInterrupt, Killed])
def test_a_resumed_run_shows_every_round_once(
    config: RunConfig, store: Store, options: Execution, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        logged(config, store, options, Dying(2, error))
    records = logged(config, store, options)
    assert shown(options, store, config)["accuracy/test"] == expected(records)


def test_rounds_from_before_the_option_was_given_are_shown_too(
    config: RunConfig, store: Store, options: Execution
) -> None:
    with pytest.raises(KeyboardInterrupt):
        execute(config, store, options, Dying(2, KeyboardInterrupt))
    records = logged(config, store, options)
    assert shown(options, store, config)["accuracy/test"] == expected(records)


def test_a_stored_result_is_shown_without_computing_it(
    config: RunConfig, store: Store, options: Execution
) -> None:
    records = execute(config, store, options).records()
    for _ in range(2):
        logged(config, store, options, Dying(1, AssertionError))
        assert shown(options, store, config)["accuracy/test"] == expected(records)


def test_watching_changes_no_result(
    config: RunConfig, store: Store, options: Execution, tmp_path: Path
) -> None:
    watched = logged(config, store, options)
    alone = execute(config, Store(tmp_path / "alone"), options).records()
    assert all(same_result(a, b) for a, b in zip(watched, alone, strict=True))


def test_recorded_series_are_shown_where_they_are_single_numbers() -> None:
    record = made_record(1, [25, 50])
    extras: dict[str, Any] = {
        "convergence": {"after": {"accuracy": 0.5}},
        "pir": [1, 2],
        "on": True,
    }
    figures = scalars(RoundRecord(**{**vars(record), "extras": extras}))
    assert figures["recorded/convergence/after/accuracy"] == 0.5
    assert not [name for name in figures if "pir" in name or "/on" in name]
    assert figures["clients/lowest accuracy"] == 0.5 and figures["accuracy/test"] == 0.75


def test_a_round_that_was_not_scored_has_no_accuracy() -> None:
    assert not [name for name in scalars(RoundRecord(1, [0])) if "accuracy" in name]


def test_a_missing_extra_is_one_sentence_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    for command in (("run",), ("table", "main")):
        options = ("--results", str(tmp_path / "results"), "--tensorboard", str(tmp_path))
        result = CliRunner().invoke(main, [*command, *options])
        assert result.exit_code == 2 and result.output.count("\n") == 1
        assert install_command("tensorboard") in result.output
    assert not (tmp_path / "results").exists()


def test_a_place_that_cannot_be_written_is_a_users_mistake(
    config: RunConfig, store: Store, options: Execution
) -> None:
    place(options).write_text("a file")
    with pytest.raises(UserError, match="cannot write to"):
        logged(config, store, options)


def test_a_table_writes_each_of_its_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(
        f"run: {{dataset: {NAME}, clients: 2, setting: iid}}\ncolumns: [{{name: toy}}]\n"
        "rows: [{name: A, run: {algo: fedavg}}, {name: B, run: {algo: local}}]\n"
    )
    Path("tiny.yaml").write_text("run: {rounds: 2, source: real}\n")
    options = ("--profile", "tiny.yaml", "--seeds", "1", "--data-dir", str(folder))
    result = CliRunner().invoke(main, ["table", "mine.yaml", *options, "--tensorboard", "board"])
    assert result.exit_code == 0, result.output
    names = {run.path.name for run in Store(Path("results")).all()}
    assert len(names) == 2 and {path.name for path in Path("board").iterdir()} == names
