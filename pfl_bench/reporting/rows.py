"""A stored run, or one of its rounds, as the row of a data frame."""

from __future__ import annotations

from typing import Any

from pfl_bench.store import RoundRecord, StoredRun, flat


def run_row(run: StoredRun) -> dict[str, Any]:
    """Configuration columns by their own names, then the summary's; a name both have, such as
    `rounds`, is the planned value, and `summary.rounds` the one reached."""
    planned = {"key": run.key, "status": run.status, **flat(run.config)}
    reached = flat(run.summary or {})
    shared = {"rounds", *planned} - {"key", "status"}
    return planned | {
        f"summary.{name}" if name in shared else name: value for name, value in reached.items()
    }


def round_row(record: RoundRecord) -> dict[str, Any]:
    """What was measured in a round; per-client series are JSON lists in one cell."""
    measured = {
        "round": record.round,
        "accuracy": record.accuracy,
        "train_loss": record.train_loss,
        "test_loss": record.test_loss,
        "joined": record.joined,
        "correct": record.correct,
        "total": record.total,
        "loss": record.loss,
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
        "parameters_up": record.parameters_up,
        "parameters_down": record.parameters_down,
        "extras": record.extras,
        "seconds": record.seconds,
    }
    return flat(measured)
