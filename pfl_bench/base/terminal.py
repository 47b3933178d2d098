"""Standard output for tables: as wide as the terminal, or as wide as a pipe may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 200
"""Programs read lines: a row is not to be broken."""


def standard_output(pipe_width: int = PIPE_WIDTH) -> Console:
    """Prints text as it is, without markup or colours of its own choice."""
    from rich.console import Console

    made = Console(markup=False, highlight=False)
    if not made.is_terminal:
        made.width = pipe_width
    return made
