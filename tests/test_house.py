"""The house: every package has a face, nobody reaches behind it or upwards, and the map is true."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pfl_bench.base.face import declared

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "pfl_bench"
FACE = "pfl_bench.base.face"
"""What faces are made with, before there are any."""
MAP = ROOT / "docs" / "architecture.md"
MOST_MODULES = 13
"""About a dozen: what a newcomer can take in at a glance."""
OUTSIDERS = ("algorithms", "datasets", "benchmarks")
"""Code that is not of the package and knows its faces alone."""


@dataclass(frozen=True)
class Import:
    """One name that a file imports from the package, types included."""

    file: Path
    line: int
    module: str
    name: str

    def __str__(self) -> str:
        where = f"{self.file.relative_to(ROOT)}:{self.line}"
        return f"{where} imports {self.name} from {self.module}"


def packages() -> list[str]:
    """Every package of the house, dotted and without the first name."""
    inits = (ROOT / PACKAGE).glob("**/__init__.py")
    return sorted(".".join(init.relative_to(ROOT / PACKAGE).parts[:-1]) for init in inits)


def modules(package: str) -> list[Path]:
    folder = ROOT / PACKAGE / package.replace(".", "/")
    return sorted(path for path in folder.glob("*.py") if path.stem != "__init__")


def home(file: Path) -> str:
    """The package that a file of the house belongs to; of an outsider, its folder."""
    parts = file.relative_to(ROOT).parts[:-1]
    return ".".join(parts[1:] if parts[0] == PACKAGE else parts)


def files() -> Iterator[Path]:
    for folder in (PACKAGE, *OUTSIDERS):
        yield from sorted((ROOT / folder).rglob("*.py"))


def imports(file: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            for alias in node.names:
                yield Import(file, node.lineno, str(node.module), alias.name)


def target(found: Import) -> tuple[str, str]:
    """The package that an import reaches, and the module within it, empty for the face."""
    dotted = ".".join(found.module.split(".")[1:])
    if dotted in packages():
        return dotted, ""
    package, _, module = dotted.rpartition(".")
    return package, module


def rank() -> dict[str, int]:
    """The rooms by their row in the table of docs/architecture.md, from the ground up."""
    section = MAP.read_text(encoding="utf-8").partition("## The rooms")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)/`", section, re.MULTILINE)
    return {room: row for row, room in enumerate(rows)}


def room(package: str) -> str:
    return package.split(".")[0]


@pytest.mark.parametrize("package", [p for p in packages() if p not in ("", "cli")])
def test_every_name_of_a_face_can_be_had(package: str) -> None:
    face = importlib.import_module(f"{PACKAGE}.{package}")
    init = ROOT / PACKAGE / package.replace(".", "/") / "__init__.py"
    for name in declared(init):
        assert getattr(face, name) is not None


@pytest.mark.parametrize("package", packages())
def test_no_name_of_a_face_is_hidden_by_a_module_of_that_name(package: str) -> None:
    """Importing the module would put it in the name's place."""
    folder = ROOT / PACKAGE / package.replace(".", "/")
    own = {path.stem for path in folder.iterdir()} - {"__init__"}
    dotted = f"{PACKAGE}.{package}".rstrip(".")
    named = {n for n, (module, _) in declared(folder / "__init__.py").items() if module != dotted}
    assert not own & named


def test_nobody_reaches_behind_a_face() -> None:
    def is_behind(found: Import) -> bool:
        package, module = target(found)
        own = home(found.file)
        is_own = own == package or own.startswith(f"{package}.")
        return bool(module) and not is_own and found.module != FACE

    inside = [found for file in files() for found in imports(file) if room(target(found)[0])]
    assert [str(found) for found in inside if is_behind(found)] == []


def test_nobody_reaches_upwards() -> None:
    floors = rank()

    def is_upward(found: Import) -> bool:
        there, here = room(target(found)[0]), room(home(found.file))
        return floors.get(there, -1) > floors.get(here, len(floors))

    found = [each for file in files() for each in imports(file)]
    assert [str(each) for each in found if is_upward(each)] == []


def test_the_map_names_every_room_and_no_other() -> None:
    assert set(rank()) == {room(package) for package in packages()} - {""}


def answers() -> list[tuple[str, str, str]]:
    """The newcomer's questions of docs/architecture.md, each with a path and the thing there."""
    section = MAP.read_text(encoding="utf-8").partition("## Where is…?")[2].partition("\n## ")[0]
    return re.findall(r"^\| (.+\?) \| `(\S+)`, `(\w+)` \|$", section, re.MULTILINE)


def names_in(file: Path) -> set[str]:
    """What a module defines, or a face names: classes, functions, fields and other names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef() | ast.FunctionDef():
                found.add(node.name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.alias(name=name) if file.stem == "__init__":
                found.add(name)
    return found


def test_the_map_answers_at_least_ten_questions_of_a_newcomer() -> None:
    section = MAP.read_text(encoding="utf-8").partition("## Where is…?")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(answers()) == len(rows) >= 10


@pytest.mark.parametrize(("question", "path", "thing"), answers())
def test_where_is_leads_to_the_thing_asked_for(question: str, path: str, thing: str) -> None:
    assert thing in names_in(ROOT / path), question


def test_the_roads_pass_through_what_is_there() -> None:
    section = MAP.read_text(encoding="utf-8").partition("## The roads")[2].partition("\n## ")[0]
    steps = re.findall(r"(\w[\w/]+\.py)`?(?: {2}(\w+))?", section)
    assert len(steps) > 12
    for path, thing in steps:
        assert (ROOT / PACKAGE / path).is_file()
        assert not thing or thing in names_in(ROOT / PACKAGE / path)


@pytest.mark.parametrize("package", packages())
def test_a_room_has_about_a_dozen_modules(package: str) -> None:
    assert len(modules(package)) <= MOST_MODULES
