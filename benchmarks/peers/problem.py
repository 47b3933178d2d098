"""The problem that every simulator is given, as one file of arrays."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from benchmarks.workloads import CIFAR, Workload
from pfl_bench.base import UserError

SAMPLES = 4_500
"""About as many images as PFLlib's own partitions of a tenth of Cifar10 have."""


def export(path: Path, samples: int = SAMPLES, method: str = "fedavg") -> Workload:
    """Write the samples, who has which, the initial model, the rate, the method and its
    hyper-parameters; the workload that it is."""
    workload = Workload(method, CIFAR, samples)
    ours = workload.simulator(workers=1)
    if reason := ours.impossible:
        raise UserError(reason)
    hyper = dataclasses.asdict(ours.algorithm.hyper)
    simulator = Workload("fedavg", CIFAR, samples).simulator(workers=1)
    pool = simulator.shards[0].pool
    arrays = {
        "x": pool.x.numpy(),
        "y": pool.y.numpy(),
        "lr": np.array(simulator.config.lr),
        "batch_size": np.array(simulator.config.batch_size),
        "clients": np.array(len(simulator.shards)),
        "rounds": np.array(simulator.config.rounds),
        "method": np.array(method),
        "hyper": np.array(json.dumps(hyper)),
    }
    for k, shard in enumerate(simulator.shards):
        arrays |= {f"train/{k}": shard.train.numpy(), f"test/{k}": shard.test.numpy()}
    with simulator.client(0, 1) as client:
        simulator.algorithm.load(client, simulator.download(0))
        for part in ("extractor", "head"):
            for name, value in client.net.module(part).named_parameters():
                arrays[f"model/{part}.{name}"] = value.detach().contiguous().numpy()
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return workload
