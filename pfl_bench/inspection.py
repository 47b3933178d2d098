"""What a method keeps and sends for a given model, measured on two rounds with random data.

Nothing here is declared twice: the figures are those that the simulator counts from the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pfl_bench.config import RunConfig
from pfl_bench.data import Dataset, DatasetSpec
from pfl_bench.datasets.partition import make_partition
from pfl_bench.hyper import as_dict, resolve
from pfl_bench.models import TEXT_LENGTH
from pfl_bench.registry import load_algorithm
from pfl_bench.simulator import Simulator

CLIENTS = 8
SAMPLES_EACH = 8
AGNEWS_VOCABULARY = 98_635
"""The full vocabulary of AG News, in the authors' run."""


@dataclass(frozen=True)
class Footprint:
    """Per client, in numbers of parameters and in bytes."""

    model_parameters: int
    kept: Mapping[str, int]
    parameters_up: int
    parameters_down: int
    bytes_up: int
    bytes_down: int


def footprint(algo: str, model: str, spec: DatasetSpec, hyper: Mapping[str, Any]) -> Footprint:
    """What `algo` keeps on a client and sends in its second round (in the first, some methods have
    nothing to send yet)."""
    dataset = _random_dataset(spec)
    values = resolve(load_algorithm(algo).Hyper, model, hyper, algo)
    config = RunConfig(
        algo=algo,
        hyper=as_dict(values),
        dataset=spec.name,
        source="real",
        data_fingerprint=dataset.fingerprint,
        fraction=1.0,
        setting="iid",
        beta=None,
        clients=CLIENTS,
        sampled_from=None,
        classes_per_client=None,
        partition_seed=0,
        model=model,
        rounds=2,
        local_epochs=1,
        batch_size=2,
        lr=0.0,
        joining_ratio=(1.0, 1.0),
        eval_every=2,
        patience=None,
        bn_stats="local",
        seed=0,
        record=(),
    )
    partition = make_partition(
        dataset.y, dataset.classes, setting="iid", clients=CLIENTS, batch_size=2
    )
    simulator = Simulator(config, dataset, partition)
    simulator.prepare()
    *_, last = simulator.rounds()
    backbone = simulator.task.build_model()
    return Footprint(
        sum(p.numel() for m in (backbone.extractor, backbone.head) for p in m.parameters()),
        {name: value.numel() for name, value in simulator.snapshot.clients.get(0, {}).items()},
        last.parameters_up // CLIENTS,
        last.parameters_down // CLIENTS,
        last.bytes_up // CLIENTS,
        last.bytes_down // CLIENTS,
    )


def _random_dataset(spec: DatasetSpec) -> Dataset:
    rng = np.random.default_rng(0)
    samples = CLIENTS * SAMPLES_EACH
    y = rng.integers(0, spec.classes, samples)
    if spec.shape is None:
        x = rng.integers(1, AGNEWS_VOCABULARY, (samples, TEXT_LENGTH), dtype=np.int32)
        return Dataset(spec.name, "real", x, y, spec.classes, AGNEWS_VOCABULARY, "random")
    channels, height, width = spec.shape
    x = rng.integers(0, 256, (samples, height, width, channels), dtype=np.uint8)
    return Dataset(spec.name, "real", x, y, spec.classes, None, "random")
