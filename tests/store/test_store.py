"""The store: what is found is whole, what was interrupted resumes, what is damaged is noticed."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.base.errors import UserError
from pfl_bench.store import provenance
from pfl_bench.store.folder import RunBusy
from pfl_bench.store.records import (
    DamagedError,
    RoundRecord,
    read_lines,
    same_result,
    seal,
    summarise,
    unseal,
)
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun, read_run
from pfl_bench.store.writer import RunWriter

ROUNDS = 9
CHECKPOINT_EVERY = 2


SETTINGS: dict[str, Any] = {
    "algo": "fedcp", "hyper": {}, "dataset": "cifar10", "source": "real", "clients": 3,
    "data_fingerprint": "0123456789abcdef", "setting": "practical", "beta": 0.1, "model": "cnn",
    "batch_size": 10, "lr": 0.005,
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """What the store knows of a configuration."""

    seed: int = 0
    slug: str = "fedcp-cifar10-practical0.1-s0"
    rounds: int = ROUNDS
    patience: int | None = None

    def to_dict(self) -> dict[str, Any]:
        ends = {"rounds": self.rounds, "patience": self.patience}
        return {**SETTINGS, "seed": self.seed, **ends}

    @property
    def key(self) -> str:
        course = {"algo": "fedcp", "seed": self.seed}
        return hashlib.sha256(json.dumps(course).encode()).hexdigest()[:16]


CONFIG = Config()


def record_of(round: int, state: torch.Tensor) -> RoundRecord:
    correct = [int(value) % 10 for value in state]
    return RoundRecord(
        round=round,
        joined=[0, 2],
        correct=correct,
        total=[10] * len(correct),
        loss=[float(value) / 7 for value in state],
        train_loss=float(state.sum()) / 3,
        bytes_up=8 * round,
        bytes_down=16,
        parameters_up=2 * round,
        parameters_down=4,
        extras={"PIR": [0.25, float(round)]},
        seconds={"total": time.perf_counter()},
    )


def advance(state: torch.Tensor, round: int) -> torch.Tensor:
    return (state * 31 + round) % 1009


def simulate(writer: RunWriter, until: int = ROUNDS, nap: float = 0.0) -> StoredRun | None:
    """A toy engine: each round follows from the one before; finished once `ROUNDS` are done."""
    start, state = 1, torch.tensor([1, 2, 3])
    if writer.checkpoint is not None:
        start, state = writer.checkpoint.round + 1, writer.checkpoint.tensors["state"]
    for round in range(start, until + 1):
        state = advance(state, round)
        time.sleep(nap)
        writer.append(record_of(round, state))
        if round % CHECKPOINT_EVERY == 0:
            writer.save_checkpoint(round, {"state": state}, {"note": round})
    return writer.finish("finished") if until == ROUNDS else None


def run_until(store: Store, until: int, config: Config = CONFIG) -> Path:
    with store.open(config) as writer:
        simulate(writer, until)
    return store.folder(config)


def expected() -> list[RoundRecord]:
    state, records = torch.tensor([1, 2, 3]), []
    for round in range(1, ROUNDS + 1):
        state = advance(state, round)
        records.append(record_of(round, state))
    return records


def is_expected(run: StoredRun | None) -> bool:
    return run is not None and all(
        same_result(a, b) for a, b in zip(run.records(), expected(), strict=True)
    )


def rounds(records: list[RoundRecord]) -> list[int]:
    return [record.round for record in records]


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# Records

floats = st.floats(allow_nan=True, allow_infinity=True)
counts = st.integers(0, 2**53)
writable = st.text(st.characters(exclude_categories=["Cs"]))


def scored_record(scores: list[tuple[int, int, float]] | None, **others: Any) -> RoundRecord:
    """A record whose clients were scored with so many right, so many wrong and a loss."""
    if scores is None:
        return RoundRecord(**others)
    return RoundRecord(
        correct=[right for right, _, _ in scores],
        total=[right + wrong for right, wrong, _ in scores],
        loss=[loss for _, _, loss in scores],
        **others,
    )


records_strategy = st.builds(
    scored_record,
    scores=st.none() | st.lists(st.tuples(counts, counts, floats)),
    round=st.integers(1, 10**9),
    joined=st.lists(counts),
    train_loss=st.none() | floats,
    bytes_up=counts,
    bytes_down=counts,
    parameters_up=counts,
    parameters_down=counts,
    extras=st.dictionaries(writable, st.lists(floats) | writable | counts),
    seconds=st.dictionaries(writable, st.floats(0, 1e9), max_size=10),
)


@given(records_strategy)
def test_a_record_survives_its_line(record: RoundRecord) -> None:
    read = RoundRecord.from_line(record.to_line())
    assert same_result(read, record) and read.seconds == record.seconds


@given(records_strategy)
def test_a_line_is_one_line_of_strict_json(record: RoundRecord) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = record.to_line()
    assert line.count("\n") == 1 and line.isascii()
    assert json.loads(line, parse_constant=refuse)["round"] == record.round


def test_non_finite_losses_come_back_as_the_floats_they_were() -> None:
    record = RoundRecord(1, [0], loss=[math.nan, math.inf, -math.inf], train_loss=math.nan)
    read = RoundRecord.from_line(record.to_line())
    assert read.loss is not None and read.train_loss is not None
    assert math.isnan(read.loss[0]) and read.loss[1:] == [math.inf, -math.inf]
    assert math.isnan(read.train_loss)


def test_numpy_values_are_recorded_as_plain_numbers() -> None:
    record = RoundRecord(1, [0], extras={"n": np.int64(3), "series": np.array([0.5, np.inf])})
    assert RoundRecord.from_line(record.to_line()).extras == {"n": 3, "series": [0.5, math.inf]}


def test_a_line_cut_anywhere_is_refused() -> None:
    line = expected()[0].to_line().encode()
    for length in range(len(line) - 1):
        with pytest.raises(DamagedError):
            RoundRecord.from_line(line[:length])


def test_a_line_with_any_flipped_bit_is_refused() -> None:
    line = expected()[0].to_line().encode().rstrip()
    for bit in range(8 * len(line)):
        with pytest.raises(DamagedError):
            RoundRecord.from_line(flipped(line, bit))


def test_reading_stops_at_a_missing_round() -> None:
    lines = [record.to_line().encode() for record in expected()]
    records, problem = read_lines(b"".join(lines[:3] + lines[4:]))
    assert rounds(records) == [1, 2, 3]
    assert problem == "line 4 is round 5 after 3"


def test_a_last_line_without_its_end_does_not_count() -> None:
    data = b"".join(record.to_line().encode() for record in expected()[:3])
    records, problem = read_lines(data[:-1])
    assert rounds(records) == [1, 2] and problem == "line 3 is incomplete"


@pytest.mark.parametrize("loss", [[-math.inf, math.inf], [-1e308, 1e308], [10**308, 10**308]])
def test_a_mean_loss_beyond_all_numbers_is_none(loss: list[float]) -> None:
    mean = RoundRecord(1, [0], [0, 0], [9, 9], loss).test_loss
    assert mean is not None and not math.isfinite(mean)


def test_only_seconds_may_differ_between_same_results() -> None:
    record = expected()[0]
    assert same_result(record, replace(record, seconds={"train": 1e6}))
    changes: dict[str, Any] = {
        "round": 2, "joined": [0, 1], "correct": None, "total": [11, 10, 10], "loss": [math.nan],
        "train_loss": 0.0, "bytes_up": 1, "bytes_down": 1, "parameters_up": 1,
        "parameters_down": 1, "extras": {},
    }  # fmt: skip
    assert not any(same_result(record, replace(record, **{n: v})) for n, v in changes.items())


def scored(round: int, correct: list[int], total: list[int]) -> RoundRecord:
    return RoundRecord(round, list(range(len(correct))), correct, total, [0.0] * len(correct))


def test_a_round_that_was_not_evaluated_has_no_accuracy() -> None:
    assert RoundRecord(1, [0]).accuracy is None


def test_summary_of_scores_agrees_with_numpy() -> None:
    rng = np.random.default_rng(0)
    total = rng.integers(5, 50, size=25)
    series = [rng.integers(0, total + 1) for _ in range(4)]
    summary = summarise([scored(r, c.tolist(), total.tolist()) for r, c in enumerate(series)])
    pooled = [c.sum() / total.sum() for c in series]
    for name, index in (("best", int(np.argmax(pooled))), ("last", 3)):
        accuracies = series[index] / total
        assert summary[name] == {
            "round": index,
            "accuracy": pytest.approx(pooled[index]),
            "mean_over_clients": pytest.approx(accuracies.mean()),
            "std_over_clients": pytest.approx(accuracies.std()),
            "worst_decile": pytest.approx(np.sort(accuracies)[:2].mean()),
        }


def test_of_equally_good_rounds_the_earliest_is_best() -> None:
    series = [scored(1, [1, 0], [4, 4]), scored(2, [2, 1], [4, 4]), scored(3, [1, 2], [4, 4])]
    assert summarise(series)["best"]["round"] == 2


def test_a_client_without_test_samples_does_not_count_over_clients() -> None:
    best = summarise([scored(1, [1, 0], [2, 0])])["best"]
    assert best["mean_over_clients"] == best["worst_decile"] == best["accuracy"] == 0.5


def test_last_score_is_of_the_last_evaluated_round() -> None:
    assert summarise([scored(1, [1], [2]), RoundRecord(2, [0])])["last"]["round"] == 1


def test_traffic_is_per_joined_client_and_round() -> None:
    series = [
        RoundRecord(1, [0, 1, 2], bytes_up=300, bytes_down=30, seconds={"total": 2.0}),
        RoundRecord(2, [1], bytes_up=100, bytes_down=50, seconds={"total": 4.0, "train": 3.0}),
    ]
    summary = summarise(series)
    assert (summary["bytes_up_per_client"], summary["bytes_down_per_client"]) == (100, 20)
    assert (summary["total_seconds"], summary["seconds_per_round"]) == (6, 3)


def test_no_rounds_have_no_scores() -> None:
    summary = summarise([])
    assert summary["best"] is summary["last"] is summary["seconds_per_round"] is None
    assert summary["rounds"] == 0


def test_a_sealed_document_with_a_flipped_bit_is_refused_or_unchanged() -> None:
    document = {"key": "é", "accuracy": 0.123, "nested": {"n": [1, None, math.inf]}}
    data = seal(document).encode()
    for bit in range(8 * len(data)):
        try:
            assert unseal(flipped(data, bit)) == document
        except DamagedError:
            continue


# Whole runs


def test_a_finished_run_is_found_with_all_it_was_given(store: Store) -> None:
    with store.open(CONFIG) as writer:
        simulate(writer, ROUNDS - 1)
        writer.append(expected()[-1])
        writer.finish("diverged", "the loss is no longer finite", {"device": "cpu"})
    run = store.find(CONFIG)
    assert is_expected(run)
    assert run is not None and run.summary is not None
    assert (run.status, run.key, run.config) == ("diverged", CONFIG.key, CONFIG.to_dict())
    assert run.summary["reason"] == "the loss is no longer finite"
    assert run.summary["device"] == "cpu"
    assert run.summary["best"] == summarise(expected())["best"]


def test_a_skipped_run_is_found_though_it_has_no_rounds(store: Store) -> None:
    with store.open(CONFIG) as writer:
        writer.finish("skipped", "a client has one batch")
    run = store.find(CONFIG)
    assert run is not None and run.status == "skipped" and run.records() == []


def test_an_unfinished_run_is_not_found(store: Store) -> None:
    run_until(store, ROUNDS - 1)
    assert store.find(CONFIG) is None
    assert [run.status for run in store.all()] == ["interrupted"]


def test_a_run_of_another_configuration_is_not_found(store: Store) -> None:
    run_until(store, ROUNDS)
    assert store.find(Config(seed=1)) is None


def test_a_finished_run_keeps_no_checkpoint_and_no_temporary_file(store: Store) -> None:
    names = {path.name for path in run_until(store, ROUNDS).iterdir()}
    assert names - {"run.lock"} == {"config.json", "rounds.jsonl", "summary.json"}


def test_the_last_two_checkpoints_are_kept(store: Store) -> None:
    names = {path.name for path in run_until(store, 7).glob("*.safetensors")}
    assert names == {"checkpoint-4.safetensors", "checkpoint-6.safetensors"}


def test_of_two_thousand_rounds_the_last_costs_what_the_first_did(store: Store) -> None:
    """In seconds of the processor; the least of some, which other work does not touch."""
    records, checkpoints = [], []
    with store.open(Config(rounds=2000)) as writer:
        for round in range(1, 2001):
            record = record_of(round, torch.arange(20))
            began = time.process_time()
            writer.append(record)
            records.append(time.process_time() - began)
            if not 20 < round <= 1980:
                began = time.process_time()
                writer.save_checkpoint(round, {"state": torch.zeros(1000)}, {})
                checkpoints.append(time.process_time() - began)
    for seconds in (records, checkpoints):
        assert min(seconds[-20:]) < 2 * min(seconds[:20])


def test_a_renamed_slug_is_found_by_its_key(store: Store) -> None:
    folder = run_until(store, ROUNDS)
    assert store.folder(replace(CONFIG, slug="another name")) == folder
    assert is_expected(store.find(replace(CONFIG, slug="another name")))


def test_a_slug_cannot_leave_the_store(store: Store) -> None:
    folder = store.folder(replace(CONFIG, slug="../../up and/away" + "x" * 300))
    assert folder.parent == store.root and len(folder.name) < 255


def test_paths_with_spaces_and_other_alphabets_work(tmp_path: Path) -> None:
    store = Store(tmp_path / "mes résultats" / "結果 [1]*")
    run_until(store, 5)
    run_until(store, ROUNDS)
    assert is_expected(store.find(CONFIG))


def test_results_copied_from_another_machine_are_found_and_not_locked(
    store: Store, tmp_path: Path
) -> None:
    folder = run_until(store, ROUNDS)
    (folder / "owner.lock").write_text('{"pid": 1, "host": "elsewhere"}')
    copy = Store(tmp_path / "copy")
    shutil.copytree(store.root, copy.root)
    assert is_expected(copy.find(CONFIG))
    with copy.open(CONFIG) as writer:
        assert is_expected(writer.finished)


@pytest.mark.parametrize("name", ["config.json", "summary.json", "rounds.jsonl"])
def test_a_file_of_a_result_cut_at_any_byte_is_not_taken_for_whole(store: Store, name: str) -> None:
    path = run_until(store, ROUNDS) / name
    data = path.read_bytes()
    content = len(data.rstrip()) if name != "rounds.jsonl" else len(data)
    for length in range(0, content, 3):
        path.write_bytes(data[:length])
        assert store.find(CONFIG) is None
    path.write_bytes(data)
    assert is_expected(store.find(CONFIG))


@pytest.mark.parametrize("name", ["config.json", "summary.json", "rounds.jsonl"])
def test_a_flipped_bit_in_a_result_is_noticed_or_harmless(store: Store, name: str) -> None:
    path = run_until(store, ROUNDS) / name
    sound = store.find(CONFIG)
    data = path.read_bytes()
    noticed = 0
    for bit in range(0, 8 * len(data), 29):
        path.write_bytes(flipped(data, bit))
        run = store.find(CONFIG)
        assert run is None or run == sound
        noticed += run is None
    assert noticed > 0


def test_a_damaged_result_is_dropped_with_a_note_and_computed_again(store: Store) -> None:
    summary = run_until(store, ROUNDS) / "summary.json"
    summary.write_text(summary.read_text().replace("0.", "1.", 1))
    with store.open(CONFIG) as writer:
        assert writer.finished is None and "summary.json is damaged" in writer.notes[0]
        simulate(writer)
    assert is_expected(store.find(CONFIG))


def test_all_reports_damaged_folders_and_passes_over_what_is_no_run(store: Store) -> None:
    run_until(store, ROUNDS)
    run_until(store, 3, Config(seed=1))
    (run_until(store, ROUNDS, Config(seed=2)) / "config.json").write_bytes(b"\xff{")
    (run_until(store, ROUNDS, Config(seed=3)) / "rounds.jsonl").unlink()
    (store.root / "figures").mkdir()
    (store.root / "note.txt").write_text("mine")
    seen = {run.key: (run.status, run.damage) for run in store.all()}
    assert seen == {
        Config(seed=0).key: ("finished", None),
        Config(seed=1).key: ("interrupted", None),
        Config(seed=2).key: ("damaged", "config.json is damaged (not readable as JSON)"),
        Config(seed=3).key: ("damaged", "rounds.jsonl is missing"),
    }


def test_a_run_killed_before_it_was_described_is_begun_and_not_damaged(store: Store) -> None:
    folder = store.folder(CONFIG)
    folder.mkdir(parents=True)
    (folder / "run.lock").touch()
    (run,) = store.all()
    assert (run.status, run.damage, run.records(), run.is_final) == ("begun", None, [], False)
    assert store.find(CONFIG) is None
    run_until(store, ROUNDS)
    (folder / "config.json").unlink()
    assert read_run(folder).status == "damaged"


def test_files_put_into_the_folder_of_another_run_are_not_believed(store: Store) -> None:
    folder = run_until(store, ROUNDS)
    shutil.copytree(folder, store.root / f"stolen-{Config(seed=1).key}")
    assert store.find(Config(seed=1)) is None


def test_a_store_that_does_not_exist_is_empty(store: Store) -> None:
    assert list(store.all()) == [] and store.find(CONFIG) is None
    assert not store.root.exists()


# Resuming


@pytest.mark.parametrize("until", range(ROUNDS))
def test_a_run_resumes_after_its_newest_checkpoint(store: Store, until: int) -> None:
    run_until(store, until)
    with store.open(CONFIG) as writer:
        resumed = until - until % CHECKPOINT_EVERY
        assert rounds(writer.records) == list(range(1, resumed + 1))
        assert (writer.checkpoint.round if writer.checkpoint else 0) == resumed
        assert writer.notes == []
        simulate(writer)
    assert is_expected(store.find(CONFIG))


def test_a_checkpoint_brings_back_its_meta_data(store: Store) -> None:
    run_until(store, 4)
    with store.open(CONFIG) as writer:
        assert writer.checkpoint is not None and writer.checkpoint.meta == {"note": 4}


def test_records_cut_at_any_byte_resume_to_the_same_result(store: Store, tmp_path: Path) -> None:
    folder = run_until(store, 5)
    data = (folder / "rounds.jsonl").read_bytes()
    for length in range(0, len(data), 97):
        copy = Store(tmp_path / str(length))
        shutil.copytree(store.root, copy.root)
        (copy.folder(CONFIG) / "rounds.jsonl").write_bytes(data[:length])
        run_until(copy, ROUNDS)
        assert is_expected(copy.find(CONFIG))


def spoil(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(flipped(data, 8 * len(data) - 5))


def test_the_previous_checkpoint_is_used_where_the_newest_is_damaged(store: Store) -> None:
    spoil(run_until(store, 7) / "checkpoint-6.safetensors")
    with store.open(CONFIG) as writer:
        assert writer.checkpoint is not None and writer.checkpoint.round == 4
        assert rounds(writer.records) == [1, 2, 3, 4]
        assert [note.split(":")[0] for note in writer.notes] == ["checkpoint-6.safetensors"]
        simulate(writer)
    assert is_expected(store.find(CONFIG))


def test_a_run_whose_checkpoints_are_all_damaged_starts_over_and_says_so(store: Store) -> None:
    folder = run_until(store, 7)
    spoil(folder / "checkpoint-4.safetensors")
    spoil(folder / "checkpoint-6.safetensors")
    with store.open(CONFIG) as writer:
        assert writer.checkpoint is None and writer.records == []
        assert writer.notes[-1] == "no checkpoint is usable; the run starts over"
        simulate(writer)
    assert is_expected(store.find(CONFIG))


def test_a_checkpoint_newer_than_the_sound_records_is_not_used(store: Store) -> None:
    path = run_until(store, 7) / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + flipped(lines[4], 100) + b"".join(lines[5:]))
    with store.open(CONFIG) as writer:
        assert writer.checkpoint is not None and writer.checkpoint.round == 4
        assert any("line 5 is damaged" in note for note in writer.notes)


def test_a_checkpoint_of_other_records_is_not_used(store: Store, tmp_path: Path) -> None:
    """Two attempts at one run agree in all but their timings; even so they are not mixed."""
    other = Store(tmp_path / "other")
    run_until(other, 4)
    folder = run_until(store, 4)
    shutil.copy(other.folder(CONFIG) / "rounds.jsonl", folder / "rounds.jsonl")
    with store.open(CONFIG) as writer:
        assert writer.checkpoint is None and writer.records == []


def test_a_damaged_configuration_is_written_anew_with_a_note(store: Store) -> None:
    path = run_until(store, 4) / "config.json"
    path.write_text("{")
    with store.open(CONFIG) as writer:
        assert "config.json is damaged" in writer.notes[0]
        assert writer.checkpoint is not None
    assert read_run(path.parent).config == CONFIG.to_dict()


def test_a_round_out_of_order_is_a_defect_of_the_caller(store: Store) -> None:
    with store.open(CONFIG) as writer:
        writer.append(expected()[0])
        with pytest.raises(ValueError, match="round 3 cannot follow 1"):
            writer.append(expected()[2])
        with pytest.raises(ValueError, match="round 2 needs its record"):
            writer.save_checkpoint(2, {}, {})


def test_nothing_can_be_added_to_a_finished_run(store: Store) -> None:
    with store.open(CONFIG) as writer:
        simulate(writer)
        with pytest.raises(ValueError, match="closed"):
            writer.append(record_of(ROUNDS + 1, torch.zeros(3)))


def test_temporary_files_of_a_killed_process_are_swept(store: Store) -> None:
    leftover = run_until(store, 3) / ".checkpoint-4.safetensors.abc.tmp"
    leftover.write_bytes(b"half")
    run_until(store, 4)
    assert not leftover.exists()


# Repeating a finished run


def test_a_repetition_starts_from_nothing_and_replaces_the_result(store: Store) -> None:
    first = [record.seconds for record in read_run(run_until(store, ROUNDS)).records()]
    with store.open(CONFIG) as writer:
        writer.discard()
        assert writer.finished is not None and writer.records == [] and writer.checkpoint is None
        simulate(writer)
    run = store.find(CONFIG)
    assert is_expected(run)
    assert run is not None and [record.seconds for record in run.records()] != first
    assert not (run.path / "fresh").exists()


def test_an_interrupted_repetition_leaves_the_finished_result(store: Store) -> None:
    run_until(store, ROUNDS)
    before = store.find(CONFIG)
    with store.open(CONFIG) as writer:
        writer.discard()
        simulate(writer, ROUNDS - 1)
    assert store.find(CONFIG) == before


def test_looking_into_a_finished_run_leaves_no_trace(store: Store) -> None:
    folder = run_until(store, ROUNDS)
    before = sorted(folder.iterdir())
    with store.open(CONFIG):
        pass
    assert sorted(folder.iterdir()) == before


def test_discarding_after_some_rounds_starts_over(store: Store) -> None:
    run_until(store, 4)
    with store.open(CONFIG) as writer:
        writer.append(expected()[4])
        writer.discard()
        simulate(writer)
    assert is_expected(store.find(CONFIG))


def test_a_damaged_repetition_does_not_replace_a_sound_result(store: Store) -> None:
    folder = run_until(store, ROUNDS)
    before = store.find(CONFIG)
    (folder / "fresh").mkdir()
    for name in ("summary.json", "rounds.jsonl"):
        shutil.copy(folder / name, folder / "fresh")
    spoil(folder / "fresh" / "summary.json")
    with store.open(CONFIG) as writer:
        assert writer.finished == before
        writer.discard()
        simulate(writer)
    assert is_expected(store.find(CONFIG)) and store.find(CONFIG) != before


class Killed(BaseException):
    """Stands for SIGKILL at one exact step: nothing in the store may catch it."""


def dying_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die just before its `step`-th change of a directory."""
    steps = iter(range(step))

    def guarded(change: Callable[..., Any]) -> Callable[..., Any]:
        def perform(*args: Any, **kwargs: Any) -> Any:
            if next(steps, None) is None:
                raise Killed
            return change(*args, **kwargs)

        return perform

    monkeypatch.setattr(Path, "replace", guarded(Path.replace))
    monkeypatch.setattr(Path, "unlink", guarded(Path.unlink))
    monkeypatch.setattr(shutil, "rmtree", guarded(shutil.rmtree))


