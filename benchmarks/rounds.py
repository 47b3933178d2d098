"""Whole rounds: ours beside the naive simulator and beside the bare loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.bare import BareLoop
from benchmarks.laps import Ratio, contest, in_turns, seconds
from benchmarks.naive import NaiveSimulator
from benchmarks.workloads import Workload


@dataclass(frozen=True)
class RoundRow:
    name: str
    ours: float
    """Seconds per round, the best."""
    naive: Ratio
    """The naive simulator with torch's own choice of threads, over ours."""
    naive_one_thread: Ratio
    engine: Ratio
    """Our round without its evaluation, over the bare loop."""
    difference: float
    """The largest difference between the accuracies of both after a round."""


def measure(workload: Workload, workers: int, repeats: int) -> RoundRow:
    builders: dict[str, Callable[[], Callable[[], Any]]] = {
        "ours": partial(build_ours, workload, workers),
        "naive": partial(_build_naive, workload, torch.get_num_threads()),
        "naive, one thread": partial(_build_naive, workload, 1),
        "bare": partial(_build_bare, workload, workers),
    }
    with contest(builders) as contestants:
        laps = in_turns(contestants, repeats)
    ours = seconds(laps["ours"])
    training = [lap.seconds - lap.answer["seconds"]["evaluation"] for lap in laps["ours"]]
    accuracies = zip(laps["ours"], laps["naive"], strict=True)
    return RoundRow(
        name=workload.name,
        ours=min(ours),
        naive=Ratio.of(seconds(laps["naive"]), ours),
        naive_one_thread=Ratio.of(seconds(laps["naive, one thread"]), ours),
        engine=Ratio.of(training, seconds(laps["bare"])),
        difference=max(abs(a.answer["accuracy"] - b.answer) for a, b in accuracies),
    )


def measure_pair(workload: Workload, repeats: int) -> Ratio:
    """The throughput of two jobs of one worker each, over that of one."""
    build = partial(build_ours, workload, 1)
    with contest({"one": build, "other": build}) as contestants:
        one, other = contestants["one"], contestants["other"]
        one.lap(), other.lap()
        alone, together = [], []
        for _ in range(repeats):
            alone.append((one.lap().seconds + other.lap().seconds) / 2)
            one.start()
            other.start()
            together.append(max(one.finish().seconds, other.finish().seconds))
    return Ratio.of([2 * t for t in alone], together)


@dataclass(frozen=True)
class DeviceRow:
    """A round on a device beside one on the processor's cores."""

    name: str
    seconds: float
    """Per round on the device, the best."""
    cores: Ratio
    """The cores' seconds over the device's."""
    difference: float
    """Between the accuracies of both after the last round."""


def measure_device(workload: Workload, device: str, workers: int, repeats: int) -> DeviceRow:
    places = {"there": device, "cores": "cpu"}
    builders = {name: partial(build_ours, workload, workers, at) for name, at in places.items()}
    with contest(builders) as contestants:
        laps = in_turns(contestants, repeats)
    there, cores = seconds(laps["there"]), seconds(laps["cores"])
    last = [laps[name][-1].answer["accuracy"] for name in places]
    return DeviceRow(workload.name, min(there), Ratio.of(cores, there), abs(last[0] - last[1]))


def build_ours(
    workload: Workload, workers: int, device: str = "cpu"
) -> Callable[[], dict[str, Any]]:
    rounds = workload.simulator(workers, device=device).rounds()

    def lap() -> dict[str, Any]:
        record = next(rounds)
        return {"accuracy": record.accuracy, "seconds": record.seconds}

    return lap


def _build_naive(workload: Workload, threads: int) -> Callable[[], float]:
    simulator = NaiveSimulator(workload.simulator(workers=1))
    torch.set_num_threads(threads)
    return simulator.run_round


def _build_bare(workload: Workload, workers: int) -> Callable[[], None]:
    return BareLoop(workload.simulator(workers)).run_round
