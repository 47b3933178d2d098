"""The networks in which clients train and the server computes: one a worker, loaded for every job.

A workspace has no memory. What is in it before a job is whatever the job before left there; the
batch-norm statistics alone are loaded here, because no message carries them.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pfl_bench.device import handed_over, taken_over
from pfl_bench.engine.algorithm import Algorithm, Start, build_network, initial_values
from pfl_bench.engine.snapshot import Snapshot
from pfl_bench.models import Network, Stack, seeded


class Workspaces:
    """The workspaces of a run, and what a network is like before the first round."""

    def __init__(self, algorithm: Algorithm, workers: int, device: torch.device):
        self._algorithm, self._device = algorithm, device
        self._building = threading.Lock()
        self._free: queue.SimpleQueue[tuple[Network, Any]] = queue.SimpleQueue()
        self._servers_own: list[tuple[Network, Any]] = []
        self._stacks: list[tuple[Stack, Any]] = []
        self._block_size = algorithm.task.config.block_size
        nets = [self.build() for _ in range(workers)]
        for net in nets:
            self._free.put((net, handed_over(device)))
        self.sizes = {part: nets[0][part].numel() for part in nets[0].parts}
        self.fresh_stats = nets[0].stats.clone()
        averaged = nets[0].statistics_mask(self._averaged_parts(nets[0]))
        self.averages_all = bool(averaged.all())
        self.averaged = averaged.nonzero().flatten().to(device)
        """The batch-norm statistics that are sent and averaged like parameters, by their places."""

    def build(self) -> Network:
        seed = self._algorithm.task.config.seed
        return seeded(seed, lambda: build_network(self._algorithm)).to(self._device)

    def start(self) -> Start:
        """The values before the first round, made anew: to keep them would cost a model."""
        return initial_values(self._algorithm, self.build())

    def _averaged_parts(self, net: Network) -> list[str]:
        if self._algorithm.task.config.bn_stats != "average":
            return []
        shared, personal = self._algorithm.shared, self._algorithm.personal
        return [part for part in shared if part in net.trainable_parts and part not in personal]

    @property
    def fresh_average(self) -> torch.Tensor | None:
        """The server's batch-norm statistics before the first round, where it has any."""
        return self.fresh_stats[self.averaged] if len(self.averaged) else None

    @contextlib.contextmanager
    def of_client(self, index: int, snapshot: Snapshot) -> Iterator[Network]:
        """A free workspace, with the client's batch-norm statistics."""
        net, event = self._free.get()
        try:
            taken_over(event, self._device)
            self.load_stats(net, index, snapshot)
            yield net
        finally:
            self._free.put((net, handed_over(self._device)))

    @contextlib.contextmanager
    def of_block(self, clients: Sequence[int], snapshot: Snapshot) -> Iterator[Stack]:
        """Networks to train some clients as one, each with its batch-norm statistics."""
        with self._building:
            has_one = bool(self._stacks)
            own = self._stacks.pop() if has_one else (Stack(self.build(), self._block_size), None)
        stack, event = own
        taken_over(event, self._device)
        for net, index in zip(stack.members, clients, strict=False):
            self.load_stats(net, index, snapshot)
        try:
            yield stack
        finally:
            self._stacks.append((stack, handed_over(self._device)))

    @contextlib.contextmanager
    def of_server(self, snapshot: Snapshot) -> Iterator[Network]:
        """A network beside those of the workers, who may all be waiting for the server."""
        with self._building:
            own = self._servers_own.pop() if self._servers_own else (self.build(), None)
        net, event = own
        taken_over(event, self._device)
        self.load_stats(net, None, snapshot)
        net.vector.fill_(math.nan)
        try:
            yield net
        finally:
            self._servers_own.append((net, handed_over(self._device)))

    def load_stats(self, net: Network, index: int | None, snapshot: Snapshot) -> None:
        """Batch-norm statistics: the client's own, or the server's average where that is chosen."""
        own = self.fresh_stats if index is None else snapshot.stats.get(index)
        net.stats.copy_(self.fresh_stats if own is None else own)
        if snapshot.server_stats is not None:
            net.stats[self.averaged] = snapshot.server_stats
