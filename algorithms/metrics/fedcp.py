"""FedCP's own metrics: what its CPN adds to a model, and how much goes to the personal head."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pfl_bench.store import Metric, StoredRun

if TYPE_CHECKING:
    from pfl_bench.models import Inputs


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
    design = (hyper["layers"], hyper["norm"], hyper["activation"])
    return _share(config["dataset"], config.get("image_size"), config["model"], *design)


@lru_cache(maxsize=64)
def _share(
    dataset: str, image_size: int | None, model: str, layers: int, norm: str, activation: str
) -> Share | None:
    from pfl_bench import data
    from pfl_bench.models import Inputs

    spec = data.specs().get(dataset)
    if spec is None or spec.shape is None:
        return None
    shape = data.reduced_shape(spec.shape, image_size)
    return cpn_share(model, Inputs(spec.classes, shape), layers, norm, activation)


def _cpn_parameters(run: StoredRun) -> float | None:
    share = cpn_of(run.config)
    return None if share is None else float(share.extra)


def _cpn_note(config: Mapping[str, Any]) -> str:
    return str(cpn_of(config) or "")


def _pir(run: StoredRun) -> float | None:
    """The mean over clients in the last round that recorded it."""
    recorded = (record.extras.get("pir") for record in reversed(run.records()))
    last = next((values for values in recorded if isinstance(values, list)), [])
    known = [value for value in last if isinstance(value, int | float)]
    return statistics.fmean(known) if known else None


METRICS = (
    Metric(
        "cpn_parameters",
        "parameters of the CPN",
        _cpn_parameters,
        better="low",
        digits=0,
        is_counted=True,
        note=_cpn_note,
    ),
    Metric(
        "pir",
        "personalization identification ratio",
        _pir,
        digits=3,
        needs="a run with a CPN that recorded the series (record: pir)",
        how="the mean of s over features, each client's training samples, and clients, after the "
        "last recorded round",
    ),
)
