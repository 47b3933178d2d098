"""What a run asks of a machine, as a scheduler must know it beforehand: cores, a GPU, memory; and
how many runs a machine does best at a time.

Memory is estimated from the configuration: the shapes of the model, of what the method keeps on
every client and of what it sends, without a value being computed. It errs on the side of too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pfl_bench.config import RunConfig, resolve
from pfl_bench.data import Dataset
from pfl_bench.engine import IN_FLIGHT, Task, Tree, build_network, initial_values, leaves
from pfl_bench.execution.options import Execution, choose_device, default_workers
from pfl_bench.models import build_model, inputs_of, model_spec
from pfl_bench.plugins import load_algorithm
from pfl_bench.store import machine

PROCESS_BYTES = 600_000_000
"""Python with torch, before any data."""
WORKER_BYTES = 250_000_000
"""The activations of a batch, per client trained at the same time."""
SMALL_RUN_BYTES = 2_000_000_000
"""More than a run of a small model takes, its data included."""


@dataclass(frozen=True)
class Resources:
    """What one run takes."""

    cores: int = 1
    gpus: float = 0.0
    """Cards; a fraction shares one with other runs."""
    memory: int = 0
    """Bytes, the data aside: it is shared by the runs of a machine."""


def memory_of(config: RunConfig, dataset: Dataset, clients: int, workers: int) -> int:
    """Bytes that a run holds at its peak, by estimate; UserError where its model cannot read the
    data."""
    inputs = inputs_of(dataset, config.dataset, config.model)
    task = Task(
        config=config,
        classes=dataset.classes,
        train_sizes=(1,) * clients,
        build_model=lambda: build_model(config.model, inputs),
    )
    kind = load_algorithm(config.algo)
    algorithm = kind(resolve(kind.Hyper, config.model, config.hyper, config.algo), task)
    with torch.device("meta"):
        net = build_network(algorithm)
        start = initial_values(algorithm, net)
        kept = _size(algorithm.client_state(start)) + net.stats.nbytes
        server = _size(algorithm.server_state(start))
    model = net.vector.nbytes
    state = server + clients * kept
    messages = min(clients, IN_FLIGHT) * model
    workspaces = workers * (3 * model + WORKER_BYTES)  # values, gradients, what was received
    # The state twice: as the run holds it, and as a checkpoint on its way.
    return PROCESS_BYTES + workspaces + messages + 2 * state


def _size(state: Tree) -> int:
    return sum(value.nbytes for value in leaves(state))


def jobs_for(configs: Sequence[RunConfig], options: Execution) -> int:
    """How many of these runs go on at the same time on this machine."""
    if options.timed or not configs:
        return 1
    return min(options.jobs or _jobs_that_pay(configs, options), len(configs))


def _jobs_that_pay(configs: Sequence[RunConfig], options: Execution) -> int:
    """A run per core where one run would leave cores idle, as far as the memory goes; else one
    after another, each on all cores."""
    idle = all(model_spec(config.model).leaves_cores_idle for config in configs)
    if not idle or choose_device(options.device) != "cpu":
        return 1
    cores = default_workers() // (options.workers or 1)
    room = (machine()["memory"] or 0) // SMALL_RUN_BYTES
    return max(1, min(cores, room))
