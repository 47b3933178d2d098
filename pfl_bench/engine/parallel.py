"""Jobs of many clients on a pool of threads, their results in the order of the clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")

GROUP = 32
IN_FLIGHT = 2 * GROUP
"""How many clients' uploads may wait for their turn: bounds memory, whatever the client count."""


def in_order(
    pool: Executor,
    job: Callable[[int], T],
    indices: Sequence[int],
    cost: Callable[[int], int],
) -> Iterator[T]:
    """Run `job` for every index in parallel; yield the results in the order of `indices`.

    Works through groups, the next group already queued while one is consumed. Within
    a group the costliest go first, so that no worker is left with a long job at the end.
    """

    def submit(group: Sequence[int]) -> list[Future[T]]:
        futures = {i: pool.submit(job, i) for i in sorted(group, key=cost, reverse=True)}
        return [futures[i] for i in group]

    groups = [indices[k : k + GROUP] for k in range(0, len(indices), GROUP)]
    waiting: list[Future[T]] = submit(groups[0]) if groups else []
    for following in [*groups[1:], ()]:
        current, waiting = waiting, submit(following)
        current.reverse()
        while current:
            yield current.pop().result()