def test_a_repetition_killed_at_any_step_leaves_the_old_result_or_the_new(
    store: Store, tmp_path: Path
) -> None:
    run_until(store, ROUNDS)
    old = store.find(CONFIG)
    outcomes = []
    for step in range(100):
        trial = Store(tmp_path / str(step))
        shutil.copytree(store.root, trial.root)
        killed = False
        with pytest.MonkeyPatch.context() as patch:
            dying_at(step, patch)
            try:
                with trial.open(CONFIG) as writer:
                    writer.discard()
                    simulate(writer)
            except Killed:
                killed = True
        found = trial.find(CONFIG)
        assert is_expected(found)
        assert found is not None and old is not None
        outcomes.append("old" if found.summary == old.summary else "new")
        with trial.open(CONFIG) as writer:
            assert writer.finished is not None and writer.finished.summary == found.summary
        assert is_expected(trial.find(CONFIG))
        if not killed:
            break
    assert not killed
    assert outcomes == sorted(outcomes, reverse=True) and {"old", "new"} == set(outcomes)


# Processes

fork = multiprocessing.get_context("fork")


def child(target: Callable[..., None], *args: Any) -> Any:
    process = fork.Process(target=target, args=args)
    process.start()
    return process


def work(store: Store, nap: float) -> None:
    with store.open(CONFIG) as writer:
        simulate(writer, nap=nap)


