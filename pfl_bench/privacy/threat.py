"""The threat model of the privacy table: who attacks what, knowing what, with how much effort.

The knobs, their names in words, and what a stored attack says. How the server attacks is in
`privacy`; nothing here imports the numerical libraries.
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

_OF_A_VICTIM: Mapping[str, type] = {
    "psnr": list, "floor": list, "grey": list, "mismatch": float, "shape": list,
    "original": str, "recovered": str,
}  # fmt: skip


@dataclass(frozen=True)
class Threat:
    """One attack, fully spelt out. Its hash names what it found."""

    target: str = knob(
        "gradient",
        "what the server sees: the gradient of one batch, or a round's update over rate and steps",
        source="DLG",
        choices=("gradient", "update"),
    )
    model: str = knob(
        "trained",
        "the model that clients receive: after the last round, or before the first",
        source=OURS,
        choices=("trained", "initial"),
    )
    personal: str = knob(
        "guessed",
        "what is never sent: guessed, guessed and then fitted with the images, or known",
        source=OURS,
        choices=("guessed", "fitted", "known"),
    )
    victims: int = knob(4, "clients attacked, drawn by the seed", source=OURS, low=1, high=10_000)
    batches: int = knob(2, "batches attacked on each of them", source=OURS, low=1, high=1000)
    batch_size: int = knob(1, "images in an attacked batch", source="DLG", low=1, high=64)
    restarts: int = knob(
        2, "random starts; the one whose gradient agrees best counts", source=OURS, low=1, high=100
    )
    iterations: int = knob(
        300, "iterations of L-BFGS from each start", source=OURS, low=1, high=100_000
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

    def __str__(self) -> str:
        seen = {
            "gradient": "the gradient of one batch",
            "update": "a round's update (download less upload, over rate × steps) taken for the "
            "gradient of one batch",
        }[self.target]
        when = {
            "trained": "at the model that clients receive after the last round",
            "initial": "at the model that clients receive in the first round",
        }[self.model]
        personal = {
            "guessed": "parts that are never sent are the server's random guess",
            "fitted": "parts that are never sent start as the server's random guess and are fitted",
            "known": "parts that are never sent, and their gradient, are known to the server",
        }[self.personal]
        starts = "1 start" if self.restarts == 1 else f"the best of {self.restarts} starts"
        images = "1 image" if self.batch_size == 1 else f"{self.batch_size} images"
        return (
            f"DLG by a semi-honest server that sees, of the parts a client sends, {seen} of "
            f"{images}, {when}; {personal}; {self.victims} clients × {self.batches} batches, "
            f"{starts}, {self.iterations} iterations of L-BFGS each"
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
