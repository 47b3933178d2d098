"""One federated run in memory: algorithms, clients, batches, the rounds and what they add up to."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.engine.algorithm import (
        Algorithm,
        FineTuned,
        PersonalModelBeside,
        PersonalModelSent,
        Start,
        Upload,
        build_network,
        initial_values,
        weighted_mean,
    )
    from pfl_bench.engine.batches import EVALUATION_BATCH, Batch, Pool, Shard
    from pfl_bench.engine.blocks import Block
    from pfl_bench.engine.client import Client, ClientState, Loss, Message, Task
    from pfl_bench.engine.parallel import IN_FLIGHT, in_order
    from pfl_bench.engine.server import Server, ServerState, Spread
    from pfl_bench.engine.simulator import Interrupted, Simulator
    from pfl_bench.engine.timing import RunWatch
    from pfl_bench.engine.totals import CONVERGENCE, RECORDABLE
    from pfl_bench.engine.trees import Tree, leaves

__getattr__, __dir__, __all__ = face(__name__, __file__)
