"""The threat model of the privacy table: who attacks what, knowing what, with how much effort.

The knobs, their names in words, and what a stored attack says. How the server attacks is in `audit`
and `attack`; nothing here imports the numerical libraries.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pfl_bench.config import as_dict, knob, resolve

if TYPE_CHECKING:
    from pfl_bench.store import StoredRun

OURS = "pfl-bench"

FLOORS = ("", "_noise", "_mean")
"""What is stored of each similarity: of what was recovered, of a random and of the mean image."""

_OF_A_VICTIM: Mapping[str, type] = {
    **{f"{name}{of}": list for name in ("psnr", "ssim", "published_psnr") for of in FLOORS},
    "mismatch": float, "shape": list, "original": str, "recovered": str,
}  # fmt: skip


@dataclass(frozen=True)
class Threat:
    """One attack, fully spelt out. Its hash names what it found."""

    method: str = knob(
        "dlg",
        "the attack: Deep Leakage from Gradients, or inverting gradients",
        source="the paper: DLG",
        choices=("dlg", "inverting"),
    )
    target: str = knob(
        "batch",
        "what the attacked round trained on: one batch, or all the client's data (an update)",
        source="DLG",
        choices=("batch", "update"),
    )
    model: str = knob(
        "trained",
        "the model that clients receive: after the last round, or before the first",
        source=OURS,
        choices=("trained", "initial"),
    )
    personal: str = knob(
        "inferred",
        "what clients keep: inferred where messages tell it and guessed elsewhere, all guessed, "
        "guessed and then fitted with the images where it is not inferred, or known",
        source=OURS,
        choices=("inferred", "guessed", "fitted", "known"),
    )
    victims: int = knob(4, "clients attacked, drawn by the seed", source=OURS, low=1, high=10_000)
    batches: int = knob(2, "batches attacked on each of them", source=OURS, low=1, high=1000)
    batch_size: int = knob(1, "images in an attacked batch", source="DLG", low=1, high=64)
    restarts: int = knob(
        1, "random starts; the one whose message agrees best counts", source=OURS, low=1, high=100
    )
    iterations: int = knob(300, "iterations from each start", source=OURS, low=1, high=100_000)
    variation: float = knob(
        0.01,
        "weight of the total variation in inverting gradients (DLG has none)",
        source="inverting gradients: 1e-6 to 0.1",
        low=0,
        high=1000,
    )

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> Threat:
        """The defaults, overridden by what was chosen; raises UserError where that cannot be."""
        return resolve(cls, "", chosen, "the attack")

    @property
    def name(self) -> str:
        """The name of what this attack found, beside the run that it attacked."""
        canonical = json.dumps(as_dict(self), sort_keys=True, separators=(",", ":"))
        return f"attack-{hashlib.sha256(canonical.encode()).hexdigest()[:16]}"

    def found(self, run: StoredRun) -> dict[str, Any] | None:
        """What this attack found on a stored run; None unless all its victims are there."""
        document = run.attachment(self.name) or {}
        victims = self.begun(run)
        return document if victims and document.get("planned") == len(victims) else None

    def begun(self, run: StoredRun) -> list[dict[str, Any]]:
        """The victims that an attack, perhaps cut off, has found so far."""
        victims = (run.attachment(self.name) or {}).get("victims")
        return victims if isinstance(victims, list) and all(map(_is_sound, victims)) else []

    def beside(self, other: Threat) -> str:
        """The knobs that differ from those of another attack."""
        there = as_dict(other)
        return ", ".join(f"{k}={v}" for k, v in as_dict(self).items() if v != there[k])

    def __str__(self) -> str:
        method = {"dlg": "DLG", "inverting": "Inverting gradients"}[self.method]
        images = "1 image" if self.batch_size == 1 else f"{self.batch_size} images"
        seen = {
            "batch": f"of a round of one batch of {images}",
            "update": f"of a round of all the client's data, taken for that of {images},",
        }[self.target]
        when = {"trained": "after the last round", "initial": "before the first round"}[self.model]
        personal = {
            "inferred": "what follows from messages by arithmetic is worked out, the rest of what "
            "clients keep is a random guess",
            "guessed": "what clients keep is the server's random guess",
            "fitted": "what follows from messages by arithmetic is worked out, the rest of what "
            "clients keep starts as a random guess and is fitted",
            "known": "what clients keep is known to the server",
        }[self.personal]
        starts = "1 start" if self.restarts == 1 else f"the best of {self.restarts} starts"
        optimizer = {"dlg": "L-BFGS", "inverting": f"Adam, total variation × {self.variation:g}"}
        return (
            f"{method} by a semi-honest server that sees the messages {seen} and of the round "
            f"before, {when}; {personal}; {self.victims} clients × {self.batches} batches, "
            f"{starts}, {self.iterations} iterations ({optimizer[self.method]})"
        )


def _is_sound(victim: Any) -> bool:
    """Whether it has what is shown of a victim, and not something else under these names."""
    return isinstance(victim, dict) and all(
        isinstance(victim.get(name), kind) for name, kind in _OF_A_VICTIM.items()
    )


def with_attack(run: StoredRun, threat: Threat) -> StoredRun | None:
    """The run with what the attack found in its summary; None where it has yet to be attacked.
    A run that was skipped or that diverged has nothing to attack and stands for itself."""
    if run.status != "finished":
        return run
    found = threat.found(run)
    return None if found is None else replace(run, summary={**(run.summary or {}), "attack": found})
