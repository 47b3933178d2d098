"""Who is trained together: a rule that knows the round's clients and nothing of the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


def windows(
    joined: Sequence[int], size: int, samples: Callable[[int], int], least: int
) -> Iterator[list[list[int]]]:
    """The blocks of a round, by window: clients that follow each other in order, at least `least`
    of them, so that no more uploads than those of two windows wait for their turn.

    Within a window those with as many samples are together, the largest first: they take as many
    steps, and whoever has finished is at the block's end.
    """
    window = -(-max(least, size) // size) * size
    for start in range(0, len(joined), window):
        chosen = sorted(joined[start : start + window], key=lambda i: (-samples(i), i))
        yield [chosen[k : k + size] for k in range(0, len(chosen), size)]
