"""Hooks of mkdocs.yml: what the site has and docs/ has not.

The README is its home, the other pages of the root are pages of it, the algorithms and the rendered
results get lists, and a link to a file of the repository leads to where that is shown, if
SITE_REPOSITORY says where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FROM_ROOT = {"README.md": "index.md"} | {
    name: name for name in ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
}
LISTS = {"algorithms": "Algorithms"}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Pages that come and go are found, not written down."""
    rendered = sorted((ROOT / "docs" / "results").glob("*/*.md"))
    if rendered:
        places = [str(page.relative_to(ROOT / "docs")) for page in rendered]
        config.nav.append({"Rendered tables": places})
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, there in FROM_ROOT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, there, content=text))
    for folder, title in LISTS.items():
        content = "\n".join([f"# {title}", "", *listed(ROOT / "docs" / folder)])
        files.append(File.generated(config, f"{folder}/index.md", content=content))
    return files


def listed(folder: Path) -> Iterator[str]:
    """A line for each page of a folder, by its heading."""
    for page in sorted(folder.glob("*.md")):
        heading = page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        yield f"- [{heading}]({page.name})"


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    source = page.file.src_uri
    origin = next((name for name, there in FROM_ROOT.items() if there == source), f"docs/{source}")
    repository = (config.repo_url or "").rstrip("/")
    return _LINK.sub(lambda link: relinked(link, origin, source, repository), markdown)


def relinked(link: re.Match[str], origin: str, source: str, repository: str) -> str:
    """The link of a file of the repository (`origin`) as it must read on its page (`source`)."""
    sign, text, target = link.groups()
    path, mark, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return link[0]
    there = normpath(str(PurePosixPath(origin).parent / path))
    if there in FROM_ROOT:
        there = FROM_ROOT[there]
    elif there.startswith("docs/"):
        there = there.removeprefix("docs/")
        there += "/index.md" if there in LISTS else ""
    elif repository:
        return f"{sign}[{text}]({repository}/blob/main/{there}{mark}{anchor})"
    else:
        return text
    up = "../" * source.count("/")
    return f"{sign}[{text}]({up}{there}{mark}{anchor})"
