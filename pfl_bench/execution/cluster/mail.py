"""What travels between this process and a node: the run there, letters and files back."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from pfl_bench.data import Dataset, Partition
from pfl_bench.execution.cluster.node import Answer, Files, Order, Saved, carry_out
from pfl_bench.execution.observer import Event


def mailbox(ray: ModuleType) -> Any:
    """A queue that all nodes can write to. It must not be lost with one of them, and so it lives
    where this process is."""
    here = ray.get_runtime_context().get_node_id()
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
    lasting = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": strategy}
    return ray.util.queue.Queue(actor_options=lasting)


@dataclass(frozen=True)
class Letter:
    """An event of an attempt at a run, or a reference to the checkpoint that it has saved."""

    address: str
    event: Event | None = None
    saved: tuple[Any, ...] = ()
    round: int = 0


def on_node(
    order: Order,
    dataset: Dataset,
    partition: Partition,
    packed: Mapping[str, np.ndarray],
    mail: Any,
    address: str,
) -> Answer:
    """The Ray task."""
    post = partial(_post, mail, address)
    return carry_out(order, dataset, partition, unpacked(packed), post)


def _post(mail: Any, address: str, item: Event | Saved) -> None:
    import ray

    with contextlib.suppress(ray.exceptions.RayError):  # a letter lost does not stop a run
        if isinstance(item, Saved):
            # Fetched from this node's memory when there is time, and only if no newer one is there.
            saved = (ray.put(packed(item.files)),)
            mail.put(Letter(address, saved=saved, round=item.round))
        else:
            mail.put(Letter(address, item))


def packed(files: Files) -> dict[str, np.ndarray]:
    """As arrays, which Ray moves without copying them piece by piece."""
    return {name: np.frombuffer(content, np.uint8) for name, content in files.items()}


def unpacked(packed: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in packed.items()}
