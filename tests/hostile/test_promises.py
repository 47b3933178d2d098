"""docs/reliability.md names tests that exist, and names every attack on processes and disks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED_ONE_BY_ONE = ("test_kills.py", "test_signals.py", "test_disk.py", "test_long.py")


def names_in(path: Path) -> set[str]:
    return set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def sections() -> Iterator[tuple[str, set[str]]]:
    """The file that the table of a section is about, and the tests that its rows name."""
    for section in PAGE.split("\n## ")[1:]:
        if heading := re.search(r"\| test in `tests/hostile/(\w+\.py)`", section):
            yield heading[1], set(re.findall(r"`(test_\w+)`", section))


def test_every_test_of_these_attacks_stands_beside_its_promise_and_no_other() -> None:
    named = dict(sections())
    assert set(named) == set(NAMED_ONE_BY_ONE)
    for file, tests in named.items():
        assert tests == names_in(ROOT / "tests" / "hostile" / file)


def test_every_file_named_on_the_page_exists() -> None:
    for name in re.findall(r"`((?:tests|pfl_bench)/[\w/]+\.py)`", PAGE):
        assert (ROOT / name).is_file(), name
