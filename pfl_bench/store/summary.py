"""What a finished run says of itself, typed: for readers, who need not know how it lies on disk.

The document itself, which `documents/summary.schema.json` describes, is made in `records` and
`writer`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Score:
    """The accuracy of one round, pooled over all test samples and, where it was counted, over the
    clients."""

    round: int
    accuracy: float
    mean_over_clients: float = math.nan
    std_over_clients: float = math.nan
    worst_decile: float = math.nan


@dataclass(frozen=True)
class Summary:
    """The end of a run. Of a run that has none, every field says that nothing is known."""

    status: str | None = None
    reason: str | None = None
    best: Score | None = None
    last: Score | None = None
    still_rising: bool | None = None
    rounds: int = 0
    total_seconds: float = 0.0
    seconds_per_round: float | None = None
    bytes_up_per_client: float | None = None
    bytes_down_per_client: float | None = None
    records_sha256: str | None = None
    timed: bool = False
    data: str = ""
    partition_fingerprint: str | None = None
    device: str | None = None
    workers: int | None = None
    reference: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    attack: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> Summary:
        known = {each.name for each in fields(cls)} & (document or {}).keys()
        values = {name: (document or {})[name] for name in known}
        for name in ("best", "last"):
            if values.get(name) is not None:
                values[name] = Score(**values[name])
        return cls(**values)

    @property
    def victims(self) -> list[Mapping[str, Any]]:
        """What an attack found, image batch by image batch; nothing where there was none."""
        return [] if self.attack is None else list(self.attack["victims"])

    @property
    def untrained(self) -> float | None:
        """The accuracy of always answering a client's most frequent training class; None where it
        was not kept, or what was kept is no reference (a checksum does not tell)."""
        kept = self.reference
        if not isinstance(kept, Mapping):
            return None
        counts, numbers = kept.get("majority_correct"), (kept.get("classes"), kept.get("tested"))
        if not isinstance(counts, list) or not all(type(n) is int and n > 0 for n in numbers):
            return None
        is_sound = all(type(n) is int and n >= 0 for n in counts) and sum(counts) <= kept["tested"]
        return sum(counts) / kept["tested"] if is_sound else None

    @property
    def peak_memory(self) -> int | None:
        return self.provenance.get("peak_memory")

    @property
    def finished(self) -> str | None:
        """When, in UTC."""
        return self.provenance.get("finished")