def test_a_run_killed_again_and_again_ends_with_the_same_result(store: Store) -> None:
    rng = random.Random(0)
    kills = 0
    while store.find(CONFIG) is None:
        process = child(work, store, 0.004)
        process.join(rng.uniform(0.01, 0.06))
        if process.is_alive():
            kills += 1
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert kills < 200
    assert kills > 0
    assert is_expected(store.find(CONFIG))


def repeat(store: Store, times: int) -> None:
    for _ in range(times):
        work(store, 0.0)


def test_a_result_can_be_read_at_any_moment_of_its_replacement(store: Store) -> None:
    run_until(store, ROUNDS)
    process = child(repeat, store, 60)
    while process.is_alive():
        assert store.find(CONFIG) is not None
    assert process.exitcode == 0


@pytest.fixture
def holder(store: Store) -> Iterator[Any]:
    """Another process that holds the run's lock."""
    entered = fork.Event()

    def hold() -> None:
        with store.open(CONFIG):
            entered.set()
            time.sleep(60)

    process = child(hold)
    assert entered.wait(10)
    yield process
    process.kill()
    process.join()


def test_a_run_held_by_another_process_is_busy_and_names_it(store: Store, holder: Any) -> None:
    with pytest.raises(RunBusy, match=f"process {holder.pid} on "), store.open(CONFIG):
        pass


