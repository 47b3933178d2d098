"""The state of a run between two rounds, and its form in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_bench.engine.server import ServerState
from pfl_bench.engine.trees import Tree, flatten, grow
from pfl_bench.store import DamagedError


@dataclass(frozen=True)
class Snapshot:
    """The state after a round: all that is needed to continue."""

    round: int
    server: ServerState
    clients: dict[int, dict[str, Tree]]
    stats: dict[int, Tensor]
    server_stats: Tensor | None

    def tensors(self) -> dict[str, Tensor]:
        """The snapshot under flat names, for a checkpoint."""
        flat = flatten(self.server, "server") if self.server else {}
        for client, state in self.clients.items():
            flat |= flatten(state, f"client/{client}")
        flat.update({f"stats/{client}": value for client, value in self.stats.items()})
        if self.server_stats is not None:
            flat["server_stats"] = self.server_stats
        return flat

    def continued(self, round: int, flat: dict[str, Tensor], device: torch.device) -> Snapshot:
        """The snapshot in a checkpoint of a run that began with this one; DamagedError where it
        cannot be, as when the method has come to keep something else."""
        try:
            found = self._from_tensors(round, flat, device)
        except (ValueError, KeyError) as error:
            raise DamagedError(f"it cannot be read ({error})") from error
        if not self.server.keys() <= found.server.keys():
            raise DamagedError(f"the server's state is now {', '.join(self.server)}")
        if _shape(found.server_stats) != _shape(self.server_stats):
            raise DamagedError("the server has other batch-norm statistics")
        return found

    @classmethod
    def _from_tensors(cls, round: int, flat: dict[str, Tensor], device: torch.device) -> Snapshot:
        rooms: dict[str, dict[str, Tensor]] = {"server": {}, "client": {}, "stats": {}}
        server_stats = None
        for name, cpu_value in flat.items():
            room, _, rest = name.partition("/")
            if name == "server_stats":
                server_stats = cpu_value.to(device)
            elif rest and room in rooms:
                rooms[room][rest] = cpu_value.to(device)
            else:
                raise ValueError(f"{name!r} is no name in a checkpoint")
        clients: dict[str, dict[str, Tensor]] = {}
        for name, value in rooms["client"].items():
            index, _, rest = name.partition("/")
            clients.setdefault(index, {})[rest] = value
        return cls(
            round,
            grow(rooms["server"]) if rooms["server"] else {},
            {int(index): grow(state) for index, state in clients.items()},
            {int(index): value for index, value in rooms["stats"].items()},
            server_stats,
        )


def _shape(stats: Tensor | None) -> torch.Size | None:
    return None if stats is None else stats.shape
