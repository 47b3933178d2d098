"""The face of a package: the names that others may import from it, loaded when first asked for.

An `__init__` writes its face once, as the imports under `if TYPE_CHECKING:`, where people and type
checkers read it. `face` reads the same lines and imports a module only when one of its names is
wanted, so that `pfl-bench --help` does not wait for torch and packages can know each other's faces
without importing in circles.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

Face = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]
"""A package's `__getattr__`, `__dir__` and `__all__`."""


def face(package: str, file: str) -> Face:
    """What `package`, whose `__init__` is `file`, shows to others."""
    origin = declared(Path(file))

    def attribute(name: str) -> Any:
        if name not in origin:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = origin[name]
        if module == package:
            return importlib.import_module(f"{package}.{original}")
        return getattr(importlib.import_module(module), original)

    return attribute, lambda: sorted(origin), sorted(origin)


def declared(init: Path) -> dict[str, tuple[str, str]]:
    """The names of a face, each with its module and what it is called there."""
    tree = ast.parse(init.read_text(encoding="utf-8"))
    blocks = (node.body for node in tree.body if isinstance(node, ast.If))
    imports = (node for block in blocks for node in block if isinstance(node, ast.ImportFrom))
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in imports
        for alias in node.names
    }
