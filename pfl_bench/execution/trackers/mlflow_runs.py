"""Runs in MLflow, as `--track mlflow` or `--track mlflow:URI`; without a URI, where MLflow's own
settings say. All are in the experiment `pfl-bench`, each once: what stood there of the same run
goes to MLflow's trash."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pfl_bench.execution.trackers.tracker import Tracked, Tracker
from pfl_bench.store import flat

EXPERIMENT = "pfl-bench"
KEY = "pfl_bench.run"
MOST_PARAMS = 100
LONGEST_PARAM = 500
"""What every version of MLflow takes at once, and in a value."""


class MLflow(Tracker):
    title, module, extra = "MLflow", "mlflow", "mlflow"

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self.place or None)
        self._ids: dict[str, str] = {}

    def begin(self, run: Tracked) -> None:
        from mlflow.entities import Param

        experiment = self._experiment()
        same = f"tags.`{KEY}` = '{run.config.request}'"
        for earlier in self._client.search_runs([experiment], filter_string=same):
            self._client.delete_run(earlier.info.run_id)
        tags = {KEY: run.config.request, **run.tags}
        made = self._client.create_run(experiment, tags=tags, run_name=run.name)
        self._ids[run.config.request] = made.info.run_id
        values = flat(run.config.to_dict()).items()
        params = [Param(name, str(value)[:LONGEST_PARAM]) for name, value in values]
        for some in _parts(params, MOST_PARAMS):
            self._client.log_batch(made.info.run_id, params=some)

    def write(self, run: Tracked, round: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, round) for name, value in values.items()]
        self._client.log_batch(self._ids[run.config.request], metrics=metrics)

    def end(self, run: Tracked, summary: Mapping[str, Any] | None) -> None:
        run_id = self._ids.pop(run.config.request)
        if summary is None:
            self._client.set_terminated(run_id, status="KILLED")
            return
        for name, value in flat(summary).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._client.log_metric(run_id, f"summary/{name}", float(value))
            elif value is not None:
                self._client.set_tag(run_id, f"summary.{name}", str(value)[:LONGEST_PARAM])
        is_sound = summary.get("status") == "finished"
        self._client.set_terminated(run_id, status="FINISHED" if is_sound else "FAILED")

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        made = self._client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
        return str(made)


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
