"""Every relative link of the documentation leads somewhere: to a file, and to a heading in it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.M | re.S)


def prose(file: Path) -> str:
    """The text in which a link is a link."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return _CODE.sub("", text)


def anchors(file: Path) -> set[str]:
    """The headings of a page as GitHub and MkDocs name them."""
    found = re.findall(r"^#+ +(.+?) *$", file.read_text(encoding="utf-8"), re.M)
    plain = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).lower() for heading in found)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def broken(file: Path) -> list[str]:
    wrong = []
    for link in _LINK.findall(prose(file)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        there = file if not path else (file.parent / path).resolve()
        is_page = there.is_file() and there.suffix == ".md"
        if not there.exists() or (anchor and is_page and anchor not in anchors(there)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("file", [*PAGES, *NOTEBOOKS], ids=lambda file: str(file.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(file: Path) -> None:
    assert broken(file) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` c\n[here](#a-b-c) [there](other.md) [gone](gone.md) [no](#nowhere)\n"
        "[x](https://example.org/gone.md) `[code](gone.md)` ![p](p.png)\n"
    )
    (tmp_path / "other.md").write_text("")
    assert broken(page) == ["gone.md", "#nowhere", "p.png"]
