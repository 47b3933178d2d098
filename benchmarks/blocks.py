"""Clients in blocks beside one by one: the time of a round, and the kernels of a client's step.

Time is the processor's, of one worker: what blocks save is work. Kernels are operations that are
dispatched and compute something, counted where a GPU would be given them; they do not depend on the
machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.laps import Ratio, contest, in_turns
from benchmarks.workloads import CIFAR, TEXT, Workload
from pfl_bench.engine import Block, Client
from pfl_bench.models import Network, StackedNetwork

SIZE = 20
SILENT = ("detach", "_unsafe_view", "empty", "new_empty", "_reshape_alias", "lift_fresh")
"""What computes nothing, beside views."""

FASTTEXT, FEDREP = Workload("fedavg", TEXT, 127_600), Workload("fedrep", CIFAR, 6_000)
SMALL_CNN = {"model": "cnn_small"}
WORKLOADS: tuple[tuple[str, Workload, dict[str, Any], dict[str, Any], float | None], ...] = (
    ("fastText, β = 0.1", FASTTEXT, {}, {}, 4.0),
    ("fastText, equal clients", FASTTEXT, {"setting": "iid"}, {}, 4.0),
    # So many that the head's steps are nearly all of a round; then as many as it has by default.
    ("FedRep's 100 head epochs", FEDREP, SMALL_CNN, {"head_epochs": 100}, 4.0),
    ("FedRep with its five head epochs", FEDREP, SMALL_CNN, {}, None),
    ("small CNN", Workload("fedavg", CIFAR, 6_000), SMALL_CNN, {}, None),
)


@dataclass(frozen=True)
class BlockRow:
    name: str
    ratio: Ratio
    """One by one over blocks."""
    goal: float | None


def measure(only: str, repeats: int, told: Callable[[str], None]) -> list[BlockRow]:
    rows = []
    for name, workload, changes, hyper, goal in WORKLOADS:
        if only not in name:
            continue
        told(f"{name} …")
        builders = {size: partial(_build, workload, changes, hyper, size) for size in (1, SIZE)}
        with contest(builders) as contestants:
            laps = in_turns(contestants, repeats)
        alone, together = ([lap.answer for lap in laps[size]] for size in (1, SIZE))
        rows.append(row := BlockRow(name, Ratio.of(alone, together), goal))
        told(f"  {row.ratio} × one by one")
    return rows


def _build(
    workload: Workload, changes: dict[str, Any], hyper: dict[str, Any], size: int
) -> Callable[[], float]:
    simulator = workload.simulator(1, hyper=hyper, block_size=size, **changes)
    rounds = simulator.rounds()

    def lap() -> float:
        began = time.process_time()
        next(rounds)
        return time.process_time() - began

    return lap


@dataclass(frozen=True)
class Kernels:
    """Of FedAvg with the CNN, for each client."""

    step: float
    call: float
    """Beside its steps, each time that it trains: what a block does to write losses down."""


def kernels(size: int) -> Kernels:
    """Kernels that local training dispatches, with convolutions as a GPU has them."""
    simulator = Workload("fedavg", CIFAR, 2_000).simulator(1, setting="iid", block_size=size)
    steps, calls = _Kernels(), _Kernels()
    is_block = size > 1
    with (
        mock.patch("pfl_bench.models.rules.groups_convolutions", lambda device: True),
        _counted(steps, StackedNetwork if is_block else Network, "step"),
        _counted(calls, Block if is_block else Client, "train" if is_block else "take_steps"),
    ):
        next(simulator.rounds())
    taken = sum(shard.samples // simulator.config.batch_size for shard in simulator.shards)
    return Kernels(steps.count / taken, (calls.count - steps.count) / len(simulator.shards))


@contextmanager
def _counted(counter: _Kernels, owner: type, name: str) -> Iterator[None]:
    """Meanwhile what a method dispatches is counted."""
    original = getattr(owner, name)

    def counted(*args: Any) -> Any:
        with counter:
            return original(*args)

    with mock.patch.object(owner, name, counted):
        yield


class _Kernels(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition("::")[2].partition(".")[0]
        self.count += not (func.is_view or name.startswith(SILENT))
        return func(*args, **(kwargs or {}))
