"""Jobs of many clients on a pool of threads, their results in the order of the clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import TypeVar

G = TypeVar("G")
S = TypeVar("S")
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
    for current in _ahead(groups, submit):
        current.reverse()
        while current:
            yield current.pop().result()


def blocks_in_order(
    pool: Executor,
    job: Callable[[list[int]], list[T]],
    windows: Iterable[list[list[int]]],
) -> Iterator[T]:
    """The same for jobs of several indices each, which give a result for each: windows of them
    follow each other in order, within a window they need not."""

    def submit(window: list[list[int]]) -> dict[int, tuple[Future[list[T]], int]]:
        futures = [(block, pool.submit(job, block)) for block in window]
        return {i: (future, k) for block, future in futures for k, i in enumerate(block)}

    for current in _ahead(list(windows), submit):
        for index in sorted(current):
            future, place = current.pop(index)
            yield future.result()[place]


def _ahead(groups: Sequence[G], submit: Callable[[G], S]) -> Iterator[S]:
    """What is submitted for every group, the next one already when one is handed out."""
    waiting = [submit(group) for group in groups[:1]]
    for following in groups[1:]:
        waiting.append(submit(following))
        yield waiting.pop(0)
    yield from waiting
