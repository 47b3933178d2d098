"""Data in Ray's object store: the nodes fetch it once each, and their runs share the memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pfl_bench.config import RunConfig
from pfl_bench.data import Dataset
from pfl_bench.execution.configuration import data_key, dataset_key, load_data
from pfl_bench.execution.request import Request


@dataclass(frozen=True)
class RunData:
    """References to the data of a run, and what of it must be known without fetching it."""

    dataset: Any
    partition: Any
    facts: tuple[Dataset, int]
    """The dataset without its samples, and the number of clients."""


class SharedData:
    """Data in Ray's object store: every dataset and every partition once, however many runs."""

    def __init__(self, ray: ModuleType, data_dir: Path):
        self._ray, self._data_dir = ray, data_dir
        self._datasets: dict[str, Any] = {}
        self._of_runs: dict[str, RunData] = {}

    def of(self, request: Request) -> RunData:
        key = data_key(request.config)
        if key not in self._of_runs:
            dataset, partition = load_data(request.config, self._data_dir, request.partition)
            facts = replace(dataset, x=dataset.x[:0].copy(), y=dataset.y[:0].copy())
            self._of_runs[key] = RunData(
                self._put_dataset(request.config, dataset),
                self._ray.put(partition),
                (facts, len(partition.train)),
            )
        return self._of_runs[key]

    def keep(self, requests: Iterable[Request]) -> None:
        """Let go of what none of these runs uses."""
        configs = [request.config for request in requests]
        wanted = {data_key(config) for config in configs}
        self._of_runs = {key: data for key, data in self._of_runs.items() if key in wanted}
        sets = {dataset_key(config) for config in configs}
        self._datasets = {key: ref for key, ref in self._datasets.items() if key in sets}

    def _put_dataset(self, config: RunConfig, dataset: Dataset) -> Any:
        key = dataset_key(config)
        if key not in self._datasets:
            self._datasets[key] = self._ray.put(dataset)
        return self._datasets[key]
