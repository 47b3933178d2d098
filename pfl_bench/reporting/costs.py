"""What training costs: when a run has converged, and how much the CPN adds to a model.

Converged is the first round after which the best accuracy improves by no more than THRESHOLD until
the end of the run. Time is that of whole rounds, evaluation included, the same for every algorithm.
What is sent is counted by the simulator, from the messages themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl_bench.models import Inputs
    from pfl_bench.store import RoundRecord

THRESHOLD = 0.001
"""A tenth of a percentage point of accuracy."""

CRITERION = (
    "converged: the first iteration after which the best accuracy improves by no more than "
    f"{100 * THRESHOLD:g} percentage points until the end of the run; times are of whole "
    "iterations, evaluation included"
)


@dataclass(frozen=True)
class Convergence:
    """The round in which a run converged and the time until its end."""

    round: int
    minutes: float

    @property
    def minutes_per_round(self) -> float:
        return self.minutes / self.round


def convergence(records: Sequence[RoundRecord], threshold: float = THRESHOLD) -> Convergence | None:
    """When a run converged; None where no round was scored."""
    scored = [(r.round, r.accuracy) for r in records if r.accuracy is not None]
    if not scored:
        return None
    enough = max(accuracy for _, accuracy in scored) - threshold
    # Accuracies are quotients of counts: a difference of exactly the threshold must not depend on
    # how it was rounded.
    reached = next(
        round
        for round, accuracy in scored
        if accuracy >= enough or math.isclose(accuracy, enough, rel_tol=0, abs_tol=1e-12)
    )
    seconds = math.fsum(r.total_seconds for r in records if r.round <= reached)
    return Convergence(reached, seconds / 60)


@dataclass(frozen=True)
class Share:
    """Parameters that come on top of a model's own."""

    extra: int
    whole: int

    @property
    def percent(self) -> float:
        return 100 * self.extra / self.whole

    @property
    def percent_of_millions(self) -> float:
        """The share as the paper works it out: from both counts in millions to three decimals."""
        return 100 * round(self.extra / 1e6, 3) / round(self.whole / 1e6, 3)

    def __str__(self) -> str:
        return (
            f"{self.extra:,} parameters on top of {self.whole:,}: {self.percent:.2f} % "
            f"({self.percent_of_millions:.2f} % from both in millions to three decimals, as the "
            "paper counts)"
        )


def cpn_share(
    model: str, inputs: Inputs, layers: int = 1, norm: str = "layer", activation: str = "relu"
) -> Share:
    """What a CPN of the given design adds to a model, counted from the modules themselves."""
    import torch

    from pfl_bench.algorithms.fedcp import PolicyNetwork
    from pfl_bench.models import build_model

    with torch.device("meta"):  # shapes without values: nothing is drawn and nothing allocated
        backbone = build_model(model, inputs)
        network = PolicyNetwork(backbone.features, layers, norm, activation)
    return Share(sum(p.numel() for p in network.parameters()), backbone.size)


def cpn_of(config: Mapping[str, Any]) -> Share | None:
    """The CPN's share in a stored FedCP run; None for other algorithms, for FedCP without it, and
    for data whose shape the run's configuration does not tell."""
    hyper = config.get("hyper", {})
    if config.get("algo") != "fedcp" or not hyper.get("cpn"):
        return None
    return _share(
        config["dataset"], config["model"], hyper["layers"], hyper["norm"], hyper["activation"]
    )


@lru_cache(maxsize=64)
def _share(dataset: str, model: str, layers: int, norm: str, activation: str) -> Share | None:
    from pfl_bench import data
    from pfl_bench.models import Inputs

    spec = data.specs().get(dataset)
    if spec is None or spec.shape is None:
        return None
    return cpn_share(model, Inputs(spec.classes, spec.shape), layers, norm, activation)
