"""One client's trained model, to call on samples: for those who look into a run from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from pfl_bench.engine import Simulator


class ClientModel(nn.Module):
    """The model of a client that its accuracy is measured with, after the last round.

    Calling it on a batch gives logits, as the method predicts. `parts` are its modules by name, and
    `state_dict()` its parameters, those of every part."""

    def __init__(self, simulator: Simulator, client: int):
        super().__init__()
        self._algorithm = simulator.algorithm
        self._client = simulator.trained_client(client)
        self.parts = nn.ModuleDict(self._client.net.parts)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self._algorithm.predict(self._client, x)

    def samples(self, which: str = "test") -> tuple[Tensor, Tensor]:
        """The client's own samples and their classes: those of "test", of "train", or of
        "validation" where some are held back."""
        shard = self._client.shard
        rows = shard.part(which)
        return shard.pool.inputs(rows), shard.pool.y[rows]
