"""A table as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_bench.reporting.tables.compared import blocks
from pfl_bench.reporting.tables.content import Content, Entry
from pfl_bench.reporting.tables.markup import markdown as _md
from pfl_bench.reporting.tables.markup import markdown_code


def to_markdown(content: Content) -> str:
    spec = content.plan.spec
    body = [["", *map(_md, spec.columns)]]
    body += [
        [_md(row), *(_md_cell(content.entries[row, column]) for column in spec.columns)]
        for row in spec.rows
    ]
    parts = [f"**{_md(spec.caption)}**", _pipes(body)]
    parts += [f"<sup>{mark}</sup> {_md(text)}" for mark, text in content.footnotes.items()]
    for block in blocks(content):
        lines = [[_md(cell) for cell in line] for line in (block.head, *block.rows)]
        parts += [f"### {_md(block.title)}", _pipes(lines), block.note]
    parts.append("\n".join(_md_fact(name, text) for name, text in content.facts.items()))
    return "\n\n".join(parts) + "\n"


def _md_fact(name: str, text: str) -> str:
    return f"- {name}: {markdown_code(text) if name == 'Command' else _md(text)}"


def _md_cell(entry: Entry) -> str:
    value = _md(entry.text)
    value = value if entry.mean is not None else f"*{value}*"
    value = f"**{value}**" if entry.is_best else value
    mark = f"<sup>{entry.mark}</sup>" if entry.mark else ""
    return value + mark + (f"<br>{_md(entry.beside)}" if entry.beside else "")


def _pipes(rows: Sequence[Sequence[str]]) -> str:
    """A pipe table: the first row is the head, the first column stands left, the rest right."""
    head, *body = rows
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))
