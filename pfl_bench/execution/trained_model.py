"""A trained model to look into: the simulator of a run in the state after its last round.

For what needs more than a run's records, such as saliency maps or attacks. The state is kept beside
the result; a result that was stored without one is computed once more for it, in a store of its own
within the run's folder (so that it can be cut off and continued), and its records stay as they are.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

from pfl_bench.base import UserError
from pfl_bench.config import RunConfig
from pfl_bench.engine import Simulator
from pfl_bench.execution.observer import Note, Observer
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute, prepare
from pfl_bench.plugins import check_plugin
from pfl_bench.store import Checkpoint, DamagedError, Store, StoredRun, same_result

_REPLAY = "replay"


def trained_simulator(
    config: RunConfig, store: Store, options: Execution, observer: Observer | None = None
) -> Simulator:
    """A prepared simulator whose `snapshot` is the state after the last round of the run.

    That is round `config.rounds`, or an earlier one where patience ended the run; the best round's
    state is not kept. A run that is not stored is run, stored and kept. Raises UserError for a run
    that was skipped or that diverged. `client(index, snapshot.round)` gives a client to work with.
    """
    observer = observer or Observer()
    run = execute(config, store, replace(options, keep_state=True), observer)
    if run.status != "finished":
        ended = f"{run.status} ({run.end.reason})"
        raise UserError(f"the run {run.path.name} has no trained model: {ended}")
    state = run.state() or _replayed(config, store, options, observer)
    return _resumed(config, run, state, options)


def kept_simulator(run: StoredRun, options: Execution) -> Simulator | None:
    """The same for a stored run, from the model that is kept beside it; None where none is. Nothing
    trains and nothing is written."""
    if run.status != "finished" or (state := run.state()) is None:
        return None
    try:
        config = RunConfig.from_dict(run.config)
    except (KeyError, TypeError) as error:
        raise UserError(f"the run in {run.path} cannot be read: {error}") from error
    check_plugin(config.algo, config.plugin)
    return _resumed(config, run, state, options)


@dataclass(frozen=True)
class KeptModel:
    """That the trained model is kept, as what follows on a run. Only a whole result has a place for
    one: of a longer run's beginning none is kept."""

    def result(self, run: StoredRun) -> StoredRun | None:
        can_be = run.status == "finished" and run.shown is None
        return None if can_be and run.state() is None else run

    def compute(
        self, config: RunConfig, store: Store, options: Execution, observer: Observer
    ) -> StoredRun:
        run = execute(config, store, options, observer)
        if self.result(run) is None:
            _replayed(config, store, options, observer)
        return run


def _resumed(config: RunConfig, run: StoredRun, state: Checkpoint, options: Execution) -> Simulator:
    simulator, _ = prepare(config, options)
    try:
        joined = {client for record in run.records() for client in record.joined}
        simulator.resume(state.round, state.tensors, joined)
    except DamagedError as misfit:
        raise UserError(
            f"the trained model kept in {run.path} does not fit: {misfit}; "
            "`pfl-bench run --fresh` computes the run again"
        ) from misfit
    return simulator


def _replayed(
    config: RunConfig, store: Store, options: Execution, observer: Observer
) -> Checkpoint:
    """The state of a finished run that was not kept, computed once more and kept now."""
    with store.open(config) as writer:
        stored = writer.answer
        if stored is None:
            raise UserError(f"the result in {writer.folder} is gone; run it again")
        if state := stored.state():
            return state  # kept by another process, while this one waited
        beside = Store(writer.folder / _REPLAY)
        how = replace(options, keep_state=True, fresh=False, timed=False)
        again = execute(config, beside, how, observer)
        state = again.state()
        if state is None or not _agree(again, stored):
            note = (
                f"the run {stored.path.name}, computed once more for its trained model, differs "
                "from the stored result, which was made by other code, libraries or another machine"
            )
            observer.tell(Note(config, note))
        if state is None:
            raise UserError(f"the run {stored.path.name}, computed once more, is {again.status}")
        if stored.shown is None:  # the state of a longer run's beginning has no place beside it
            writer.keep_state(state.tensors)
        shutil.rmtree(beside.root)
        return state


def _agree(one: StoredRun, other: StoredRun) -> bool:
    ours, theirs = one.records(), other.records()
    return len(ours) == len(theirs) and all(map(same_result, ours, theirs))
