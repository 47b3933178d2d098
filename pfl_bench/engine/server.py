"""The server between two rounds, as an algorithm's hooks see it.

The object lives for one call; what must survive is in the state that `aggregate` returns. How
rounds are run is the simulator's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from pfl_bench.base import seeds
from pfl_bench.device import fetched
from pfl_bench.engine.client import Task
from pfl_bench.engine.trees import Tree
from pfl_bench.models import Network

ServerState = dict[str, Tree]

Spread = Callable[..., Iterator[Any]]
"""Called like `map(job, items)`: the results, in the order of the items."""


class Server:
    """What the server knows and can do.

    `round` counts the whole rounds behind it, so that `state` is always the one after `round`.
    """

    def __init__(
        self,
        state: ServerState,
        round: int,
        task: Task,
        workspace: Callable[[], AbstractContextManager[Network]],
        spread: Spread = map,
        recorded: dict[str, Any] | None = None,
        joined: Sequence[int] = (),
    ):
        self.state = state
        self.round = round
        self.task = task
        self.workspace = workspace
        """`with server.workspace() as net:` a network of its own, in which nothing is loaded."""
        self.spread = spread
        """`map` over all workers in `aggregate`, for independent pieces of work."""
        self.joined = joined
        """The clients whose uploads are aggregated."""
        self._recorded = recorded

    def generator(self, purpose: str, *of: int) -> torch.Generator:
        """Random numbers of this round for one purpose, and if need be for one client."""
        return seeds.torch_generator(self.task.config.seed, purpose, self.round, *of)

    def numpy_generator(self, purpose: str, *of: int) -> np.random.Generator:
        """The same for numpy, whose numbers are others."""
        return seeds.numpy_generator(self.task.config.seed, purpose, self.round, *of)

    def wait_for(self, tree: Any) -> Any:
        """`tree` with numbers in the place of its tensors. The device is waited for, so ask for all
        that is needed at once, after the last upload."""
        return fetched(tree)

    def record(self, series: str, value: Any) -> None:
        """The round's value of a recordable series, kept where a user asks for it: numbers, or a
        tensor, which the device need not have computed yet."""
        if self._recorded is None:
            raise RuntimeError(f"{series!r} can only be recorded while uploads are aggregated")
        self._recorded[series] = value
