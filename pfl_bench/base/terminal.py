"""What is drawn for people: tables and signs of life, as wide as the terminal or as a pipe may be.

The consoles made here show text as it is, without markup or colours of its own choice, and let no
letter through that a terminal would obey (see `pfl_bench.base.streams`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pfl_bench.base.streams import Stream

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 200
"""Programs read lines: a row is not to be broken."""


def standard_output(pipe_width: int | None = PIPE_WIDTH) -> Console:
    """For results. In a pipe it is `pipe_width` wide, or as rich would have it."""
    made = _made(sys.stdout)
    if pipe_width is not None and not made.is_terminal:
        made.width = pipe_width
    return made


def standard_error() -> Console:
    """For progress."""
    return _made(sys.stderr)


def _made(stream: Any) -> Console:
    from pfl_bench.base.console import PrintableConsole

    file: Any = stream.obeyed if isinstance(stream, Stream) else stream
    return PrintableConsole(file=file, markup=False, highlight=False)
