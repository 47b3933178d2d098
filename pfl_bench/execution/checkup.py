"""Whether a machine can be trusted with a long table: what it delivers, and whether it computes the
same bits twice, with any number of workers, and after a kill.

Small runs on a toy problem, nothing that needs data. How it is told is in `cli.doctor`.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pfl_bench import data
from pfl_bench.base import UserError
from pfl_bench.config import RunConfig
from pfl_bench.data import Dataset
from pfl_bench.engine import Simulator
from pfl_bench.execution.estimates import STEP_OVERHEAD, operations, work_per_round
from pfl_bench.execution.observer import Checkpointed, Observer
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.models import Inputs, inputs_of, product_by_rows, wide_order
from pfl_bench.plugins import (
    AGNEWS_VOCABULARY,
    load_algorithm,
    toy_config,
    toy_dataset,
    toy_partition,
)
from pfl_bench.store import RoundRecord, Store, same_result

SIDE = 1024
"""Of the matrices that are multiplied."""
TOLERANCE = 1e-3
"""How far a card's weights may lie from the processor's after a round, relative to how far training
has moved them: sums in another order, no other arithmetic."""
KILLED_AFTER = 2
"""Rounds of the run that is killed."""
_TIMED = 0.5
"""Seconds for which each product is repeated."""


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    name: str
    holds: bool
    detail: str = ""


def matrix_rates(cores: int) -> tuple[float, float]:
    """Floating-point operations per second of a matrix product: of one core, and of all together,
    a product on each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = _product_rate()
        with ThreadPoolExecutor(cores) as pool:
            together = sum(pool.map(lambda _: _product_rate(), range(cores)))
    finally:
        torch.set_num_threads(before)
    return alone, together


def _product_rate() -> float:
    a = torch.ones(SIDE, SIDE)
    return 2 * SIDE**3 / _seconds(lambda: a @ a, _TIMED)


def _seconds(product: Callable[[], Tensor], timed: float) -> float:
    """Of one of as many as can be had in so many seconds."""
    product()  # the first one also allocates
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < timed:
        product()
        count += 1
    return passed / count


@dataclass(frozen=True)
class WideLayer:
    """The product of the CNN's wide layer with a batch of ten, in both orders."""

    order: str
    """The one that is taken on this machine."""
    seconds: float
    """Of that one, the best of several timings in turns."""
    otherwise: float
    """Of the other."""

    @property
    def is_slow(self) -> bool:
        """Whether the other order would be faster by more than timings vary."""
        return self.seconds > 1.3 * self.otherwise


def wide_layer() -> WideLayer:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    x, weight, bias = torch.ones(10, 1600), torch.ones(512, 1600), torch.ones(512)
    orders: dict[str, Callable[[], Tensor]] = {
        "W xᵀ": lambda: product_by_rows(x, weight, bias),
        "x Wᵀ": lambda: F.linear(x, weight, bias),
    }
    best = dict.fromkeys(orders, math.inf)
    try:
        for _ in range(5):
            for name, product in orders.items():
                best[name] = min(best[name], _seconds(product, 0.02))
    finally:
        torch.set_num_threads(before)
    taken = best.pop(wide_order())
    return WideLayer(wide_order(), taken, *best.values())


@dataclass(frozen=True)
class Pacing:
    """How fast the CNN trains on images of Cifar's shape."""

    step_seconds: float
    """Of one client's step with a batch of ten, over all workers together."""
    operations_per_second: float
    """As `estimates.effort` counts them."""


