"""Text in which nothing is taken for markup: in Markdown, in LaTeX, and in CSV as a spreadsheet
reads it. Names of tables, rows and runs may come from anybody's file.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from pfl_bench.base import GREEK, printable

if TYPE_CHECKING:
    import pandas as pd

_MARKDOWN = re.compile(r"[\\`*_\[\]<>|&~$]|(?<=[A-Za-z]):(?=//)|(?<=\bwww)\.", re.IGNORECASE)
"""Emphasis, code, links, images, HTML, cells, formulas, and addresses, links by themselves."""
_MAIL = re.compile(r"(?<=[\w.+-])@(?=[\w-])")
"""In the midst of a mail address, which GitHub makes a link of although its letters are escaped:
only what stands between them keeps it from that."""

_FORMULA = tuple("=+-@\t\n＝＋－＠")
"""What a cell begins with that a spreadsheet computes instead of showing it."""

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": "$-$", "–": "--", "|": r"$\mid$", "<": "$<$", ">": "$>$", "…": r"\dots{}",
    "×": r"$\times$", "`": "", "↗": r"$\nearrow$",
    **{letter: rf"$\{word}$" for letter, word in GREEK.items()},
}  # fmt: skip


def one_line(text: str) -> str:
    """A line break ends a cell, a comment and a piece of code, and what follows would be obeyed."""
    return printable(" ".join(text.splitlines()))


def markdown(text: str) -> str:
    escaped = _MARKDOWN.sub(lambda found: f"\\{found[0]}", one_line(text))
    return _MAIL.sub("@<!-- -->", escaped)


def markdown_code(text: str) -> str:
    """A command as it is typed, between more backticks than it holds in a row."""
    text = one_line(text)
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}" if longest else f"`{text}`"


def latex(text: str) -> str:
    parts = one_line(text).split("--")
    parts = ["".join(_LATEX.get(letter, letter) for letter in part) for part in parts]
    return "-{}-".join(parts)  # else LaTeX would make a dash of an option's two


def latex_label(text: str) -> str:
    r"""A name for \label, where nothing can be escaped: other letters become hyphens."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)


def csv(frame: pd.DataFrame) -> str:
    """A frame as CSV. Text that a spreadsheet would compute gets an apostrophe before it, which
    it does not show; a carriage return, which would begin a new row, gets a sign in its place;
    numbers stay numbers."""
    shown = frame.map(_cell).rename(columns=_cell)
    return shown.to_csv(index=False, lineterminator="\n")


def _cell(value: Any) -> Hashable:
    if not isinstance(value, str):
        return value
    shown = printable(value)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
