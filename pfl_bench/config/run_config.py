"""RunConfig: every knob that can change a result, and nothing that cannot.

Its canonical form is hashed, and the hash names the result. Workers, paths, device and verbosity
are not here. Where the values come from (flags, files, profiles) is the
business of `pfl_bench.config.options`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from typing import Any

SOURCE_LABELS = {"standin": " (stand-in)", "pfllib": " (PFLlib)"}
"""What stands after the name of a dataset that is not the published one as it is."""


@dataclass(frozen=True)
class RunConfig:
    """One run, fully spelt out."""

    algo: str
    hyper: Mapping[str, Any]
    dataset: str
    source: str  # "standin", "real" or "pfllib"
    data_fingerprint: str
    fraction: float
    setting: str
    beta: float | None
    clients: int
    sampled_from: int | None  # M of N|M
    classes_per_client: int | None
    partition_seed: int
    model: str
    rounds: int
    local_epochs: int
    batch_size: int
    lr: float
    joining_ratio: tuple[float, float]
    eval_every: int
    patience: int | None
    bn_stats: str  # "local" or "average"
    seed: int
    record: tuple[str, ...]
    plugin: str | None = None  # fingerprint of the code, where the algorithm is not built in

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, the same after a trip through a file."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        known = {f.name: values.get(f.name, f.default) for f in fields(cls)}
        if absent := [name for name, value in known.items() if value is MISSING]:
            raise KeyError(f"a stored configuration lacks {', '.join(absent)}")
        known["joining_ratio"] = tuple(known["joining_ratio"])
        known["record"] = tuple(known["record"])
        return cls(**known)

    @cached_property
    def key(self) -> str:
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def setting_label(self) -> str:
        """The setting as people write it: practical(0.1), pathological, practical(0.1) 10|50."""
        label = self.setting if self.beta is None else f"{self.setting}({self.beta:g})"
        return label if self.sampled_from is None else f"{label} {self.clients}|{self.sampled_from}"

    @property
    def percent(self) -> str:
        """The share of the data that is used: 40, 0.4."""
        return f"{100 * self.fraction:g}"

    @property
    def slug(self) -> str:
        """A readable name for a folder; the key beside it makes it unique."""
        beta = "" if self.beta is None else f"{self.beta:g}"
        standin = "-standin" if self.source == "standin" else ""
        return f"{self.algo}-{self.dataset}{standin}-{self.setting}{beta}-s{self.seed}"
