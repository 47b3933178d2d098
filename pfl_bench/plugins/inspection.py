"""What a method keeps and sends for a given model, measured on two rounds with random data.

Nothing here is declared twice: the figures are those that the simulator counts from the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfl_bench import data
from pfl_bench.config import RunConfig
from pfl_bench.data import Dataset, DatasetSpec, make_partition
from pfl_bench.engine import Simulator, leaves
from pfl_bench.models import TEXT_LENGTH
from pfl_bench.plugins.registry import load_algorithm, method_facts

FEWEST_CLIENTS = 8
MOST_CLIENTS = 50
"""More take minutes, where each is sent the models of all others."""
SAMPLES_EACH = 8
BLOCK = 2
"""Clients trained as one, so that it is known whether they can be."""
AGNEWS_VOCABULARY = 98_635
"""The full vocabulary of AG News, in the authors' run."""


@dataclass(frozen=True)
class Footprint:
    """Per client, in numbers of parameters and in bytes."""

    clients: int
    """Among so many: a client cannot be sent more models than there are others."""
    model_parameters: int
    kept: Mapping[str, int]
    parameters_up: int
    parameters_down: int
    bytes_up: int
    bytes_down: int
    one_by_one: str
    """Why clients cannot be trained in blocks, if they cannot."""


def footprint(
    algo: str, model: str, spec: DatasetSpec, data_dir: Path, hyper: Mapping[str, Any]
) -> Footprint:
    """What `algo` keeps on a client and sends in its second round (in the first, some methods have
    nothing to send yet)."""
    method = method_facts(algo, model, hyper)
    clients = _enough_clients(method["hyper"])
    dataset = _random_dataset(spec, _vocabulary(spec, data_dir), clients * SAMPLES_EACH)
    config = RunConfig(
        **method,
        dataset=spec.name,
        source="real",
        data_fingerprint=dataset.fingerprint,
        setting="iid",
        clients=clients,
        model=model,
        rounds=2,
        batch_size=2,
        lr=0.0,
        eval_every=2,
        block_size=BLOCK,
        seed=0,
    )
    partition = make_partition(dataset.y, dataset.classes, setting="iid", clients=clients)
    simulator = Simulator(load_algorithm(algo), config, dataset, partition)
    simulator.prepare()
    *_, last = simulator.rounds()
    return Footprint(
        clients,
        simulator.task.build_model().size,
        {
            name: sum(value.numel() for value in leaves(kept))
            for name, kept in simulator.snapshot.clients.get(0, {}).items()
        },
        last.parameters_up // clients,
        last.parameters_down // clients,
        last.bytes_up // clients,
        last.bytes_down // clients,
        simulator.algorithm.one_by_one or "; ".join(simulator.found_one_by_one),
    )


def _enough_clients(hyper: Mapping[str, Any]) -> int:
    """More than any whole number among the hyper-parameters: it may be that of models to send."""
    numbers = (value for value in hyper.values() if type(value) is int)
    return min(MOST_CLIENTS, max(FEWEST_CLIENTS, 1 + max(numbers, default=0)))


def _vocabulary(spec: DatasetSpec, data_dir: Path) -> int | None:
    """Rows of the embedding of a text set; AG News need not be prepared to tell."""
    if spec.kind == "image":
        return None
    if spec.name == "agnews":
        return AGNEWS_VOCABULARY
    is_prepared = (data_dir / spec.filename).exists()
    source = "real" if is_prepared or spec.standin is None else "standin"
    return data.card(spec.name, source, data_dir).vocabulary


def _random_dataset(spec: DatasetSpec, vocabulary: int | None, samples: int) -> Dataset:
    rng = np.random.default_rng(0)
    y = rng.integers(0, spec.classes, samples)
    if vocabulary is not None:
        x = rng.integers(0, vocabulary, (samples, TEXT_LENGTH), dtype=np.int32)
        return Dataset(spec.name, "real", x, y, spec.classes, vocabulary, "random")
    assert spec.shape is not None
    channels, height, width = spec.shape
    x = rng.integers(0, 256, (samples, height, width, channels), dtype=np.uint8)
    return Dataset(spec.name, "real", x, y, spec.classes, None, "random")
