"""Which configurations are tried: the defaults first, then random draws from the search ranges.

A draw depends on its number and the name of what is drawn alone. So all methods are tried at the
same learning rates, and a larger budget continues a smaller one. How they are judged is in
`trials`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pfl_bench.base import numpy_generator, plain
from pfl_bench.config import OPTIONS, Knob, knobs, option_named
from pfl_bench.plugins import load_algorithm
from pfl_bench.reporting.tables import Cell

LR = "lr"


@dataclass(frozen=True)
class Draw:
    """A configuration of a method: what is set beside all that its cell says."""

    number: int
    run: Mapping[str, Any] = field(default_factory=dict)
    """Options: the learning rate."""
    hyper: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        values = {**self.run, **self.hyper}
        return ", ".join(f"{name}={value:g}" for name, value in values.items()) or "the defaults"


def searched(cell: Cell) -> dict[str, Knob]:
    """What is drawn for a cell, by name: the learning rate and the hyper-parameters with a search
    range, but nothing that the cell itself sets."""
    found = {} if LR in map(option_named, cell.chosen) else {LR: OPTIONS[LR]}
    said = set(map(plain, cell.hyper))
    for knob in knobs(load_algorithm(cell.chosen["algo"]).Hyper).values():
        if knob.search is not None and plain(knob.name) not in said:
            found[knob.name] = knob
    return found


def draws(cell: Cell, budget: int) -> list[Draw]:
    """So many configurations for a cell."""
    ranges = searched(cell)

    def drawn(number: int) -> Draw:
        values = {
            name: knob.drawn(numpy_generator(number, "tuning", name).random())
            for name, knob in ranges.items()
        }
        run = {LR: values.pop(LR)} if ranges.get(LR) is OPTIONS[LR] else {}
        return Draw(number, run, values)

    return [Draw(0), *map(drawn, range(1, budget))]
