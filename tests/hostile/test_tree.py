"""Nothing in the package executes what it reads: no line of it could, and what comes near is named
here with the reason. Also: what is installed for the tests is exact and has checksums."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("pfl_bench", "algorithms", "datasets", "tables")

FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "breakpoint", "os.system", "os.popen", "os.execv",
    "torch.load", "torch.jit.load", "torch.hub.load", "joblib.load", "pandas.read_pickle",
    "pd.read_pickle", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "marshal.loads",
    "marshal.load", "pickle.load", "pickle.loads", "tarfile.open", "shutil.unpack_archive",
}  # fmt: skip
FORBIDDEN_MODULES = {"shelve", "marshal", "dill", "cloudpickle", "joblib", "pickle", "_pickle"}
EXCEPTIONS = {
    ("pfl_bench/data/pfllib.py", "pickle"): "its Unpickler admits stand-ins that collect numbers",
}


Names = dict[str, str]
"""What a name of a module was imported as: `from torch import load as get` makes get torch.load."""


def dotted(node: ast.expr, imported: Names) -> str:
    """`a.b.c` of an expression that is one, else nothing."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (before := dotted(node.value, imported)):
        return f"{before}.{node.attr}"
    return ""


def imports(tree: ast.AST) -> Names:
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            module = node.module.removeprefix("builtins")
            names = ((alias.asname or alias.name, alias.name) for alias in node.names)
            found |= {name: f"{module}.{meant}".lstrip(".") for name, meant in names}
    return found


def keywords(call: ast.Call) -> dict[str, object]:
    values = ((word.arg, word.value) for word in call.keywords if word.arg)
    return {name: node.value for name, node in values if isinstance(node, ast.Constant)}


def offences(tree: ast.AST) -> Iterator[str]:
    """What in a module could execute what it reads."""
    imported = imports(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
            yield from names & FORBIDDEN_MODULES
        elif isinstance(node, ast.ImportFrom):
            yield from {(node.module or "").partition(".")[0]} & FORBIDDEN_MODULES
        elif isinstance(node, ast.Call):
            name, words = dotted(node.func, imported), keywords(node)
            name = name.removeprefix("builtins.")
            if name in FORBIDDEN_CALLS:
                yield name
            if name == "yaml.load" and "Strict" not in ast.unparse(node):
                yield "yaml.load without the strict loader"
            reads_arrays = name in ("np.load", "numpy.load", "np.fromfile", "numpy.fromfile")
            if reads_arrays and words.get("allow_pickle") is not False:
                yield f"{name} that may unpickle"
            if (
                words.get("allow_pickle")
                or words.get("shell")
                or words.get("weights_only") is False
            ):
                yield f"{name} that may execute"


def modules() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def test_no_module_could_execute_what_it_reads() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), offence)
        for path in modules()
        for offence in offences(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(EXCEPTIONS)


def test_every_unpickler_names_what_it_admits() -> None:
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = imports(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and "Unpickler" in (
                dotted(base, imported).rpartition(".")[2] for base in node.bases
            ):
                methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                assert "find_class" in methods and "persistent_load" not in methods, path
            if isinstance(node, ast.Call):
                assert dotted(node.func, imported) not in ("pickle.Unpickler", "Unpickler"), path


@pytest.mark.parametrize(
    "line",
    [
        "eval(x)", "exec(x)", "torch.load(x)", "import pickle", "from dill import load",
        "yaml.load(x)", "yaml.load(x, yaml.SafeLoader)", "np.load(x)", "np.load(x, None, True)",
        "np.load(x, allow_pickle=True)", "subprocess.run(x, shell=True)", "pd.read_pickle(x)",
        "from torch import load\nload(x)", "import torch as t\nt.load(x)",
        "from os import system as s\ns(x)", "from yaml import load\nload(x)",
        "from builtins import eval as f\nf(x)", "import builtins\nbuiltins.exec(x)",
        "from numpy import load\nload(x)", "from subprocess import run\nrun(x, shell=True)",
    ],
)  # fmt: skip
def test_the_check_would_notice(line: str) -> None:
    assert list(offences(ast.parse(line)))


# --- what is installed ----------------------------------------------------------------------------


def pinned() -> dict[str, set[str]]:
    """The versions of each package in the constraints."""
    found: dict[str, set[str]] = {}
    for file in ("constraints.txt", "constraints-torch.txt"):
        for entry in _entries(file):
            name, version = re.match(r"([\w.-]+)==([\w.]+)", entry).groups()  # type: ignore[union-attr]
            found.setdefault(name.lower(), set()).add(version)
    return found


def _entries(file: str) -> list[str]:
    text = re.sub(r"\\\n", "", (ROOT / file).read_text(encoding="utf-8"))
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-torch.txt"])
def test_every_constraint_is_exact_and_has_a_checksum(file: str) -> None:
    for entry in _entries(file):
        assert re.match(r"[\w.-]+==[\w.]+( ;.*?)? +--hash=sha256:[0-9a-f]{64}", entry), entry


UNTESTED = ("docs", "mlflow", "wandb")
"""Extras that the tests do without: stand-ins take the place of the trackers."""


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def test_the_constraints_hold_all_that_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [
        *project["dependencies"],
        *chain(*(extras[name] for name in extras if name not in UNTESTED)),
    ]
    held = pinned()
    for line in asked:
        name, floor = re.match(r"([\w-]+)[^>;]*(?:>=([\d.]+))?", line).groups()  # type: ignore[union-attr]
        if name != "pfl-bench":
            assert name.lower() in held, f"{name} is not in constraints.txt: run scripts/lock"
            for version in held[name.lower()]:
                assert numbers(version) >= numbers(floor or "0"), line