def test_another_run_can_be_opened_meanwhile(store: Store, holder: Any) -> None:
    run_until(store, ROUNDS, Config(seed=1))
    assert store.find(Config(seed=1)) is not None


def test_the_lock_of_a_killed_process_does_not_block(store: Store, holder: Any) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    run_until(store, ROUNDS)
    assert is_expected(store.find(CONFIG))


def test_a_run_cannot_be_opened_twice_in_one_process(store: Store) -> None:
    with store.open(CONFIG), pytest.raises(RunBusy), store.open(CONFIG):
        pass


# The system refuses


def test_a_full_disk_is_one_sentence_and_leaves_no_half_line(store: Store) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with store.open(CONFIG) as writer:
        simulate(writer, 2)
        size = (store.folder(CONFIG) / "rounds.jsonl").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
        try:
            with pytest.raises(UserError, match=r"cannot write to .*: File too large$"):
                writer.append(expected()[2])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        for record in expected()[2:]:
            writer.append(record)
        writer.finish("finished")
    assert is_expected(store.find(CONFIG))


def test_a_disk_too_full_for_a_checkpoint_is_one_sentence(store: Store) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with store.open(CONFIG) as writer:
        simulate(writer, 3)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            with pytest.raises(UserError, match=r"cannot write to .*: File too large$"):
                writer.save_checkpoint(3, {"state": torch.zeros(100_000)}, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with store.open(CONFIG) as writer:
        assert writer.checkpoint is not None and writer.checkpoint.round == 2


def test_a_store_below_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "results")
    assert store.find(CONFIG) is None
    with pytest.raises(UserError, match=r"cannot write to .*: Not a directory$"):
        run_until(store, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_store_is_one_sentence_and_its_results_are_found(store: Store) -> None:
    folder = run_until(store, ROUNDS)
    (folder / "run.lock").unlink()
    for path in (folder, store.root):
        path.chmod(0o555)
    try:
        assert is_expected(store.find(CONFIG))
        for config in (CONFIG, Config(seed=1)):
            with pytest.raises(UserError, match=r"cannot .*: Permission denied$"):
                run_until(store, 1, config)
    finally:
        for path in (store.root, folder):
            path.chmod(0o755)


# Provenance


def test_versions_are_those_of_the_imported_libraries() -> None:
    seen = provenance.current_provenance()
    assert seen["torch"] == torch.__version__.split("+")[0] or seen["torch"] == torch.__version__
    assert seen["numpy"] == np.__version__
    assert seen["pfl_bench"] == metadata.version("pfl-bench")


def test_a_run_says_when_it_was_started_and_finished(store: Store) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    run_until(store, ROUNDS)
    run = store.find(CONFIG)
    assert run is not None and run.summary is not None
    told = run.summary["provenance"]
    times = [datetime.fromisoformat(told[name]) for name in ("started", "finished")]
    assert before <= times[0] <= times[1] <= datetime.now(UTC)


def test_a_resumed_run_says_from_where(store: Store) -> None:
    run_until(store, 5)
    run_until(store, ROUNDS)
    run = store.find(CONFIG)
    assert run is not None and run.summary is not None
    assert run.summary["provenance"]["resumed_after_round"] == 4


def test_peak_memory_covers_what_was_held() -> None:
    held = np.ones(25_000_000)
    peak = provenance.peak_memory()
    assert peak is not None and held.nbytes < peak < provenance.machine()["memory"]
