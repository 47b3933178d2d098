"""A run with the store behind it: return what is stored, resume what was cut off, keep what is new.

The simulator computes; this module decides when to save, when to stop, and what the end is called.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_bench.base import UserError, unknown
from pfl_bench.config import RunConfig
from pfl_bench.data import Dataset, Partition
from pfl_bench.engine import RunWatch, Simulator
from pfl_bench.execution.configuration import load_data
from pfl_bench.plugins import load_algorithm
from pfl_bench.store import DamagedError, Ending, RoundRecord, RunWriter, Store, StoredRun

CHECKPOINT_SECONDS = 10.0
"""A run cut off loses no more than about this much work."""
CHECKPOINT_SHARE = 0.01
"""Saving takes no more than about this share of a run, however large its state."""

KEEP_SECONDS = 60.0
"""A finished run that took longer keeps its state, so that more rounds can go on from there; that
of a shorter one is computed again when it is wanted."""

DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True)
class Options:
    """How to run, none of which can change a result."""

    data_dir: Path
    partition: str | None = None
    workers: int | None = None
    device: str = "auto"
    fresh: bool = False
    timed: bool = False
    """The run has the machine to itself and a process of its own, and its times are wanted."""
    checkpoint_every: int | None = None
    """Save after this many rounds instead of by time."""
    tensorboard: Path | None = None
    """Where `tensorboard.execute_logged` writes the rounds as scalars, each run in its folder."""
    given: tuple[Dataset, Partition] | None = None
    """The data and how it is dealt, already in memory, instead of the folder's."""
    keep_state: bool = False
    """Keep the state after the last round beside the result; `trained_model` gives it back."""


class Watcher:
    """Told how a run goes; overrides what it cares for."""

    def on_start(self, config: RunConfig, earlier: Sequence[RoundRecord]) -> None:
        """The run begins, or continues after the rounds recorded `earlier`."""

    def on_round(self, record: RoundRecord) -> None:
        """A round is complete."""

    def on_checkpoint(self, writer: RunWriter) -> None:
        """The state after the last recorded round is saved; `writer.carry()` gives it."""

    def on_note(self, note: str) -> None:
        """Something the user should know, in a sentence."""

    def on_end(self, seconds: Mapping[str, float]) -> None:
        """The run was computed to its end in so many seconds, by part (see `timing.RUN`)."""


def execute(
    config: RunConfig, store: Store, options: Options, watcher: Watcher | None = None
) -> StoredRun:
    """The result of `config`: stored, or computed now and stored."""
    watcher = watcher or Watcher()
    watch = RunWatch()
    stored = store.find(config)
    if stored is not None and serves(stored, options):
        return stored
    with watch.measure("setup"):
        simulator, about_data = prepare(config, options)
    with store.open(config) as writer:
        if (answer := writer.answer) is not None and serves(answer, options):
            return answer  # by another process, while this one waited
        if writer.finished and not options.fresh:
            writer.extend()
        if starts_over(writer, options):
            writer.discard()
        for note in writer.notes:
            watcher.on_note(note)
        ended = _simulate(simulator, about_data, writer, options, watcher, watch)
        watcher.on_end(watch.split())
        return ended


def serves(stored: StoredRun, options: Options) -> bool:
    """Whether a stored result answers what is asked."""
    is_timed = bool((stored.summary or {}).get("timed"))
    return not options.fresh and (is_timed or not options.timed)


def starts_over(writer: RunWriter, options: Options) -> bool:
    """Whether what was computed so far is of no use: a repetition is asked for, or times are and
    the rounds to continue from did not have the machine to themselves."""
    had_it = writer.checkpoint is not None and bool(writer.checkpoint.meta.get("timed"))
    return options.fresh or (options.timed and not had_it)


def prepare(config: RunConfig, options: Options) -> tuple[Simulator, dict[str, Any]]:
    """The run in memory, before the store is touched: what is refused here leaves no trace. With
    it, what the summary will say of the data."""
    dataset, partition = options.given or load_data(config, options.data_dir, options.partition)
    simulator = Simulator(
        load_algorithm(config.algo),
        config,
        dataset,
        partition,
        workers=options.workers or default_workers(),
        device=choose_device(options.device),
    )
    if not simulator.impossible:
        simulator.prepare()
    about_data: dict[str, Any] = {
        "partition_fingerprint": partition.fingerprint,
        "reference": {
            "classes": dataset.classes,
            "majority_correct": partition.majority_correct(dataset.y),
            "tested": sum(map(len, partition.test)),
        },
    }
    if dataset.remark:
        about_data["data"] = dataset.remark
    return simulator, about_data


