"""The state of a run between two rounds, and its form in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_bench.engine.server import ServerState
from pfl_bench.engine.trees import Tree, flatten, grow, leaves
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
            states = (found.server, *found.clients.values())
            if not all(isinstance(state, dict) for state in states):
                raise ValueError("a state is a dictionary")
            if found.tensors().keys() != flat.keys():
                raise ValueError("its names are not those that a state is saved under")
        except (ValueError, KeyError, RecursionError) as error:
            raise DamagedError(f"it cannot be read ({error})") from error
        if not self.server.keys() <= found.server.keys():
            raise DamagedError(f"the server's state is now {', '.join(self.server)}")
        problem = misfit(self.server, found.server, "the server's state")
        problem = problem or _stats_misfit(self.server_stats, found.server_stats)
        if problem:
            raise DamagedError(problem)
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


def misfit(fresh: Tree, found: Tree, where: str) -> str | None:
    """What keeps a state out of a checkpoint from being one that began as `fresh`; None where it
    can be. Tensors keep their type and shape, but may grow by rows; lists keep their length,
    dictionaries their names; what was empty may have come to hold anything finite, all of it alike
    where it is counted and not named."""
    if isinstance(fresh, Tensor):
        if not isinstance(found, Tensor):
            return f"{where} was a tensor"
        if found.dtype != fresh.dtype or not _has_grown(fresh.shape, found.shape):
            return f"{where} was {_described(fresh)} and is {_described(found)}"
        is_sound = _is_finite(found) or not _is_finite(fresh)
        return None if is_sound else f"{where} is not finite"
    kind = dict if isinstance(fresh, Mapping) else list
    if not isinstance(found, kind):
        return f"{where} was a {'dictionary' if kind is dict else 'list'}"
    if not fresh:
        if unlike := _unlike_entries(found):
            return f"{where} has {unlike}"
        return None if all(map(_is_finite, leaves(found))) else f"{where} is not finite"
    if kind is list and len(fresh) != len(found):
        return f"{where} had {len(fresh)} entries and has {len(found)}"
    for name, value in fresh.items() if isinstance(fresh, Mapping) else enumerate(fresh):
        if kind is dict and name not in found:
            return f"{where} had {name!r}"
        if problem := misfit(value, found[name], f"{where}/{name}"):
            return problem
    return None


def _has_grown(fresh: torch.Size, found: torch.Size) -> bool:
    """Whether one shape is the other's, or has further rows."""
    is_longer = len(fresh) == len(found) > 0 and found[0] > fresh[0]
    return found == fresh or (is_longer and found[1:] == fresh[1:])


def _unlike_entries(found: Tree) -> str | None:
    """What sets entries apart that only a number tells apart; None where they are alike. Those of a
    list may have any shapes, as the layers of a model have; those under a label or a cluster have
    one, but for rows."""
    if isinstance(found, Mapping) and not all(isinstance(name, int) for name in found):
        return None
    is_keyed = isinstance(found, Mapping)
    entries = list(found.values() if is_keyed else found)
    problems = (_unlike(entries[0], other, shapes=is_keyed) for other in entries[1:])
    return next(filter(None, problems), None)


def _unlike(one: Tree, other: Tree, shapes: bool) -> str | None:
    kinds = (Tensor, Mapping, list)
    if any(isinstance(one, kind) != isinstance(other, kind) for kind in kinds):
        return "entries of several kinds"
    if isinstance(one, Tensor):
        if one.dtype != other.dtype:
            return "numbers of several types"
        rows = 1 if one.dim() > 1 else 0
        is_other = one.dim() != other.dim() or one.shape[rows:] != other.shape[rows:]
        return "entries of several shapes" if shapes and is_other else None
    if isinstance(one, Mapping):
        pairs = [(one[name], other[name]) for name in one.keys() & other.keys()]
    else:
        pairs = list(zip(one, other, strict=False))
    return next(filter(None, (_unlike(*pair, shapes) for pair in pairs)), None)


def _stats_misfit(fresh: Tensor | None, found: Tensor | None) -> str | None:
    if fresh is None or found is None:
        return None if fresh is found else "the server has other batch-norm statistics"
    return misfit(fresh, found, "the server's batch-norm statistics")


def _described(tensor: Tensor) -> str:
    size = "×".join(map(str, tensor.shape)) or "one"
    return f"{size} of {str(tensor.dtype).removeprefix('torch.')}"


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
