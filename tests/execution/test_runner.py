"""Runs with the store behind them: stored, resumed, repeated, called off."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from prepared import NAME

from pfl_bench.algorithms.fedavg import FedAvg
from pfl_bench.base.errors import UserError
from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.data.notes import write_note
from pfl_bench.engine.client import Client, Message
from pfl_bench.execution import runner
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.observer import Began, Note, Observer, Round
from pfl_bench.execution.options import Execution, choose_device, default_workers
from pfl_bench.execution.runner import execute
from pfl_bench.models.layers import wide_order
from pfl_bench.store import checkpoint
from pfl_bench.store.folder import checkpoints_in
from pfl_bench.store.records import same_result
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun
from pfl_bench.store.writer import RunWriter

ROUNDS = 6


def configured(folder: Path, hyper: dict[str, Any] | None = None, **chosen: Any) -> RunConfig:
    values = {"dataset": NAME, "clients": 2, "rounds": ROUNDS, "lr": 0.05, "batch_size": 8}
    return configure(Profile("none", "", {}, {}, {}), {**values, **chosen}, hyper or {}, folder)


class Log(Observer):
    """Writes down what it is told; `stop` may raise after a round."""

    def __init__(self, stop: Callable[[int], None] = lambda round: None):
        self.stop = stop
        self.notes: list[str] = []
        self.rounds: list[int] = []
        self.continued_after: int | None = None

    def on_began(self, event: Began) -> None:
        self.continued_after = len(event.earlier)

    def on_round(self, event: Round) -> None:
        self.rounds.append(event.record.round)
        self.stop(event.record.round)

    def on_note(self, event: Note) -> None:
        self.notes.append(event.text)


class Killed(BaseException):
    """Stands for the sudden death of the process: nobody catches it to save anything."""


def after(round: int, error: type[BaseException]) -> Callable[[int], None]:
    def stop(reached: int) -> None:
        if reached == round:
            raise error

    return stop


def cut(
    config: RunConfig, store: Store, options: Execution, round: int, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        execute(config, store, options, Log(after(round, error)))


def assert_same(left: StoredRun, right: StoredRun) -> None:
    pairs = zip(left.records(), right.records(), strict=True)
    assert all(same_result(a, b) for a, b in pairs)
    assert left.summary is not None and right.summary is not None
    for figure in ("status", "reason", "best", "last", "rounds", "bytes_up_per_client"):
        assert left.summary[figure] == right.summary[figure]


@pytest.fixture
def whole(folder: Path, tmp_path: Path) -> StoredRun:
    """The run that nobody interrupted."""
    return execute(configured(folder), Store(tmp_path / "whole"), Execution(folder, workers=1))


def forbid_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    def computed(*_: object, **__: object) -> None:
        raise AssertionError("the run was computed again")

    monkeypatch.setattr(runner, "load_data", computed)


# --- stored results -------------------------------------------------------------------------------


def test_finished_run_holds_every_round_and_how_it_was_made(folder: Path, whole: StoredRun) -> None:
    assert whole.status == "finished"
    assert [record.round for record in whole.records()] == list(range(1, ROUNDS + 1))
    assert whole.summary is not None
    assert whole.summary["device"] == "cpu"
    assert whole.summary["wide_layers"] == wide_order()
    assert len(whole.summary["partition_fingerprint"]) == 16
    assert RunConfig.from_dict(whole.config) == configured(folder)


def test_what_must_be_said_of_the_data_is_kept_with_the_result(
    tmp_path: Path, folder: Path, store: Store, whole: StoredRun
) -> None:
    assert whole.remark == ""
    noted = tmp_path / "noted"
    shutil.copytree(folder, noted)
    write_note(NAME, noted, "toy copy")
    assert execute(configured(noted, seed=5), store, Execution(noted)).remark == "toy copy"


def test_stored_result_is_returned_without_computing(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = execute(configured(folder), store, Execution(folder))
    forbid_computing(monkeypatch)
    assert execute(configured(folder), store, Execution(folder)) == first


def test_stored_result_serves_any_number_of_workers(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = execute(configured(folder), store, Execution(folder, workers=1))
    forbid_computing(monkeypatch)
    assert execute(configured(folder), store, Execution(folder, workers=2, device="cpu")) == first


def test_fresh_repeats_a_stored_run_to_the_same_result(folder: Path, store: Store) -> None:
    first = execute(configured(folder), store, Execution(folder))
    log = Log()
    again = execute(configured(folder), store, Execution(folder, fresh=True), log)
    assert log.rounds == list(range(1, ROUNDS + 1))
    assert_same(first, again)


def test_stored_result_stays_until_its_repetition_is_whole(folder: Path, store: Store) -> None:
    first = execute(configured(folder), store, Execution(folder))
    cut(configured(folder), store, Execution(folder, fresh=True), 3, KeyboardInterrupt)
    assert store.find(configured(folder)) == first


def test_fresh_forgets_a_run_that_was_cut_off(folder: Path, store: Store) -> None:
    cut(configured(folder), store, Execution(folder, checkpoint_every=1), 3, KeyboardInterrupt)
    log = Log()
    execute(configured(folder), store, Execution(folder, fresh=True), log)
    assert log.rounds[0] == 1


def test_impossible_run_is_stored_as_skipped_with_its_reason(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(folder, algo="perfedavg", batch_size=60, setting="iid")
    skipped = execute(config, store, Execution(folder))
    assert skipped.status == "skipped"
    assert skipped.records() == []
    assert skipped.summary is not None
    assert "needs two batches (120 training samples)" in skipped.summary["reason"]
    forbid_computing(monkeypatch)
    assert execute(config, store, Execution(folder)) == skipped


def test_diverged_run_is_kept_with_its_reason(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(folder, lr=1e6, rounds=50)
    diverged = execute(config, store, Execution(folder))
    assert diverged.status == "diverged"
    assert 1 <= len(diverged.records()) < 50
    assert diverged.summary is not None
    assert f"in round {len(diverged.records())}" in diverged.summary["reason"]
    forbid_computing(monkeypatch)
    assert execute(config, store, Execution(folder)) == diverged


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ({"clients": 1000}, "64 samples are too few for 1000 clients"),
        ({"model": "fasttext"}, "'fasttext' reads texts and dataset 'toy' holds images"),
        ({"model": "resnet18"}, "needs images of 3 channels, these have 1"),
    ],
)
def test_refused_run_leaves_no_trace(
    folder: Path, store: Store, chosen: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        execute(configured(folder, **chosen), store, Execution(folder))
    assert list(store.all()) == []


# --- resuming -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_run_killed_at_a_random_round_ends_as_if_it_had_not_been(
    folder: Path, store: Store, whole: StoredRun, seed: int
) -> None:
    round = random.Random(seed).randint(1, ROUNDS - 1)
    options = Execution(folder, checkpoint_every=2)
    cut(configured(folder), store, options, round, Killed)
    log = Log()
    resumed = execute(configured(folder), store, options, log)
    assert_same(whole, resumed)
    assert log.continued_after == (round - 1) // 2 * 2  # the checkpoint comes after the display


def test_run_killed_twice_ends_as_if_it_had_not_been(
    folder: Path, store: Store, whole: StoredRun
) -> None:
    options = Execution(folder, checkpoint_every=1)
    cut(configured(folder), store, options, 2, Killed)
    cut(configured(folder), store, options, 4, Killed)
    assert_same(whole, execute(configured(folder), store, options))


def test_interrupted_run_loses_no_whole_round(folder: Path, store: Store, whole: StoredRun) -> None:
    cut(configured(folder), store, Execution(folder), 4, KeyboardInterrupt)
    log = Log()
    resumed = execute(configured(folder), store, Execution(folder), log)
    assert log.rounds == [5, 6]
    assert_same(whole, resumed)


@pytest.mark.parametrize("hook", ["local_update", "scored"])
def test_interruption_within_a_round_keeps_the_rounds_before(
    folder: Path, store: Store, whole: StoredRun, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    original = getattr(FedAvg, hook)

    def interrupted(self: FedAvg, client: Client, received: Message) -> Any:
        if (client.round, client.index) == (4, 1):
            raise KeyboardInterrupt
        return original(self, client, received)

    with monkeypatch.context() as patch:
        patch.setattr(FedAvg, hook, interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute(configured(folder), store, Execution(folder))
    log = Log()
    resumed = execute(configured(folder), store, Execution(folder), log)
    assert log.rounds == [4, 5, 6]
    assert_same(whole, resumed)


def test_interruption_as_a_run_diverges_changes_nothing(
    folder: Path, store: Store, tmp_path: Path
) -> None:
    config = configured(folder, lr=1e6)
    diverged = execute(config, Store(tmp_path / "undisturbed"), Execution(folder))
    cut(config, store, Execution(folder), len(diverged.records()), KeyboardInterrupt)
    assert_same(diverged, execute(config, store, Execution(folder)))


def test_damaged_checkpoint_starts_the_run_over_and_says_so(
    folder: Path, store: Store, whole: StoredRun
) -> None:
    options = Execution(folder, checkpoint_every=1)
    cut(configured(folder), store, options, 4, Killed)
    for path in store.folder(configured(folder)).glob("checkpoint-*"):
        path.write_bytes(path.read_bytes()[:-100])
    log = Log()
    resumed = execute(configured(folder), store, options, log)
    assert "no checkpoint is usable; the run starts over" in log.notes
    assert log.continued_after == 0
    assert_same(whole, resumed)


Tensors = dict[str, torch.Tensor]
HEAD, OTHER, MODELS = "client/0/head", "client/1/head", "server/models"


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: change(tensors[name])})


def moved(name: str, to: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({to: tensors.pop(name)})


def copied(name: str, to: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({to: tensors[name]})


def without(beginning: str) -> Callable[[Tensors], None]:
    def drop(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(beginning)]:
            del tensors[name]

    return drop


MISFITS = {
    "another type": changed(HEAD, torch.Tensor.double),
    "whole numbers": changed(f"{MODELS}/0", torch.Tensor.long),
    "another shape": changed(HEAD, lambda value: value[:-1]),
    "a longer part of the model": changed(HEAD, lambda value: torch.cat([value, value])),
    "another number of dimensions": changed(f"{MODELS}/1", lambda value: value[None]),
    "NaN": changed(HEAD, lambda value: value * float("nan")),
    "infinity": changed(f"{MODELS}/0", lambda value: torch.full_like(value, float("inf"))),
    "a list for a tensor": moved(HEAD, f"{HEAD}/0"),
    "a dictionary for a tensor": moved(OTHER, f"{OTHER}/#3"),
    "an empty list for a tensor": moved(HEAD, f"{HEAD}/[]"),
    "a dictionary for a list": moved(f"{MODELS}/0", f"{MODELS}/#0"),
    "a list too short": without(f"{MODELS}/1"),
    "a list too long": copied(f"{MODELS}/1", f"{MODELS}/2"),
    "a hole in a list": moved(f"{MODELS}/1", f"{MODELS}/7"),
    "a missing part of the server": without(MODELS),
    "a missing client": without("client/1"),
    "no client": without("client"),
    "a client too many": copied(HEAD, "client/99/head"),
    "a client of no number": copied(HEAD, "client/one/head"),
    "another name": moved(OTHER, "client/1/other"),
    "statistics that nobody has": copied(HEAD, "stats/0"),
    "statistics of the server": copied(HEAD, "server_stats"),
    "no room": moved(HEAD, "cellar/1"),
    "a name that no state can have": copied(HEAD, "server/extra/[5]"),
    "a client that is a tensor": moved(HEAD, "client/1"),
    "a client that is a list": moved(HEAD, "client/1/0"),
    "a client under two spellings": moved(HEAD, f"client/0{HEAD.removeprefix('client/')}"),
    "an empty name": moved(HEAD, f"{HEAD}/"),
}
"""Checkpoints of FedAMP with true seals that are none of this run."""


@pytest.mark.parametrize("kind", MISFITS)
def test_a_sealed_checkpoint_that_does_not_fit_gives_way_to_the_one_before(
    folder: Path, store: Store, kind: str
) -> None:
    options = Execution(folder, checkpoint_every=1)
    config = configured(folder, algo="fedamp", rounds=4)
    cut(config, store, options, 4, Killed)
    newest = checkpoints_in(store.folder(config))[0]
    tensors, envelope = checkpoint.read(newest)
    MISFITS[kind](tensors)
    checkpoint.write(newest, tensors, envelope)
    log = Log()
    resumed = execute(config, store, options, log)
    assert any("checkpoint of round 3 does not fit: " in note for note in log.notes)
    assert any("the run goes on after round 2" in note for note in log.notes)
    assert log.continued_after == 2 and len(resumed.records()) == 4


def test_where_no_checkpoint_fits_the_run_starts_over_and_says_so(
    folder: Path, store: Store, whole: StoredRun
) -> None:
    options, config = Execution(folder, checkpoint_every=1), configured(folder)
    cut(config, store, options, 4, Killed)
    for path in checkpoints_in(store.folder(config)):
        tensors, envelope = checkpoint.read(path)
        checkpoint.write(path, {n: value.double() for n, value in tensors.items()}, envelope)
    log = Log()
    resumed = execute(config, store, options, log)
    assert [n.rpartition("; ")[2] for n in log.notes if "does not fit" in n] == [
        "the run goes on after round 2",
        "the run starts over",
    ]
    assert_same(whole, resumed)


def test_checkpoint_of_a_method_that_keeps_something_else_by_now_starts_the_run_over(
    folder: Path, store: Store, whole: StoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, config = Execution(folder, checkpoint_every=1), configured(folder)
    state = FedAvg.server_state
    with monkeypatch.context() as before:
        before.setattr(
            FedAvg, "server_state", lambda *a: {f"old {k}": v for k, v in state(*a).items()}
        )
        before.setattr(
            FedAvg,
            "download",
            lambda self, server, client: {
                k.removeprefix("old "): v for k, v in server.state.items()
            },
        )
        before.setattr(FedAvg, "aggregate", lambda self, server, uploads: server.state)
        cut(config, store, options, 4, Killed)
    log = Log()
    resumed = execute(config, store, options, log)
    assert any("checkpoint of round 3 does not fit: the server's state" in n for n in log.notes)
    assert log.continued_after == 0
    assert_same(whole, resumed)


def test_one_damaged_checkpoint_costs_only_the_rounds_since_the_one_before(
    folder: Path, store: Store, whole: StoredRun
) -> None:
    options = Execution(folder, checkpoint_every=1)
    cut(configured(folder), store, options, 5, Killed)
    newest = store.folder(configured(folder)) / "checkpoint-4.safetensors"
    newest.write_bytes(b"")
    log = Log()
    resumed = execute(configured(folder), store, options, log)
    assert log.continued_after == 3
    assert any(newest.name in note for note in log.notes)
    assert_same(whole, resumed)


def test_finished_run_keeps_no_checkpoint(folder: Path, store: Store) -> None:
    run = execute(configured(folder), store, Execution(folder, checkpoint_every=1))
    assert not list(run.path.glob("checkpoint-*"))


# --- patience -------------------------------------------------------------------------------------


def test_patience_ends_a_run_that_no_longer_improves(folder: Path, store: Store) -> None:
    config = configured(folder, lr=0, rounds=20, patience=1)
    run = execute(config, store, Execution(folder))
    assert run.status == "finished"
    # The best is round 1; a run that never left its start is given three times the patience.
    assert len(run.records()) == 4


def test_patience_counts_scored_rounds(folder: Path, store: Store) -> None:
    config = configured(folder, lr=0, rounds=20, patience=1, eval_every=3)
    assert len(execute(config, store, Execution(folder)).records()) == 12


def test_patience_remembers_the_rounds_before_an_interruption(folder: Path, store: Store) -> None:
    config = configured(folder, lr=0, rounds=20, patience=1)
    cut(config, store, Execution(folder), 3, KeyboardInterrupt)
    assert len(execute(config, store, Execution(folder)).records()) == 4


def test_interruption_in_the_last_round_of_patience_adds_no_round(
    folder: Path, store: Store
) -> None:
    config = configured(folder, lr=0, rounds=20, patience=1)
    cut(config, store, Execution(folder), 4, KeyboardInterrupt)
    assert len(execute(config, store, Execution(folder)).records()) == 4


# --- when to save ---------------------------------------------------------------------------------


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def saved_rounds(
    folder: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    *,
    round_seconds: float,
    save_seconds: float,
    rounds: int,
) -> list[int]:
    """After which rounds a checkpoint is saved, if rounds and saving take so long."""
    clock, saved = Clock(), []

    def slow_round(_: int) -> None:
        clock.now += round_seconds

    def slow_save(self: RunWriter, round: int, tensors: object, meta: object) -> None:
        clock.now += save_seconds
        saved.append(round)

    monkeypatch.setattr(runner, "time", clock)
    monkeypatch.setattr(RunWriter, "save_checkpoint", slow_save)
    config = configured(folder, rounds=rounds, eval_every=rounds)
    execute(config, store, Execution(folder), Log(slow_round))
    return saved


def test_a_timed_run_continues_only_what_was_timed(folder: Path, store: Store) -> None:
    config, timed = configured(folder), Execution(folder, timed=True)
    cut(config, store, Execution(folder), 2, KeyboardInterrupt)
    cut(config, store, timed, 3, KeyboardInterrupt)
    log = Log()
    ended = execute(config, store, timed, log)
    assert log.continued_after == 3 and log.rounds == [4, 5, 6]
    assert ended.summary is not None and ended.summary["timed"]


def test_a_timed_run_begins_anew_where_others_had_the_machine_too(
    folder: Path, store: Store
) -> None:
    config = configured(folder)
    cut(config, store, Execution(folder), 2, KeyboardInterrupt)
    log = Log()
    ended = execute(config, store, Execution(folder, timed=True), log)
    assert log.continued_after == 0 and log.rounds == list(range(1, ROUNDS + 1))
    assert ended.summary is not None
    assert ended.summary["provenance"]["resumed_after_round"] is None


def test_checkpoints_come_about_every_ten_seconds(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_rounds(folder, store, monkeypatch, round_seconds=4, save_seconds=0.05, rounds=10)
    assert saved == [3, 6, 9]


def test_slow_checkpoints_come_so_seldom_that_they_cost_a_hundredth(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_rounds(folder, store, monkeypatch, round_seconds=20, save_seconds=1, rounds=14)
    assert saved == [1, 6, 11]


def test_last_round_needs_no_checkpoint(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_rounds(folder, store, monkeypatch, round_seconds=100, save_seconds=0, rounds=3)
    assert saved == [1, 2]


# --- where to compute -----------------------------------------------------------------------------


def test_unknown_device_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match="unknown device 'cudda'; did you mean 'cuda'"):
        choose_device("cudda")


def test_absent_device_is_refused_with_those_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="'cuda' is not on this machine; there is: cpu"):
        choose_device("cuda")


@pytest.mark.parametrize(("present", "chosen"), [(True, "cuda"), (False, "cpu")])
def test_auto_takes_an_accelerator_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, present: bool, chosen: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: present)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    assert choose_device("auto") == chosen


def test_there_is_a_worker_for_each_core_the_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1, 4, 5}, raising=False)
    assert default_workers() == 3
