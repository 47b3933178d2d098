"""A run with the store behind it: return what is stored, resume what was cut off, keep what is new.

The simulator computes; this module decides when to save, when to stop, and what the end is called.
"""

from __future__ import annotations

import time
from typing import Any

from pfl_bench.config import RunConfig
from pfl_bench.engine import RunWatch, Simulator
from pfl_bench.execution.configuration import load_data
from pfl_bench.execution.observer import Began, Checkpointed, Computed, Note, Observer, Round
from pfl_bench.execution.options import Execution, choose_device
from pfl_bench.models import wide_order
from pfl_bench.plugins import load_algorithm
from pfl_bench.store import DamagedError, Ending, RunWriter, Store, StoredRun, Summary

CHECKPOINT_SECONDS = 10.0
"""A run cut off loses no more than about this much work."""
CHECKPOINT_SHARE = 0.01
"""Saving takes no more than about this share of a run, however large its state."""

KEEP_SECONDS = 60.0
"""A finished run that took longer keeps its state, so that more rounds can go on from there; that
of a shorter one is computed again when it is wanted."""


def execute(
    config: RunConfig, store: Store, options: Execution, observer: Observer | None = None
) -> StoredRun:
    """The result of `config`: stored, or computed now and stored."""
    observer = observer or Observer()
    watch = RunWatch()
    stored = store.find(config)
    if stored is not None and serves(stored, options):
        return stored
    with watch.measure("setup"):
        simulator, about_data = prepare(config, options)
    with store.open(config) as writer:
        if (answer := answer_of(writer, options)) is not None:
            return answer  # by another process, while this one waited
        for note in writer.notes:
            observer.tell(Note(config, note))
        ended = _simulate(simulator, about_data, writer, options, observer, watch)
        observer.tell(Computed(config, watch.split()))
        return ended


def serves(stored: StoredRun, options: Execution) -> bool:
    """Whether a stored result answers what is asked. What was skipped has no times."""
    is_timed = stored.status == "skipped" or stored.end.timed
    return not options.fresh and (is_timed or not options.timed)


def answer_of(writer: RunWriter, options: Execution) -> StoredRun | None:
    """What is stored, if that will do; else None, and the writer stands where the run goes on."""
    if (answer := writer.answer) is not None and serves(answer, options):
        return answer
    if writer.finished and not options.fresh:
        writer.extend()
    # A repetition is asked for, or times are and the rounds to continue from did not have the
    # machine to themselves: what was computed so far is of no use.
    had_it = writer.checkpoint is not None and bool(writer.checkpoint.meta.get("timed"))
    if options.fresh or (options.timed and not had_it):
        writer.discard()
    return None


def prepare(config: RunConfig, options: Execution) -> tuple[Simulator, dict[str, Any]]:
    """The run in memory, before the store is touched: what is refused here leaves no trace. With
    it, what the summary will say of the data."""
    dataset, partition = options.given or load_data(config, options.data_dir, options.partition)
    simulator = Simulator(
        load_algorithm(config.algo),
        config,
        dataset,
        partition,
        workers=options.share,
        device=choose_device(options.device),
    )
    if not simulator.impossible:
        simulator.prepare()
    about_data: dict[str, Any] = {
        "partition_fingerprint": partition.fingerprint,
        "reference": {
            "classes": dataset.classes,
            "majority_correct": simulator.roles.clients.majority_correct(dataset.y),
            "tested": sum(map(len, simulator.roles.clients.test)),
        },
    }
    if dataset.remark:
        about_data["data"] = dataset.remark
    return simulator, about_data


def _simulate(
    simulator: Simulator,
    about_data: dict[str, Any],
    writer: RunWriter,
    options: Execution,
    observer: Observer,
    watch: RunWatch,
) -> StoredRun:
    if reason := simulator.impossible:
        return writer.finish("skipped", reason)
    _resume(simulator, writer, observer)
    config, records = simulator.config, writer.records
    observer.tell(Began(config, tuple(records)))
    saver = _Saver(simulator, writer, options, observer)
    untrained = Summary.of(about_data).untrained
    ending = Ending(config.rounds, config.patience, untrained)
    for record in records:
        ending.add(record)
    try:
        if not ending.reached:
            for record in simulator.rounds():
                with watch.measure("records"):
                    writer.append(record)
                watch.add_round(record.seconds)
                observer.tell(Round(config, record))
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
        "wide_layers": wide_order(simulator.device.type),
        "workers": simulator.workers,
        "timed": options.timed,
    }
    took_long = sum(record.total_seconds for record in records) >= KEEP_SECONDS
    keeps = (options.keep_state or took_long) and not simulator.diverged
    state = simulator.snapshot.tensors() if keeps else None
    with watch.measure("records"):
        return writer.finish(status, simulator.diverged, extra, state)


def _resume(simulator: Simulator, writer: RunWriter, observer: Observer) -> None:
    """Continue from the checkpoint, where there is one that fits."""
    while (saved := writer.checkpoint) is not None:
        try:
            joined = {client for record in writer.records for client in record.joined}
            simulator.resume(saved.round, saved.tensors, joined)
            return
        except DamagedError as misfit:
            told = len(writer.notes)
            writer.step_back()
            reached = writer.records[-1].round if writer.records else 0
            then = f"goes on after round {reached}" if reached else "starts over"
            note = f"the checkpoint of round {saved.round} does not fit: {misfit}; the run {then}"
            for each in (note, *writer.notes[told:]):
                observer.tell(Note(simulator.config, each))


class _Saver:
    """Decides when a checkpoint is due: by time, so that it costs little, or by rounds if told."""

    def __init__(
        self, simulator: Simulator, writer: RunWriter, options: Execution, observer: Observer
    ):
        self._simulator, self._writer, self._observer = simulator, writer, observer
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
        self._observer.tell(Checkpointed(self._simulator.config, self._writer))
        self._last = time.monotonic()
        self._saved_round = snapshot.round
        self._wait = max(CHECKPOINT_SECONDS, (self._last - began) / CHECKPOINT_SHARE)
