"""What the nodes of a cluster have to offer, and how many runs fit on them."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from pfl_bench.base import UserError
from pfl_bench.execution.resources import Resources


class Nodes:
    """What the nodes that are alive have to offer."""

    def __init__(self, ray: ModuleType):
        self._ray = ray

    @property
    def have_gpus(self) -> bool:
        return any(node.get("GPU", 0) for node in self._alive())

    def places(self, wanted: Resources) -> int:
        """How many runs fit at the same time."""
        return sum(_fits(node, wanted) for node in self._alive())

    def share(self, runs: int) -> int:
        """Cores for each of so many runs: one, or more where there are more cores than runs."""
        cores = [int(node.get("CPU", 0)) for node in self._alive()]
        return max(1, min(max(cores, default=1), sum(cores) // max(1, runs)))

    def at_most(self, memory: int) -> int:
        """An estimate must not keep a run from the largest node."""
        return int(min(memory, max((node.get("memory", 0) for node in self._alive()), default=0)))

    def check(self, wanted: Resources) -> None:
        """Refuse what no node could ever take; Ray would wait for one."""
        if self.places(wanted) == 0:
            cards = f" and {wanted.gpus:g} GPU" if wanted.gpus else ""
            raise UserError(
                f"no node of the cluster has {wanted.cores} core(s){cards} for a run; the largest "
                f"have {self._largest('CPU'):g} core(s) and {self._largest('GPU'):g} GPU(s)"
            )

    def _largest(self, resource: str) -> float:
        return max((node.get(resource, 0) for node in self._alive()), default=0)

    def _alive(self) -> list[Mapping[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]


def _fits(node: Mapping[str, float], wanted: Resources) -> int:
    amounts = {"CPU": wanted.cores, "GPU": wanted.gpus, "memory": wanted.memory}
    return int(min(node.get(name, 0) / amount for name, amount in amounts.items() if amount))
