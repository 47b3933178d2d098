"""What must be said of how a run ended: whether it still rises, how it stands to answers that take
no training, and what to try.

The rule is in `pfl_bench.store.curve`; what the data alone would score is kept with the run, so
that no data is needed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pfl_bench.store import RoundRecord, StoredRun, best_round, curve

MARK = "↗"
"""Stands beside a value that more rounds would change."""

RISEN = 1.05
"""How many times its beginning a training loss must be to have risen; less is chance."""


@dataclass(frozen=True)
class Reference:
    """What takes no training: the accuracies (in percent) of always answering a client's most
    frequent training class, and of guessing; and on each client, how many answers the first gets
    right."""

    most_frequent: float
    chance: float
    correct: tuple[int, ...]

    def __str__(self) -> str:
        return f"most frequent class {self.most_frequent:.2f} %, chance {self.chance:.2f} %"


def reference(run: StoredRun) -> Reference | None:
    """None of a run that was stored before this was kept."""
    kept, untrained = run.end.reference, run.end.untrained
    if kept is None or untrained is None:
        return None
    return Reference(100 * untrained, 100 / kept["classes"], tuple(kept["majority_correct"]))


def is_rising(run: StoredRun) -> bool:
    """Whether more rounds would change the run's score."""
    if (told := run.end.still_rising) is not None:
        return told
    records = run.records()
    return curve.still_rising([r.judged for r in records if r.judged is not None])


def rising(runs: Iterable[StoredRun | None]) -> int:
    """How many of the finished ones still rise."""
    return sum(is_rising(run) for run in runs if run is not None and run.status == "finished")


def best_record(run: StoredRun) -> RoundRecord | None:
    """The round whose accuracy is the run's score."""
    return best_round(run.records())


def _risen_loss(records: Sequence[RoundRecord]) -> tuple[float, float] | None:
    """The training loss of the first round and the mean over the last tenth of them, where that is
    clearly the larger: what one round has learnt is lost again."""
    losses = [record.train_loss for record in records]
    known = [loss for loss in losses if loss is not None]
    if len(known) < 2:
        return None
    late = known[-max(1, len(known) // 10) :]
    first, last = known[0], sum(late) / len(late)
    return (first, last) if last > RISEN * first else None


def advice(run: StoredRun, records: Sequence[RoundRecord] | None = None) -> list[str]:
    """What to know and try, a sentence each; nothing of a run that is flat and learnt something.
    Its records are read where they are not given."""
    last = run.end.last
    if run.status != "finished" or last is None:
        return []
    said, rounds = [], run.end.rounds
    known = reference(run)
    if known is not None and 100 * last.accuracy <= known.most_frequent:
        said.append(
            "it ends no better than always answering a client's most frequent class; try more "
            "rounds (--rounds) or another learning rate (--lr)"
        )
    if (rose := _risen_loss(run.records() if records is None else records)) is not None:
        said.append(
            f"the training loss rose from {rose[0]:.3g} in the first round to {rose[1]:.3g} at the "
            f"end; try a smaller learning rate, as --lr {float(run.config['lr']) / 10:g}"
        )
    if is_rising(run):
        patience = run.config.get("patience")
        if patience is not None and rounds < run.config["rounds"]:
            told = f"still rising when patience ended it after {rounds} rounds"
            said.append(f"{told}; try --patience {2 * patience}")
        else:
            said.append(f"still rising after {rounds} rounds; try --rounds {2 * rounds}")
    return said
