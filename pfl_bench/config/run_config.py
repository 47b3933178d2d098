"""RunConfig: every option that can change a result, and nothing that cannot.

Workers, paths, device and verbosity are not here. Where the values come from (flags, files,
profiles) is the business of `options`.

What names a result is its *course*: the configuration without what stands at its default, so that
a later option does not orphan results, and without `rounds` and `patience`, which end a run but do
not change its course. So a longer run continues a shorter one, and a shorter one is its beginning.
Where a method looks at how many rounds there will be (`plans_rounds`), they belong to its course.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache, cached_property
from typing import Any

CONFIG_VERSION = 2
"""Raised when the same values would mean another run. Configurations of version 0.1 of the package
had no such number: they stay readable and name none of today's runs."""

SOURCE_LABELS = {"standin": " (stand-in)", "pfllib": " (PFLlib)"}
"""What stands after the name of a dataset that is not the published one as it is."""

SAMPLES = ("dataset", "source", "data_fingerprint", "fraction", "image_size", "partition_seed")
"""What decides the samples of a run, whoever holds them."""
DEALING = ("setting", "beta", "clients", "sampled_from", "classes_per_client")
"""What decides who holds them."""

ENDS = ("rounds", "patience")
"""What ends a run without changing its course."""
BOOKKEEPING = ("version", "standing", "plans_rounds")
"""What a stored configuration has for the sake of its identity and readers need not be shown."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, fully spelt out. A field has a default where leaving it out means what runs did
    before it was there."""

    algo: str
    hyper: Mapping[str, Any]
    standing: tuple[str, ...] = ()  # the hyper-parameters that stand at their default
    dataset: str
    source: str  # "standin", "real" or "pfllib"
    data_fingerprint: str
    fraction: float = 1.0
    setting: str
    beta: float | None = None
    clients: int
    sampled_from: int | None = None  # M of N|M
    classes_per_client: int | None = None
    partition_seed: int = 0
    model: str
    rounds: int
    plans_rounds: bool = False  # the method looks at how many rounds there will be
    local_epochs: int = 1
    batch_size: int
    lr: float
    joining_ratio: tuple[float, float] = (1.0, 1.0)
    eval_every: int = 1
    patience: int | None = None
    bn_stats: str = "local"  # or "average"
    seed: int
    record: tuple[str, ...] = ()
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: float = 1.0  # the learning rate of each round over that of the round before
    plugin: str | None = None  # fingerprint of the code, where the algorithm is not built in
    image_size: int | None = None  # side in pixels, where images are reduced
    validation: float = 0.0  # share of each client's training samples that is held back
    new_clients: int = 0  # clients of the partition that never join
    adapt_epochs: int = 1  # for which those train before they are scored
    block_size: int = 1  # clients that are trained as one computation

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, the same after a trip through a file."""
        values = {name: _plain(getattr(self, name)) for name in _names()}
        return {"version": CONFIG_VERSION, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        known = {f.name: values.get(f.name, f.default) for f in fields(cls)}
        if absent := [name for name, value in known.items() if value is MISSING]:
            raise KeyError(f"a stored configuration lacks {', '.join(absent)}")
        for name in ("joining_ratio", "record", "standing"):
            known[name] = tuple(known[name])
        return cls(**known)

    @cached_property
    def key(self) -> str:
        """What names the result."""
        canonical = json.dumps(self.course(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def values(self, names: Sequence[str]) -> tuple[tuple[str, Any], ...]:
        """Some of the fields by name, as something that can be a key."""
        return tuple((name, getattr(self, name)) for name in names)

    def seeded(self, count: int) -> list[RunConfig]:
        """The same run under so many seeds, beginning with its own."""
        return [replace(self, seed=self.seed + k) for k in range(count)]

    @property
    def request(self) -> str:
        """The course and where it is to end: tells two requests to one result apart."""
        return f"{self.key}/{self.rounds}/{self.patience}"

    def course(self) -> dict[str, Any]:
        """All that decides how a run goes, without what stands at its default."""
        values = self.to_dict()
        left_out = {
            "standing",
            *(n for n, value in _defaults().items() if values[n] == value),
            *ENDS,
        }
        # The last round is scored whatever `eval_every` says, so it matters which one is the last.
        if self.plans_rounds or self.rounds % self.eval_every:
            left_out.remove("rounds")
        values["hyper"] = {n: v for n, v in values["hyper"].items() if n not in self.standing}
        return {name: value for name, value in values.items() if name not in left_out}

    @property
    def setting_label(self) -> str:
        """The setting as people write it: practical(0.1), pathological, practical(0.1) 10|50."""
        label = self.setting if self.beta is None else f"{self.setting}({self.beta:g})"
        return label if self.sampled_from is None else f"{label} {self.clients}|{self.sampled_from}"

    @property
    def size_label(self) -> str:
        """The size of the images where they are not the dataset's own, after what comes before."""
        return "" if self.image_size is None else f" at {self.image_size}×{self.image_size}"

    @property
    def length_label(self) -> str:
        """How long it trains: 200 rounds; up to 200 rounds, patience 40."""
        rounds = f"{self.rounds} round{'s' * (self.rounds > 1)}"
        return rounds if self.patience is None else f"up to {rounds}, patience {self.patience}"

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


@cache
def _names() -> tuple[str, ...]:
    return tuple(f.name for f in fields(RunConfig))


@cache
def _defaults() -> dict[str, Any]:
    """The fields that have a default, with it as it comes back from a file."""
    declared = (f for f in fields(RunConfig) if f.default is not MISSING)
    return {f.name: _plain(f.default) for f in declared}


def _plain(value: Any) -> Any:
    """A value as it comes back from a file. Not by way of its text: a report of thousands of runs
    asks tens of thousands of times."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    raise TypeError(f"{type(value).__name__} is nothing that a configuration can hold")
