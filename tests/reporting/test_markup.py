"""Names and notes of strangers in Markdown, LaTeX and CSV: shown, never obeyed."""

from __future__ import annotations

import csv
import html
import io
import re
from pathlib import Path

import pandas as pd
import pytest
from fakeplans import cell_plan, table_plan
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pfl_bench.reporting.tables import markup
from pfl_bench.reporting.tables.content import lay_out
from pfl_bench.reporting.tables.files import to_csv, write_all
from pfl_bench.reporting.tables.latex import to_latex
from pfl_bench.reporting.tables.markdown import to_markdown
from pfl_bench.reporting.tables.plan import TablePlan

NASTY = [
    r"}\input{x}", "[a](http://b.c)", "![a](http://b.c/d.png)", "`rm -rf`", "``", "<b>", "&lt;",
    "*a*", "_a_", "~~a~~", "a|b", "\\", "\\`", "$x$", "[a]: http://b.c", "<http://b.c>", "=1+1",
    "#a", "%a", "a^b", "$(id)",
]  # fmt: skip
texts = st.sampled_from(NASTY) | st.text("ab \\`*_[]()<>|&~$!=+-@#%^{}:/.", min_size=1)


def rendered(line: str) -> str:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).renderInline(line)


@pytest.mark.parametrize("end", ["\n", "\n\n", "\r", "\r\n", "\v", "\f", "\x1e", "\x85", "\u2028"])
def test_no_text_ends_its_line(end: str) -> None:
    for shown in (markup.markdown, markup.markdown_code, markup.latex):
        assert len(shown(f"a{end}# b{end}").splitlines()) == 1
        assert len(MarkdownIt("commonmark").parse(f"- {shown(f'a{end}# b')}")) == 7


@given(texts)
def test_markdown_shows_a_text_as_it_is(text: str) -> None:
    shown = rendered(f"x{markup.markdown(text)}x").replace("@<!-- -->", "@")
    assert html.unescape(shown) == f"x{text}x" and "<" not in shown


@given(texts)
def test_markdown_shows_a_command_as_it_is_typed(text: str) -> None:
    text = " ".join(text.split()) or "a"
    code = re.fullmatch("<code>(.*)</code>", rendered(markup.markdown_code(text)))
    assert code is not None and html.unescape(code[1]).strip() == text


@pytest.mark.parametrize("text", ["see https://a.b/c", "HTTP://a.b", "www.a.b", "ftp://a"])
def test_an_address_is_no_link_by_itself(text: str) -> None:
    shown = markup.markdown(text)
    assert not re.search(r"[a-z]://|www\.", shown, re.IGNORECASE)
    assert html.unescape(rendered(shown)) == text


def unescaped(tex: str) -> str:
    """What is left of LaTeX without the commands that stand for letters."""
    return re.sub(r"\\(textbackslash|textasciitilde|textasciicircum|dots)\{\}|\\[&%$#_{}]", "", tex)


@pytest.mark.parametrize("text", ["a@b.c", "mailto:a.b+c@d-e.f", "a_@b.c", "é@b.c"])
def test_a_mail_address_is_no_link_by_itself(text: str) -> None:
    tokens = MarkdownIt("commonmark").parseInline(markup.markdown(text))[0].children or []
    pieces = [token.content for token in tokens if token.type == "text"]
    assert "".join(pieces) == text
    # GitHub looks for addresses in each piece of text between other things.
    assert not any(re.search(r"[\w.+-]@[\w-]", piece) for piece in pieces)


@given(texts)
def test_latex_is_left_no_command_and_no_group(text: str) -> None:
    left = re.sub(r"\$(\\mid|<|>)\$|-\{\}-", "", unescaped(markup.latex(text)))
    assert not set(left) & set("\\{}$&#%^_~")


@given(texts)
def test_a_label_is_letters(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.-]*", markup.latex_label(text))


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "＝"])
def test_text_that_a_spreadsheet_would_compute_is_text(begin: str) -> None:
    frame = pd.DataFrame({"name": [f"{begin}1", "a=1"], "value": [-1.5, 2.0], f"{begin}x": [1, 2]})
    head, first, second = csv.reader(io.StringIO(markup.csv(frame), newline=""))
    assert head == ["name", "value", f"'{begin}x"]
    assert first == [f"'{begin}1", "-1.5", "1"] and second == ["a=1", "2.0", "2"]


def test_a_carriage_return_begins_no_row() -> None:
    text = markup.csv(pd.DataFrame({"name": ["a\r=1+1"], "value": [1]}))
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["name", "value"], ["a␍=1+1", "1"]]


def hostile_plan(tmp_path: Path) -> TablePlan:
    row, column = r"=}\input{x}", "![a](http://b.c)"
    cells = [cell_plan((row, column), [40.0, 42.0]), cell_plan(("`b`", column), [41.0, 43.0])]
    return table_plan(
        cells, seeds=2, name=r"}\input{x}", caption="[a](http://b.c) `x`", arguments="a`b"
    )


def test_no_format_of_a_table_obeys_a_name_in_it(tmp_path: Path) -> None:
    plan = hostile_plan(tmp_path)
    tex = to_latex(lay_out(plan))
    assert "\\input" not in tex and r"\label{tab:--input-x-}" in tex
    shown = MarkdownIt("commonmark").enable("table").render(to_markdown(lay_out(plan)))
    assert not re.search("<(a|img|code>x)", shown)
    assert "<code>pfl-bench table a`b" in html.unescape(shown)
    rows = [line["row"] for line in csv.DictReader(io.StringIO(to_csv(lay_out(plan))))]
    assert rows == [r"'=}\input{x}", "`b`"]


def test_the_files_of_a_table_with_a_hostile_name_stay_in_their_folder(tmp_path: Path) -> None:
    for path in write_all(lay_out(hostile_plan(tmp_path)), tmp_path / "out"):
        assert path.parent == tmp_path / "out" and path.exists()
