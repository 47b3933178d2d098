"""Where tuning looks for the value of a hyper-parameter: a range or a few choices, declared with
its knob.

Which values are tried, and which is taken, is the business of `pfl_bench.tuning`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SCALES = ("log", "linear")
DIGITS = 3
"""Significant digits of a drawn number: nobody types more, and no result hangs on them."""


@dataclass(frozen=True)
class Search:
    """Either `choices`, or all from `low` to `high` on a scale."""

    low: float = 0.0
    high: float = 0.0
    scale: str = "linear"
    choices: tuple[Any, ...] = ()

    @classmethod
    def of(cls, declared: Sequence[Any]) -> Search:
        """`(low, high, "log")`, `(low, high, "linear")` or choices."""
        match tuple(declared):
            case (int() | float() as low, int() | float() as high, "log" | "linear" as scale):
                if not low < high or (scale == "log" and low <= 0):
                    raise ValueError(f"{declared} is no range to search")
                return cls(float(low), float(high), scale)
            case () | (_,):
                raise ValueError(f"{declared} leaves nothing to search")
            case choices:
                return cls(choices=choices)

    def at(self, share: float) -> Any:
        """The value at a share in [0, 1) of the way."""
        if self.choices:
            return self.choices[int(share * len(self.choices))]
        if self.scale == "log":
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + (self.high - self.low) * share
        return min(self.high, max(self.low, rounded(value)))

    def __str__(self) -> str:
        if self.choices:
            return ", ".join(map(str, self.choices))
        return f"{self.low:g} to {self.high:g} ({self.scale})"


def rounded(value: float) -> float:
    """To DIGITS significant digits."""
    if value == 0 or not math.isfinite(value):
        return value
    return float(f"{value:.{DIGITS}g}")
