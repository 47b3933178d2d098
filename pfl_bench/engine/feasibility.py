"""Whether a run can take place: what the method, its steps, its batches and new clients need."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pfl_bench.engine.algorithm import Algorithm
from pfl_bench.engine.batches import Shard
from pfl_bench.models import seeded


def why_impossible(
    algorithm: Algorithm, shards: Sequence[Shard], newcomers: Sequence[Shard]
) -> str | None:
    """The reason why the run cannot take place on these clients, if there is one."""
    return (
        algorithm.impossible()
        or _plain_steps(algorithm)
        or _single_sample(algorithm, shards[0])
        or _unwelcome(algorithm, newcomers)
    )


def _plain_steps(algorithm: Algorithm) -> str | None:
    config = algorithm.task.config
    if algorithm.steps_are_plain and (config.momentum or config.weight_decay):
        return f"{algorithm.title} takes plain steps: no momentum, no weight decay"
    return None


def _single_sample(algorithm: Algorithm, shard: Shard) -> str | None:
    """Batch norm has nothing to normalise over where a batch leaves it one value a channel."""
    config, sizes = algorithm.task.config, algorithm.trained_sizes()
    if min(config.batch_size, *sizes) > 1:
        return None
    model = seeded(config.seed, algorithm.task.build_model)
    device = shard.pool.y.device
    first = torch.zeros(1, dtype=torch.int64, device=device)
    try:
        model.extractor.to(device)(shard.pool.inputs(first))
    except ValueError:
        client = f"client {sizes.index(min(sizes))} trains on"
        one = "batches have" if config.batch_size == 1 else client
        return f"batch norm in {config.model} needs two samples at a time and {one} one"
    return None


def _unwelcome(algorithm: Algorithm, newcomers: Sequence[Shard]) -> str | None:
    """Why the clients that never join cannot be scored, if they cannot."""
    if not newcomers:
        return None
    if min(shard.samples for shard in newcomers) < 2:
        return "a new client has a single training sample to adapt on"
    return algorithm.newcomer()
