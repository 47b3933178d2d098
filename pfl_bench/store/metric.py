"""What a metric is: one kind of value that a stored run has.

The metrics that every run has are in `pfl_bench.reporting.metrics`; an algorithm declares its own
(`Algorithm.metrics`), and a package offers more by the entry point `pfl_bench.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pfl_bench.store.stored_run import StoredRun


@dataclass(frozen=True)
class Metric:
    """One kind of value. `of` gives None where the run has no such value."""

    name: str
    """What a table's `measure` or `--score` calls it."""
    title: str
    """What stands over it, without its unit."""
    of: Callable[..., float | None]
    """Reads the run, or where `beside` names a method, the run and that method's."""
    unit: str = ""
    better: str = "high"  # or "low"
    digits: int = 2
    beside: str = ""
    """The algorithm whose run on the same data, terms and seed it takes too."""
    is_counted: bool = False
    """Counted rather than measured: seeds need not differ."""
    each: Callable[[StoredRun], list[float]] | None = None
    """What `of` is the mean of, where a spread over these says more than one over seeds."""
    needs: str = ""
    """What a finished run that has no such value lacks."""
    how: str = ""
    """How it is worked out, for the words below a table."""
    note: Callable[[Mapping[str, Any]], str] | None = None
    """What a table says below of the runs of a configuration, where there is something to say."""

    def __post_init__(self) -> None:
        if self.better not in ("high", "low"):
            raise ValueError(f"better is high or low, not {self.better!r}")

    @property
    def lower_is_better(self) -> bool:
        return self.better == "low"

    @property
    def label(self) -> str:
        """The title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def read(self, run: StoredRun, other: StoredRun | None = None) -> float | None:
        """The run's value; `other` is the run of the method that it takes `beside` it."""
        if not self.beside:
            return self.of(run)
        return None if other is None else self.of(run, other)

    def show(self, value: float) -> str:
        return f"{value:,.{self.digits}f}" if self.digits == 0 else f"{value:.{self.digits}f}"
