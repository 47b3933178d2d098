"""A table on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pfl_bench.base import standard_output
from pfl_bench.reporting.tables.compared import Block, blocks
from pfl_bench.reporting.tables.content import Content, Entry

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 120
"""Columns are laid out in blocks, for people to read."""
GAP = 2
"""Blanks between two columns on the terminal."""


def to_terminal(content: Content, console: Console | None = None) -> None:
    """Print the table; columns that do not fit beside one another go into further blocks."""
    console = console or standard_output(PIPE_WIDTH)
    console.print(content.plan.spec.caption, style="bold", markup=False)
    for columns in _blocks(content, console.width):
        console.print()
        console.print(_block(content, columns))
    console.print()
    for mark, text in content.footnotes.items():
        console.print(f"({mark}) {text}", markup=False)
    for block in blocks(content):
        console.print(f"\n{block.title}", style="bold", markup=False)
        _print_comparison(block, console)
        console.print()
    for name, text in content.facts.items():
        console.print(f"{name}: {text}", style="dim", markup=False)


def _blocks(content: Content, width: int) -> Iterator[list[str]]:
    """The columns in groups that fit into `width`."""
    spec = content.plan.spec
    left = width - max(map(len, spec.rows)) - GAP
    block: list[str] = []
    used = 0
    for column in spec.columns:
        needed = GAP + max(_values_width(content, column), *map(len, column.split()))
        if block and used + needed > left:
            yield block
            block, used = [], 0
        block.append(column)
        used += needed
    yield block


def _values_width(content: Content, column: str) -> int:
    """Headings may be broken between words; values may not."""
    rows = content.plan.spec.rows
    return max(len(line) for row in rows for line in _lines(content.entries[row, column]))


def _block(content: Content, columns: Sequence[str]) -> Table:
    from rich.text import Text

    spec = content.plan.spec
    table = _plain_table()
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(Text(column), justify="right", min_width=_values_width(content, column))
    for row in spec.rows:
        if row in spec.rules and row != spec.rows[0]:
            table.add_section()
        table.add_row(Text(row), *(_styled(content.entries[row, column]) for column in columns))
    return table


def _plain_table() -> Table:
    """A line under the head and no other; GAP is one blank of padding and one of the box."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), show_edge=False)


def _styled(entry: Entry) -> Text:
    from rich.text import Text

    value, *beside = _lines(entry)
    style = "bold green" if entry.is_best else "" if entry.mean is not None else "yellow"
    return Text("\n").join([Text(value, style), *(Text(line, "dim") for line in beside)])


def _lines(entry: Entry) -> list[str]:
    value = entry.text + (f" ({entry.mark})" if entry.mark else "")
    return [value, *([entry.beside] if entry.beside else [])]


def _print_comparison(block: Block, console: Console) -> None:
    from rich.text import Text

    table = _plain_table()
    for title in block.head:
        table.add_column(Text(title), overflow="fold")
    for row in block.rows:
        table.add_row(*map(Text, row))
    console.print(table)
    console.print(block.note, style="dim", markup=False)
