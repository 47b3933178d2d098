"""Time per round and peak memory as the number of clients grows while the data stays the same."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.laps import contest, in_turns
from benchmarks.workloads import CIFAR, Workload
from pfl_bench.engine import Simulator
from pfl_bench.store import peak_memory

CLIENTS = (20, 100, 500, 2000)
ALGORITHMS = ("fedavg", "fedcp", "fedper", "fedrep", "ditto", "pfedme", "fedamp", "fedfomo")
SAMPLES = 60_000


@dataclass(frozen=True)
class ScaleRow:
    algo: str
    clients: int
    seconds: float
    """Per round, the median."""
    memory: float
    """Peak of the process, in MB."""
    kept: float
    """What the method keeps on the server and on the clients, in MB."""


def _build(workload: Workload, workers: int) -> Callable[[], dict[str, float]]:
    simulator = workload.simulator(workers)
    rounds = simulator.rounds()

    def lap() -> dict[str, float]:
        next(rounds)
        return {"memory": (peak_memory() or 0) / 1e6, "kept": kept_bytes(simulator) / 1e6}

    return lap


def kept_bytes(simulator: Simulator) -> int:
    """The memory of the state between two rounds; what client and server share counts once."""
    tensors = simulator.snapshot.tensors().values()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def needed_gigabytes(algo: str) -> float:
    """Per client for a round: the state before it and the state after it, from a few clients."""

    def kept(few: int) -> int:
        simulator = Workload(algo, CIFAR, 100 * few, clients=few).simulator(workers=1)
        next(simulator.rounds())
        return kept_bytes(simulator)

    return 2 * (kept(8) - kept(4)) / 4 / 1e9


def available_gigabytes() -> float:
    """What Linux can still give; elsewhere taken to be enough."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    return next(float(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1e6


def measure(
    algos: Sequence[str],
    clients: Sequence[int],
    samples: int,
    workers: int,
    repeats: int,
    told: Callable[[str], None],
) -> list[ScaleRow]:
    """One process per cell, so that its peak is its own; the first round does not count.

    For one method the numbers of clients take turns, since what is wanted is their ratio; hence
    all must fit into memory together, and the largest are left out if they do not.
    """
    rows = []
    for algo in algos:
        builders = {}
        free, each = 0.9 * available_gigabytes(), needed_gigabytes(algo)
        for n in sorted(clients):
            needed = n * each
            free -= needed
            if free < 0:
                told(f"{algo}, {n} clients: left out, it needs {needed:.1f} GB")
                continue
            workload = Workload(algo, CIFAR, samples, clients=n)
            builders[n] = partial(_build, workload, workers)
        with contest(builders) as contestants:
            laps = in_turns(contestants, repeats)
        for n in builders:
            last = laps[n][-1].answer
            seconds = statistics.median(lap.seconds for lap in laps[n])
            rows.append(ScaleRow(algo, n, seconds, last["memory"], last["kept"]))
            told(f"{algo}, {n} clients: {seconds:.2f} s a round")
    return rows


def plot(rows: Sequence[ScaleRow], path: Path) -> None:
    """Time relative to the fewest clients, and memory, over the number of clients."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import seaborn as sns

    sns.set_theme(style="whitegrid", context="paper")
    figure, (times, memory) = plt.subplots(1, 2, figsize=(7.2, 3.0), layout="constrained")
    algos = list(dict.fromkeys(row.algo for row in rows))
    for algo, colour, marker in zip(
        algos, sns.color_palette("colorblind", len(algos)), "osD^vPX*", strict=False
    ):
        mine = sorted((row for row in rows if row.algo == algo), key=lambda row: row.clients)
        x = [row.clients for row in mine]
        style = {"color": colour, "marker": marker, "label": algo, "markersize": 4}
        times.plot(x, [row.seconds / mine[0].seconds for row in mine], **style)
        memory.plot(x, [row.kept for row in mine], **style)
    fewest = min(row.clients for row in rows)
    times.set(xscale="log", ylabel=f"time per round / that of {fewest} clients", ylim=(0, None))
    memory.set(xscale="log", yscale="log", ylabel="kept by the method (MB)")
    for axes in (times, memory):
        axes.set(xlabel="clients", xticks=sorted({row.clients for row in rows}))
        axes.get_xaxis().set_major_formatter(matplotlib.ticker.ScalarFormatter())
        axes.minorticks_off()
    memory.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=200)
    plt.close(figure)
