"""The state of a run between two rounds, and its form in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pfl_bench.engine.algorithm import ServerState
from pfl_bench.store import DamagedError


def check_names(*states: Mapping[str, Any]) -> None:
    """Refuse what a checkpoint could not tell apart."""
    for name in (name for state in states for name in state):
        if not name or "/" in name:
            raise ValueError(f"a state cannot be called {name!r}: a name has letters and no slash")


@dataclass(frozen=True)
class Snapshot:
    """The state after a round: all that is needed to continue."""

    round: int
    server: ServerState
    clients: dict[int, dict[str, Tensor]]
    stats: dict[int, Tensor]
    server_stats: Tensor | None

    def tensors(self) -> dict[str, Tensor]:
        """The snapshot under flat names, for a checkpoint."""
        flat: dict[str, Tensor] = {}
        for name, value in self.server.items():
            if isinstance(value, Tensor):
                flat[f"server/{name}"] = value
            else:
                flat.update({f"server/{name}/{i}": tensor for i, tensor in enumerate(value)})
        for client, state in self.clients.items():
            flat.update({f"client/{client}/{name}": value for name, value in state.items()})
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
        # An empty list leaves no trace in a checkpoint.
        lists = (name for name, value in self.server.items() if not isinstance(value, Tensor))
        empty: ServerState = {name: [] for name in lists}
        found = replace(found, server={**empty, **found.server})
        if not self.server.keys() <= found.server.keys():
            raise DamagedError(f"the server's state is now {', '.join(self.server)}")
        if _shape(found.server_stats) != _shape(self.server_stats):
            raise DamagedError("the server has other batch-norm statistics")
        return found

    @classmethod
    def _from_tensors(cls, round: int, flat: dict[str, Tensor], device: torch.device) -> Snapshot:
        snapshot = cls(round, {}, {}, {}, None)
        lists: dict[str, dict[int, Tensor]] = {}
        server_stats = None
        for name, cpu_value in flat.items():
            value = cpu_value.to(device)
            match name.split("/"):
                case ["server", key]:
                    snapshot.server[key] = value
                case ["server", key, index]:
                    lists.setdefault(key, {})[int(index)] = value
                case ["client", index, key]:
                    snapshot.clients.setdefault(int(index), {})[key] = value
                case ["stats", index]:
                    snapshot.stats[int(index)] = value
                case ["server_stats"]:
                    server_stats = value
                case _:
                    raise ValueError(f"{name!r} is no name in a checkpoint")
        for key, values in lists.items():
            snapshot.server[key] = [values[i] for i in range(len(values))]
        return cls(round, snapshot.server, snapshot.clients, snapshot.stats, server_stats)


def _shape(stats: Tensor | None) -> torch.Size | None:
    return None if stats is None else stats.shape
