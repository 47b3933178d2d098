"""A figure of one method, as the method's author declares it.

`pfl-bench figure NAME` makes a command of it: the settings of a run, its own options, and files to
write. It is found as a module of `pfl_bench.algorithms.figures`, or of an installed package by the
entry point `pfl_bench.figures`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.base import UserError
from pfl_bench.config import RunConfig
from pfl_bench.plugins import offered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENTRY_POINTS = "pfl_bench.figures"
BUILT_IN = "pfl_bench.algorithms.figures"


@dataclass(frozen=True)
class Option:
    """What a user may choose of a figure, as `--NAME`."""

    name: str
    kind: type
    default: Any
    help: str
    low: float | None = None
    high: float | None = None


CLIENT = Option("client", int, 0, "Whose, counted from 0.")


def _anything(config: RunConfig, data_dir: Path, **options: Any) -> None:
    """Nothing is refused."""


@dataclass(frozen=True)
class MethodFigure:
    about: str
    """What it shows, in a sentence."""
    algo: str
    """Whose it is; the user may name another that has what it takes."""
    draw: Callable[..., Figure]
    """Called with the method's runs (`Method`) or, `of_model`, with the simulator after the last
    round, then the profile's name, the width in inches, and the options by name."""
    of_model: bool = False
    series: tuple[str, ...] = ()
    """What the runs must record."""
    draw_kept: Callable[..., Figure] | None = None
    """What can be drawn of a run that did not record the series, from its trained model: called
    like the `draw` of a figure `of_model`."""
    options: tuple[Option, ...] = ()
    check: Callable[..., None] = _anything
    """Called with the run's configuration, the data folder and the options before anything trains,
    to refuse what cannot be drawn."""
    told: tuple[str, ...] = ()
    """The options that the file's name tells."""


def method_figures() -> list[str]:
    """The names of all figures of methods; none is imported."""
    return sorted(offered(ENTRY_POINTS, BUILT_IN, "FIGURE"))


def method_figure(name: str) -> MethodFigure:
    found = offered(ENTRY_POINTS, BUILT_IN, "FIGURE")[name]()
    if not isinstance(found, MethodFigure):
        raise UserError(f"what is offered as the figure {name!r} is no MethodFigure")
    return found


def check_client(config: RunConfig, data_dir: Path, *, client: int, **_: Any) -> None:
    """Refuse a client that there is not."""
    if not 0 <= client < config.clients:
        raise UserError(f"client cannot be {client}; allowed: 0 to {config.clients - 1}")
