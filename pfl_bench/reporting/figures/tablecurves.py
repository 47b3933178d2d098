"""The curves behind a table: a picture for each line of cells that compete, a curve for each cell.

Reads what is stored; a cell that has not run has no curve.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pfl_bench.base import UserError, plot_style, typed
from pfl_bench.reporting.figures import curves
from pfl_bench.reporting.figures.methods import Method, Trial
from pfl_bench.reporting.tables import Cell, TablePlan, remarks
from pfl_bench.store import StoredRun

SUFFIXES = (".png", ".svg")
NAME_LETTERS = 80


def check(plan: TablePlan) -> None:
    """Refuse a table whose cells are not read off a curve."""
    if plan.spec.metric != "accuracy":
        raise UserError(
            f"--curves is for tables of accuracy; {plan.spec.name} shows something else"
        )


def save(plan: TablePlan, folder: Path, titled: bool = True) -> list[Path]:
    """Write NAME-curves-LINE.png and .svg for every line of which there is something to draw."""
    names = file_names(list(plan.spec.lines()))
    written: list[Path] = []
    for line, methods in lines(plan).items():
        stem = f"{plan.spec.name}-curves-{names[line]}"
        paths = [folder / f"{stem}{suffix}" for suffix in SUFFIXES]
        with plot_style.drawing(stem, plot_style.PAPER):
            figure = curves.draw(
                methods, "iterations", plan.profile.name, plot_style.PAGE, heading=line
            )
            plot_style.save(figure, *paths, dpi=plot_style.PRINT_DPI, titled=titled)
        written += paths
    return written


def file_names(lines: Sequence[str]) -> dict[str, str]:
    """For each line a name of its own that any disk takes."""
    names: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        name = re.sub(r"[^a-z0-9.]+", "-", typed(line))[:NAME_LETTERS].strip("-.") or str(number)
        while name in names.values():
            name += f"-{number}"
        names[line] = name
    return names


def lines(plan: TablePlan) -> dict[str, list[Method]]:
    """What is stored of each line, by the names under which its cells compete."""
    said = remarks(plan)
    found = {
        line: [
            Method(plan.spec.competitor(cell), trials)
            for cell in cells
            if (trials := tuple(Trial.of(run, said) for run in _runs(plan, cell)))
        ]
        for line, cells in plan.spec.lines().items()
    }
    return {line: methods for line, methods in found.items() if any(m.drawable for m in methods)}


def _runs(plan: TablePlan, cell: Cell) -> list[StoredRun]:
    return [run for run in plan.cells[cell.row, cell.column].runs if run is not None]
