"""How names may be typed: the one place that says which spellings mean the same name.

Algorithms, datasets, models, settings, profiles, hyper-parameters, rows and columns are all looked
up through `meant`; what a name that means nothing is answered with is in `errors.unknown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "η": "eta", "θ": "theta",
    "κ": "kappa", "λ": "lambda", "μ": "mu", "µ": "mu", "ρ": "rho", "σ": "sigma", "τ": "tau",
    "φ": "phi", "ω": "omega",
}  # fmt: skip
"""Letters that stand for quantities, spelt out; mu also as the keyboard's micro sign."""

# Between two digits a hyphen is a range and a blank tells numbers apart: they stay.
_JOINTS = re.compile(r"(?<!\d)[-_\s]+|[-_\s]+(?!\d)")


def typed(name: str) -> str:
    """A name as one types it: lower case, Greek letters spelt out."""
    for letter, word in GREEK.items():
        name = name.replace(letter, word)
    return name.strip().lower()


def plain(name: str) -> str:
    """What all spellings of a name have in common: FedAvg, fed-avg and fed_avg are fedavg."""
    return _JOINTS.sub("", typed(name))


def meant(name: str, names: Iterable[str]) -> str:
    """The one of `names` that is meant, in any case, with or without hyphens. Comes back as it is
    where it means none of them, or more than one."""
    several = [one for one in names if isinstance(one, str)]  # a key of YAML may be a number
    if name in several or not isinstance(name, str):
        return name
    word = plain(str(name))  # a key of a YAML file may be a number
    alike = [one for one in several if plain(one) == word]
    return alike[0] if len(alike) == 1 else name
