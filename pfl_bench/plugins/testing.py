"""Small problems to test an algorithm on: a dataset, a client, a whole run in a line each.

For tests in this project and in plugins. What every algorithm must hold on them is in
`pfl_bench.plugins.conformance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from pfl_bench.config import RunConfig, resolve
from pfl_bench.data import Dataset, Partition, Roles, make_partition, roles_of
from pfl_bench.engine import (
    Algorithm,
    Client,
    ClientState,
    Pool,
    Server,
    ServerState,
    Shard,
    Simulator,
    Start,
    Task,
    build_network,
    initial_values,
)
from pfl_bench.models import Network, build_model, inputs_of, seeded
from pfl_bench.plugins.registry import load_algorithm, method_facts
from pfl_bench.store import RoundRecord


def toy_dataset(samples: int = 240, classes: int = 4, side: int = 16, seed: int = 0) -> Dataset:
    """Noisy images in which a bright row tells the class: learnable in a few dozen steps."""
    rng = np.random.default_rng(seed)
    y = np.arange(samples) % classes
    x = rng.integers(0, 120, (samples, side, side, 1), dtype=np.uint8)
    x[np.arange(samples), y * (side // classes) + 1] = 250
    return Dataset("toy", "real", x, y.astype(np.int64), classes, None, "toy")


def toy_text(samples: int = 120, classes: int = 4, vocabulary: int = 50) -> Dataset:
    """Texts of six to ten words, padded, of which six tell the class."""
    rng = np.random.default_rng(0)
    y = np.arange(samples) % classes
    x = rng.integers(1, vocabulary, (samples, 200), dtype=np.int32)
    x[np.arange(200) >= rng.integers(6, 11, samples)[:, None]] = 0
    x[:, :6] = 1 + y[:, None] * 3 + rng.integers(0, 3, (samples, 6))
    return Dataset("toytext", "real", x, y.astype(np.int64), classes, vocabulary, "toytext")


def toy_config(
    algo: str = "fedavg", hyper: Mapping[str, Any] | None = None, **changes: Any
) -> RunConfig:
    """A complete configuration; hyper-parameters are resolved as a user's run would."""
    values: dict[str, Any] = {
        "dataset": "toy",
        "source": "real",
        "data_fingerprint": "toy",
        "fraction": 1.0,
        "setting": "practical",
        "beta": 0.3,
        "clients": 4,
        "sampled_from": None,
        "classes_per_client": None,
        "partition_seed": 0,
        "model": "cnn",
        "rounds": 3,
        "local_epochs": 1,
        "batch_size": 8,
        "lr": 0.05,
        "joining_ratio": (1.0, 1.0),
        "eval_every": 1,
        "patience": None,
        "bn_stats": "local",
        "seed": 0,
        "record": (),
        **changes,
    }
    return RunConfig(**{**method_facts(algo, values["model"], hyper or {}), **values})


def toy_partition(config: RunConfig, dataset: Dataset) -> Partition:
    return make_partition(
        dataset.y,
        dataset.classes,
        setting=config.setting,
        clients=config.clients,
        beta=config.beta or 0.1,
        classes_per_client=config.classes_per_client,
        seed=config.partition_seed,
    )


def toy_roles(config: RunConfig, dataset: Dataset) -> Roles:
    return roles_of(
        toy_partition(config, dataset),
        validation=config.validation,
        new_clients=config.new_clients,
        batch_size=config.batch_size,
        seed=config.partition_seed,
    )


def toy_simulator(
    config: RunConfig,
    dataset: Dataset | None = None,
    workers: int = 1,
    partition: Partition | None = None,
    device: str = "cpu",
) -> Simulator:
    dataset = dataset or toy_dataset()
    partition = partition or toy_partition(config, dataset)
    kind = load_algorithm(config.algo)
    simulator = Simulator(kind, config, dataset, partition, workers=workers, device=device)
    simulator.prepare()
    return simulator


def toy_run(
    config: RunConfig,
    dataset: Dataset | None = None,
    workers: int = 1,
    partition: Partition | None = None,
) -> list[RoundRecord]:
    return list(toy_simulator(config, dataset, workers, partition).rounds())


def toy_algorithm(config: RunConfig, dataset: Dataset | None = None) -> Algorithm:
    """The algorithm of a configuration, outside a simulator."""
    dataset = dataset or toy_dataset()
    inputs = inputs_of(dataset, config.dataset, config.model)
    task = Task(
        config=config,
        classes=dataset.classes,
        train_sizes=tuple(map(len, toy_roles(config, dataset).clients.train)),
        build_model=lambda: build_model(config.model, inputs),
    )
    kind = load_algorithm(config.algo)
    return kind(resolve(kind.Hyper, config.model, config.hyper, config.algo), task)


def toy_client(
    algorithm: Algorithm, dataset: Dataset | None = None, index: int = 0, round: int = 1
) -> tuple[Client, Start]:
    """A client on a fresh workspace, as the simulator would make it, and the initial values."""
    torch.set_num_threads(1)
    config = algorithm.task.config
    dataset = dataset or toy_dataset()
    roles = toy_roles(config, dataset)
    net = seeded(config.seed, lambda: build_network(algorithm))
    start = initial_values(algorithm, net)
    pool = Pool(dataset.x, dataset.y, torch.device("cpu"))
    own = roles.clients.train[index], roles.clients.test[index]
    shard = Shard(pool, *own, dataset.classes, roles.validation[index])
    state = ClientState(algorithm.client_state(start), {})
    return Client(index, round, algorithm.task, shard, state, net), start


def toy_server(
    algorithm: Algorithm, state: ServerState | Start, round: int = 0, joined: Sequence[int] = ()
) -> Server:
    """The server with a state, or before the first round; as the simulator would make it."""
    config = algorithm.task.config
    if isinstance(state, Start):
        state = algorithm.server_state(state)

    def workspace() -> AbstractContextManager[Network]:
        return nullcontext(seeded(config.seed, lambda: build_network(algorithm)))

    return Server(state, round, algorithm.task, workspace, recorded={}, joined=joined)
