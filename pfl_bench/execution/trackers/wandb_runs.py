"""Runs in Weights & Biases, as `--track wandb` or `--track wandb:PROJECT`; WANDB_MODE=offline keeps
them on this machine. The identity of a run there follows from its configuration, so that a run that
goes on continues the one there, which takes no round twice."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pfl_bench.execution.trackers.tracker import Tracked, Tracker
from pfl_bench.store import flat

PROJECT = "pfl-bench"
LONGEST_TAG = 64


class WandB(Tracker):
    title, module, extra = "Weights & Biases", "wandb", "wandb"

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self._runs: dict[str, Any] = {}

    def begin(self, run: Tracked) -> None:
        import wandb

        self._runs[run.config.request] = wandb.init(
            project=self.place or PROJECT,
            id=hashlib.sha256(run.config.request.encode()).hexdigest()[:16],
            name=run.name,
            group=run.tags.get("table"),
            tags=[f"{name}: {value}"[:LONGEST_TAG] for name, value in run.tags.items()],
            config=run.config.to_dict(),
            resume="allow",
            reinit="create_new",  # runs go on at the same time
        )

    def write(self, run: Tracked, round: int, values: Mapping[str, float]) -> None:
        self._runs[run.config.request].log(dict(values), step=round)

    def end(self, run: Tracked, summary: Mapping[str, Any] | None) -> None:
        there = self._runs.pop(run.config.request)
        for name, value in flat(summary or {}).items():
            there.summary[f"summary/{name}"] = value
        is_sound = summary is not None and summary.get("status") == "finished"
        there.finish(exit_code=0 if is_sound else 1)