def _simulate(
    simulator: Simulator,
    about_data: dict[str, Any],
    writer: RunWriter,
    options: Options,
    watcher: Watcher,
    watch: RunWatch,
) -> StoredRun:
    if reason := simulator.impossible:
        return writer.finish("skipped", reason)
    _resume(simulator, writer, watcher)
    config, records = simulator.config, writer.records
    watcher.on_start(config, records)
    saver = _Saver(simulator, writer, options, watcher)
    ending = Ending(config.rounds, config.patience)
    for record in records:
        ending.add(record)
    try:
        if not ending.reached:
            for record in simulator.rounds():
                with watch.measure("records"):
                    writer.append(record)
                watch.add_round(record.seconds)
                watcher.on_round(record)
                if ending.add(record) or simulator.diverged:
                    break
                with watch.measure("checkpoint"):
                    saver.after_round()
    except KeyboardInterrupt:
        saver.save()
        raise
    status = "diverged" if simulator.diverged else "finished"
    extra = {
        **about_data,
        "device": str(simulator.device),
        "workers": simulator.workers,
        "timed": options.timed,
    }
    took_long = sum(record.total_seconds for record in records) >= KEEP_SECONDS
    keeps = (options.keep_state or took_long) and not simulator.diverged
    state = simulator.snapshot.tensors() if keeps else None
    with watch.measure("records"):
        return writer.finish(status, simulator.diverged, extra, state)


def _resume(simulator: Simulator, writer: RunWriter, watcher: Watcher) -> None:
    """Continue from the checkpoint, where there is one that fits."""
    saved = writer.checkpoint
    if saved is None:
        return
    try:
        simulator.resume(saved.round, saved.tensors)
    except DamagedError as misfit:
        where = f"the checkpoint of round {saved.round}"
        watcher.on_note(f"{where} does not fit: {misfit}; the run starts over")
        writer.discard()


class _Saver:
    """Decides when a checkpoint is due: by time, so that it costs little, or by rounds if told."""

    def __init__(self, simulator: Simulator, writer: RunWriter, options: Options, watcher: Watcher):
        self._simulator, self._writer, self._watcher = simulator, writer, watcher
        self._every, self._meta = options.checkpoint_every, {"timed": options.timed}
        self._last = time.monotonic()
        self._wait = CHECKPOINT_SECONDS
        self._recorded = simulator.snapshot
        self._saved_round = simulator.snapshot.round

    def after_round(self) -> None:
        self._recorded = self._simulator.snapshot
        round = self._recorded.round
        if round == self._simulator.config.rounds:
            return
        if self._every is not None:
            due = round % self._every == 0
        else:
            due = time.monotonic() - self._last >= self._wait
        if due:
            self.save()

    def save(self) -> None:
        """Save the last round whose record is stored. An interruption can fall into the next one
        (the simulator's snapshot may then be ahead of the records) or just before `after_round`."""
        last = self._writer.records[-1].round if self._writer.records else None
        candidates = (self._simulator.snapshot, self._recorded)
        snapshot = next((each for each in candidates if each.round == last), None)
        if snapshot is None or last == self._saved_round or self._simulator.diverged:
            return
        began = time.monotonic()
        tensors = {name: value.cpu() for name, value in snapshot.tensors().items()}
        self._writer.save_checkpoint(snapshot.round, tensors, self._meta)
        self._watcher.on_checkpoint(self._writer)
        self._last = time.monotonic()
        self._saved_round = snapshot.round
        self._wait = max(CHECKPOINT_SECONDS, (self._last - began) / CHECKPOINT_SHARE)


def default_workers() -> int:
    """One worker per core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_device(name: str) -> str:
    """The device to compute on; `auto` takes the first accelerator there is."""
    import torch

    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    present = {"cpu": True, "cuda": torch.cuda.is_available()}
    present["mps"] = torch.backends.mps.is_available()
    if name == "auto":
        return next(d for d in ("cuda", "mps", "cpu") if present[d])
    if not present[name]:
        there = ", ".join(d for d, is_there in present.items() if is_there)
        raise UserError(f"the device {name!r} is not on this machine; there is: {there}")
    return name
