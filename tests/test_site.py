"""The site, without building it: its navigation and reference name what there is, and links that
leave docs/ lead where the site has them."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]


class _Loader(yaml.SafeLoader):
    """Reads MkDocs' own tag for variables of the environment as its default."""


_Loader.add_constructor("!ENV", lambda loader, node: loader.construct_sequence(node)[-1])


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    found = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts/site_pages.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def pages(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            yield from pages(value) if isinstance(value, list) else [value]


def test_the_navigation_names_every_page_and_no_other(hooks: ModuleType) -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)
    named = set(pages(config["nav"]))
    made = {*hooks.FROM_ROOT.values(), *(f"{folder}/index.md" for folder in hooks.LISTS)}
    docs = ROOT / "docs"
    there = {str(page.relative_to(docs)) for page in (*docs.glob("*.md"), *docs.rglob("*.ipynb"))}
    assert named == there | made


def test_the_reference_names_what_there_is() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: (\S+)\.(\w+)$", page, re.M)
    assert len(named) > 8
    for module, name in named:
        assert getattr(importlib.import_module(module), name).__doc__


@pytest.mark.parametrize(
    ("link", "origin", "source", "told"),
    [
        ("[g](docs/guide.md#data)", "README.md", "index.md", "[g](guide.md#data)"),
        ("![p](docs/a/p.png)", "README.md", "index.md", "![p](a/p.png)"),
        ("[s](../SECURITY.md)", "docs/guide.md", "guide.md", "[s](SECURITY.md)"),
        ("[a](algorithms)", "docs/guide.md", "guide.md", "[a](algorithms/index.md)"),
        ("[t](../tables.md)", "docs/algorithms/x.md", "algorithms/x.md", "[t](../tables.md)"),
        ("[c](../tables/main.yaml)", "docs/a.md", "a.md", "[c](https://r/blob/main/tables/main.yaml)"),
        ("[w](https://example.org/a.md)", "docs/a.md", "a.md", "[w](https://example.org/a.md)"),
        ("[h](#here)", "docs/a.md", "a.md", "[h](#here)"),
    ],
)  # fmt: skip
def test_a_link_leads_where_the_site_has_it(
    hooks: ModuleType, link: str, origin: str, source: str, told: str
) -> None:
    found = hooks._LINK.fullmatch(link)
    assert hooks.relinked(found, origin, source, "https://r") == told


def test_without_a_repository_a_file_of_it_is_plain_text(hooks: ModuleType) -> None:
    found = hooks._LINK.fullmatch("[code](../pfl_bench/x.py)")
    assert hooks.relinked(found, "docs/a.md", "a.md", "") == "code"
