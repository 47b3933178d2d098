"""Who and what is kept from training: samples held back for validation, clients that never join.

Both follow from the partition and its seed alone, so that all methods and seeds are judged on the
same samples. How a partition is made is in `partition`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pfl_bench.base import UserError, numpy_generator
from pfl_bench.data.partition import Partition


@dataclass(frozen=True)
class Roles:
    """A partition once it is said what each part of it is for."""

    clients: Partition
    """Those that may join, with what they train on and are tested on."""
    validation: tuple[np.ndarray, ...]
    """What each of them holds back; nothing where no share was asked for."""
    newcomers: Partition | None = None
    """The clients that never join."""


def roles_of(
    partition: Partition,
    *,
    validation: float = 0.0,
    new_clients: int = 0,
    batch_size: int = 1,
    seed: int = 0,
) -> Roles:
    """Hold back a share of each client's training samples, and keep some clients from joining.

    The clients of a smaller number are among those of a larger one, and what a client holds back
    does not depend on who else joins. Those who may join are numbered anew, in their old order.
    """
    check_new_clients(new_clients, partition.clients)
    order = numpy_generator(seed, "partition", "new clients").permutation(partition.clients)
    new = set(order[:new_clients].tolist())
    kept = [_held_back(partition, c, validation, batch_size, seed) for c in range(len(order))]
    seen = [client for client in range(partition.clients) if client not in new]
    return Roles(
        _only(partition, seen, [trained for trained, _ in kept]),
        tuple(kept[client][1] for client in seen),
        _only(partition, sorted(new), [trained for trained, _ in kept]) if new else None,
    )


def check_new_clients(new_clients: int, clients: int) -> None:
    """Refuse to keep everybody from joining."""
    if new_clients >= clients:
        raise UserError(
            f"new_clients cannot be {new_clients}: of {clients} clients at least one must train; "
            f"allowed: 0 to {clients - 1}"
        )


def _held_back(
    partition: Partition, client: int, share: float, batch_size: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """What a client trains on and what it holds back, at least one sample; both as dealt, in their
    old order."""
    train = partition.train[client]
    if not share:
        return train, train[:0]
    held = max(1, round(share * len(train)))
    left = len(train) - held
    if left < 1 or left < batch_size <= len(train):
        raise UserError(
            f"validation cannot be {share:g}: it leaves client {client} with {left} of its "
            f"{len(train)} training samples, and a batch has {min(batch_size, len(train))}"
        )
    drawn = numpy_generator(seed, "partition", "validation", client).permutation(len(train))
    return train[np.sort(drawn[held:])], train[np.sort(drawn[:held])]


def _only(partition: Partition, clients: list[int], train: list[np.ndarray]) -> Partition:
    return Partition(
        tuple(train[client] for client in clients),
        tuple(partition.test[client] for client in clients),
    )
