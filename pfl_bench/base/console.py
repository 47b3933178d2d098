"""A console of rich's that lets no letter of its content through that a terminal would obey. Apart
from `pfl_bench.base.terminal`, which makes one, so that rich is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from pfl_bench.base.streams import printable


class PrintableConsole(Console):
    """Filters what is drawn; the codes that rich itself draws with stay."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
