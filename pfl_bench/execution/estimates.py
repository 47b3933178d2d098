"""In which order runs are submitted to many workers, and how long they then take together.

The longest first: what is left at the end, when workers begin to stand idle, is short. Times come
from `plan.Pace` where something like the run was measured, and otherwise from the arithmetic
of the model. Nothing here runs anything.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from pfl_bench import data
from pfl_bench.base import UserError
from pfl_bench.config import RunConfig
from pfl_bench.models import TEXT_LENGTH, Inputs, build_model, inputs_of
from pfl_bench.reporting.tables import Pace, PlannedRun, work_per_round

STEP_OVERHEAD = 2e6
"""What handling a sample costs besides arithmetic, in floating-point operations. Read off measured
rounds: on a core, 0.1 ms per sample of fastText and 55 ms for 10⁹ operations of a CNN."""


def longest_first(runs: Sequence[PlannedRun], pace: Pace, data_dir: Path) -> list[PlannedRun]:
    """The runs by the time they are expected to take; of equals, the order stays."""
    seconds = expected_seconds([run.config for run in runs], pace, data_dir)
    order = sorted(range(len(runs)), key=lambda i: -seconds[i])
    return [runs[i] for i in order]


def expected_seconds(configs: Sequence[RunConfig], pace: Pace, data_dir: Path) -> list[float]:
    """What each run takes: measured on runs like it, else told from its effort at the rate of the
    measured ones. Where nothing is measured, only the ratios mean anything."""
    measured = [pace.left(config) for config in configs]
    efforts = [effort(config, data_dir) for config in configs]
    known = [(s, e) for s, e in zip(measured, efforts, strict=True) if s is not None]
    work = sum(e for _, e in known)
    rate = sum(s for s, _ in known) / work if work else 1.0
    return [e * rate if s is None else s for s, e in zip(measured, efforts, strict=True)]


def effort(config: RunConfig, data_dir: Path) -> float:
    """Floating-point operations of all forward passes in training, whatever the method."""
    return config.rounds * work_per_round(config) * _epoch_effort(
        config.dataset, config.source, config.image_size, config.model, data_dir
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _epoch_effort(
    dataset: str, source: str, image_size: int | None, model: str, data_dir: Path
) -> float:
    """One pass over a whole dataset; one operation where that cannot be told beforehand: of data
    that a partition from outside brings with it, and of a run that will be refused."""
    try:
        card = data.card(dataset, source, data_dir).reduced(image_size)
        inputs = inputs_of(card, dataset, model)
        return card.samples * (STEP_OVERHEAD + _operations(model, inputs))
    except UserError:
        return 1.0


def _operations(model: str, inputs: Inputs) -> float:
    """Of one sample's forward pass."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    with torch.device("meta"):  # shapes without values
        backbone = build_model(model, inputs)
        x = torch.zeros(1, TEXT_LENGTH, dtype=torch.long)
        if inputs.shape is not None:
            x = torch.zeros(1, *inputs.shape)
    for module in (backbone.extractor, backbone.head):
        module.eval()  # one sample has no batch statistics
    with FlopCounterMode(display=False) as counter:
        backbone.head(backbone.extractor(x))
    return float(counter.get_total_flops())


def makespan(seconds: Iterable[float], workers: int) -> float:
    """When the last worker is done, if each takes the next run in the given order as soon as it is
    free."""
    free = [0.0] * workers
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)