def pacing(workers: int, device: str = "cpu") -> Pacing:
    """Measured on a round of FedAvg; the one before it is not counted."""
    dataset = _cifar_shape(40 * max(4, workers))
    config = toy_config(dataset=dataset.name, clients=max(4, workers), setting="iid", beta=None,
                        batch_size=10, lr=0.005, rounds=3)  # fmt: skip
    simulator = _simulator(config, dataset, workers, device)
    seconds = [record.total_seconds for record in simulator.rounds()][1:]
    sizes = simulator.task.train_sizes
    samples, steps = sum(sizes), sum(-(-size // config.batch_size) for size in sizes)
    work = STEP_OVERHEAD + operations(config.model, inputs_of(dataset, dataset.name, config.model))
    best = min(seconds)
    return Pacing(best / steps, samples * work / best)


def _cifar_shape(samples: int) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (samples, 32, 32, 3), dtype=np.uint8)
    return Dataset("random", "real", x, np.arange(samples) % 10, 10, None, "random")


def _simulator(config: RunConfig, dataset: Dataset, workers: int, device: str = "cpu") -> Simulator:
    partition = toy_partition(config, dataset)
    kind = load_algorithm(config.algo)
    simulator = Simulator(kind, config, dataset, partition, workers=workers, device=device)
    simulator.prepare()
    return simulator


def checks(folder: Path) -> list[Check]:
    """That runs on this machine's cores are what they should be; `folder` is for scratch."""
    config, dataset = toy_config("fedcp", rounds=4), toy_dataset()
    first = _records(config, dataset, 1)
    found = [
        Check("two runs are equal to the last bit", _same(first, _records(config, dataset, 1))),
        Check("workers 1 and 2 give the same bits", _same(first, _records(config, dataset, 2))),
    ]
    return [*found, _resumed(config, dataset, first, folder)]


def card_checks(device: str) -> list[Check]:
    """That a card computes what the processor does, and the same each time."""
    config, dataset = toy_config("fedcp", rounds=2), toy_dataset()
    start, here = _weights(config, dataset, "cpu", 0), _weights(config, dataset, "cpu", 1)
    there = _weights(config, dataset, device, 1)
    moved = _distance(here, start)
    apart = _distance(there, here) / moved if moved else float("inf")
    once, again = (_records(config, dataset, 1, device) for _ in range(2))
    return [
        Check(
            f"cpu and {device} agree after a round",
            apart <= TOLERANCE,
            f"{apart:.1e} of the way trained, at most {TOLERANCE:g}",
        ),
        Check(f"two runs on {device} are equal to the last bit", _same(once, again)),
    ]


def _records(
    config: RunConfig, dataset: Dataset, workers: int, device: str = "cpu"
) -> list[RoundRecord]:
    return list(_simulator(config, dataset, workers, device).rounds())


def _same(a: Sequence[RoundRecord], b: Sequence[RoundRecord]) -> bool:
    return len(a) == len(b) > 0 and all(map(same_result, a, b))


def _weights(
    config: RunConfig, dataset: Dataset, device: str, rounds: int
) -> dict[str, torch.Tensor]:
    """All that a run has learnt after so many rounds."""
    simulator = _simulator(config, dataset, 1, device)
    list(itertools.islice(simulator.rounds(), rounds))
    tensors = simulator.snapshot.tensors()
    return {name: value.double().cpu() for name, value in tensors.items()}


def _distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Over what both have: clients have nothing of their own before they have trained."""
    return math.sqrt(sum(float((a[name] - b[name]).square().sum()) for name in a.keys() & b.keys()))


# --- a kill ---------------------------------------------------------------------------------------


class _Kill(Observer):
    """Ends this very process as a power cut would, once a state is saved."""

    def on_checkpointed(self, event: Checkpointed) -> None:
        if event.writer.records[-1].round >= KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)


def _options(dataset: Dataset, config: RunConfig, folder: Path) -> Execution:
    given = (dataset, toy_partition(config, dataset))
    return Execution(folder, workers=1, device="cpu", checkpoint_every=1, given=given)


def _until_killed(config: RunConfig, folder: Path) -> None:
    dataset = toy_dataset()
    execute(config, Store(folder), _options(dataset, config, folder), _Kill())


def _resumed(
    config: RunConfig, dataset: Dataset, undisturbed: Sequence[RoundRecord], folder: Path
) -> Check:
    name = "a killed run, continued, ends with the same bits"
    process = multiprocessing.get_context("spawn").Process(
        target=_until_killed, args=(config, folder)
    )
    process.start()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        return Check(name, False, "it was not there to be killed")
    left = [run.status for run in Store(folder).all()]
    ended = execute(config, Store(folder), _options(dataset, config, folder))
    if left != ["interrupted"]:
        return Check(name, False, f"it left {', '.join(left) or 'nothing'}")
    return Check(name, _same(ended.records(), undisturbed))


# --- what a table takes ---------------------------------------------------------------------------


def expected(configs: Sequence[RunConfig], pace: Pacing, data_dir: Path) -> float:
    """Seconds of these runs one after another, each at FedAvg's cost: from the arithmetic of their
    models and the size of their data, which need not be here."""
    sizes: dict[tuple[str, str, int | None, str], float] = {}

    def epoch(config: RunConfig) -> float:
        key = (config.dataset, config.source, config.image_size, config.model)
        if key not in sizes:
            sizes[key] = _epoch_effort(config, data_dir)
        return sizes[key]

    work = sum(config.rounds * work_per_round(config) * epoch(config) for config in configs)
    return work / pace.operations_per_second


def _epoch_effort(config: RunConfig, data_dir: Path) -> float:
    """As `estimates` has it; of published data that are not here, by what is published."""
    try:
        card = data.card(config.dataset, config.source, data_dir)
        samples, inputs = (
            card.samples,
            inputs_of(card.reduced(config.image_size), config.dataset, config.model),
        )
    except UserError:
        spec = data.describe(config.dataset, data_dir)
        if spec.samples is None:
            raise
        samples = spec.samples
        shape = data.reduced_shape(spec.shape, config.image_size)
        inputs = Inputs(spec.classes, shape, AGNEWS_VOCABULARY if shape is None else None)
    return samples * (STEP_OVERHEAD + operations(config.model, inputs))
