"""What is timed: a method, data of a paper's shape, and a prepared simulator for both."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfl_bench import data
from pfl_bench.data import Dataset
from pfl_bench.data.standins import text as standin_text
from pfl_bench.engine import Simulator
from pfl_bench.plugins import AGNEWS_VOCABULARY, load_algorithm, toy_config, toy_partition

CIFAR, TINY, TEXT = "Cifar shape", "Tiny-ImageNet shape", "AG News shape"


@dataclass(frozen=True)
class Workload:
    """One row of the benchmark."""

    algo: str
    shape: str
    samples: int
    clients: int = 20

    @property
    def name(self) -> str:
        return f"{self.algo}, {self.shape}"

    def simulator(
        self,
        workers: int,
        rounds: int = 1000,
        device: str = "cpu",
        hyper: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Simulator:
        """Our simulator, ready for its first round; `changes` to its configuration."""
        dataset = _dataset(self.shape, self.samples)
        text = dataset.kind == "text"
        usual = {
            "dataset": self.shape,
            "clients": self.clients,
            "beta": 0.1,
            "batch_size": 10,
            "lr": 0.1 if text else 0.005,
            "model": "fasttext" if text else "cnn",
            "rounds": rounds,
        }
        config = toy_config(self.algo, hyper, **(usual | changes))
        partition = toy_partition(config, dataset)
        simulator = Simulator(
            load_algorithm(config.algo), config, dataset, partition, workers=workers, device=device
        )
        simulator.prepare()
        return simulator


WORKLOADS = (
    Workload("fedavg", CIFAR, 12_000),
    Workload("fedcp", CIFAR, 12_000),
    Workload("fedrep", CIFAR, 12_000),
    Workload("ditto", CIFAR, 12_000),
    Workload("fedavg", TINY, 2_000),
    Workload("fedavg", TEXT, 127_600),
)


def _dataset(shape: str, samples: int) -> Dataset:
    """Stand-in content, repeated up to the number of samples that is wanted."""
    if shape == TEXT:
        topics = dataclasses.replace(
            standin_text.TOPICS, words=AGNEWS_VOCABULARY - 1, samples=samples
        )
        x, y, vocabulary = standin_text.render(topics)
        return Dataset(shape, "standin", x, y, topics.classes, vocabulary, shape)
    name = {CIFAR: "cifar10", TINY: "tinyimagenet"}[shape]
    found = data.load(name, "standin", Path(tempfile.gettempdir()))
    again = np.arange(samples) % len(found.y)
    return dataclasses.replace(found, x=found.x[again], y=found.y[again], name=shape)
