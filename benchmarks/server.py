"""What the server does in FedAMP and FedFomo, ours beside the plain loops over pairs of clients."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.laps import Ratio
from benchmarks.workloads import CIFAR, Workload
from pfl_bench.engine import ServerState, Spread, Upload

ROWS = 5
"""Clients for which a plain loop over all others is timed; the time for all follows from it."""


@dataclass(frozen=True)
class ServerRow:
    algo: str
    clients: int
    ours: float
    """Seconds per round."""
    plain: Ratio
    """The plain loop with torch's own choice of threads, over ours."""
    plain_one_thread: Ratio
    difference: float | None
    """The largest difference between what both compute."""


def measure(algo: str, clients: int, workers: int, repeats: int) -> ServerRow:
    """The server's work for one round in which everybody sent a model."""
    choice = torch.get_num_threads()
    ours = Server(algo, clients)
    plain: Callable[[Server, int], Any] = {"fedamp": plain_mixture, "fedfomo": plain_choice}[algo]
    rows = min(ROWS, clients)
    our_seconds: list[float] = []
    plain_seconds: dict[int, list[float]] = {choice: [], 1: []}
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(repeats):
            torch.set_num_threads(1)
            seconds, after = _timed(lambda: ours.work(pool.map))
            our_seconds.append(seconds)
            for threads, laps in plain_seconds.items():
                torch.set_num_threads(threads)
                seconds, answers = _timed(lambda: [plain(ours, i) for i in range(rows)])
                laps.append(seconds * clients / rows)
    difference = None
    if algo == "fedamp":
        pairs = zip(after["mixtures"], answers, strict=False)
        difference = max(float((a - b).abs().max()) for a, b in pairs)
    torch.set_num_threads(choice)
    return ServerRow(
        algo,
        clients,
        ours=min(our_seconds),
        plain=Ratio.of(plain_seconds[choice], our_seconds),
        plain_one_thread=Ratio.of(plain_seconds[1], our_seconds),
        difference=difference,
    )


class Server:
    """Our server after a round in which every client sent some model near the first one."""

    def __init__(self, algo: str, clients: int):
        workload = Workload(algo, CIFAR, samples=40 * clients, clients=clients)
        simulator = workload.simulator(workers=1)
        self.algorithm, self.simulator = simulator.algorithm, simulator
        self.state = simulator.snapshot.server
        start = self.state["models"][0]
        generator = torch.Generator().manual_seed(0)
        self.models = [
            start + 1e-3 * torch.randn(len(start), generator=generator) for _ in range(clients)
        ]
        messages = [{"model": model} for model in self.models]
        if algo == "fedfomo":
            none = {"ids": torch.tensor([], dtype=torch.int64), "weights": torch.tensor([])}
            messages = [{**message, **none} for message in messages]
        self.uploads = [Upload(i, 1 / clients, message) for i, message in enumerate(messages)]

    def work(self, spread: Spread = map) -> ServerState:
        server = self.simulator.server(spread, {})
        after = self.algorithm.aggregate(server, iter(self.uploads))
        server.state = after
        for client in range(len(self.models)):
            self.algorithm.download(server, client)
        return after


def plain_mixture(server: Server, i: int) -> Tensor:
    """FedAMP's mixture for one client, other by other."""
    hyper, models = server.algorithm.hyper, server.models
    alpha_k = hyper.alpha * hyper.sigma / (len(models) - 1)
    weights = []
    for other in models:
        apart = models[i] - other
        squared = torch.dot(apart, apart)
        weights.append(alpha_k * torch.exp(-squared / hyper.sigma) / hyper.sigma)
    weights[i] = torch.zeros(())
    weights[i] = 1 - sum(weights)
    mixture = torch.zeros_like(models[i])
    for weight, other in zip(weights, models, strict=True):
        mixture += weight * other
    return mixture


def plain_choice(server: Server, i: int) -> list[Tensor]:
    """FedFomo's answer to one client: the models of highest affinity, copied one by one."""
    affinity = server.state["affinity"][i].tolist()
    order = sorted(range(len(affinity)), key=lambda n: -affinity[n])
    chosen = [n for n in order if n != i][: server.algorithm.hyper.others]
    return [copy.deepcopy(server.models[n]) for n in chosen]


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    answer = work()
    return time.perf_counter() - began, answer
