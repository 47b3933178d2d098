"""How to run: where, how many at once, on what device; none of it can change a result.

What decides a result is `config.RunConfig`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pfl_bench.base import UserError, unknown
from pfl_bench.data import Dataset, Partition

PLACES = ("local", "ray")
DEVICES = ("auto", "cpu", "cuda", "cuda:N", "mps")
AS_MANY_AS_PAY = 0
"""For `jobs`: so many runs at a time that no core stands idle (`resources.jobs_for`)."""


@dataclass(frozen=True)
class Execution:
    """The options of running, in one place."""

    data_dir: Path
    where: str = "local"
    """One of PLACES: this machine, or a Ray cluster."""
    jobs: int | None = None
    """Runs at the same time, each in a process of its own; or AS_MANY_AS_PAY. By
    default one after another in this process; on a cluster, as many as there is room for."""
    workers: int | None = None
    """Clients at the same time within a run; by default each run's share of the cores."""
    device: str = "auto"
    plugins: tuple[Path, ...] = ()
    fresh: bool = False
    """Repeat runs that are stored."""
    timed: bool = False
    """Each run has the machine to itself and a process of its own: its times are wanted."""
    checkpoint_every: int | None = None
    """Save after this many rounds instead of by time."""
    keep_state: bool = False
    """Keep the state after the last round beside the result; `trained_model` gives it back."""
    track: tuple[str, ...] = ()
    """Who keeps the rounds too, as tensorboard:DIR or mlflow."""
    address: str | None = None
    """Of a cluster: host:port of a running one, or "auto"; None starts one on this machine."""
    gpus: float | None = None
    """Of a cluster: cards per run; by default one where there are any."""
    partition: str | None = None
    """Where a PFLlib partition lies, for a run that uses one."""
    given: tuple[Dataset, Partition] | None = None
    """The data and how it is dealt, already in memory, instead of the folder's."""

    @property
    def share(self) -> int:
        """Clients at the same time within each of the runs that go on together."""
        return self.workers or max(1, default_workers() // (self.jobs or 1))


def default_workers() -> int:
    """One worker per core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_device(name: str) -> str:
    """The device to compute on; `auto` takes the first accelerator there is, `cuda:1` the second
    card."""
    import torch

    name = name.lower()
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?|mps", name):
        raise unknown("device", name, DEVICES)
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    if name == "auto":
        return "cuda" if cards else "mps" if has_mps else "cpu"
    there = ["cpu", *(f"cuda:{k}" for k in range(cards)), *(["mps"] if has_mps else [])]
    if name not in there and not (name == "cuda" and cards):
        listing = ", ".join(there)
        raise UserError(f"the device {name!r} is not on this machine; there is: {listing}")
    return name
