"""YAML that people write: those that come with the package, and safe, strict reading of them."""

from __future__ import annotations

from collections.abc import Hashable
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from pfl_bench.base.errors import UserError, shown, unknown
from pfl_bench.base.paths import user_path
from pfl_bench.base.spelling import meant

LARGEST_BYTES = 2**18
"""Ten times the largest table of the paper; reading more takes seconds that nobody asked for."""
LONGEST_NUMBER = 100

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader without aliases and endless numbers (which can blow up), without tags (which
    choose what is constructed) and without repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.events.AliasEvent):
            raise _refusal("aliases are not allowed", event)
        if (tag := getattr(event, "tag", None)) is not None:
            raise _refusal(f"tags are not allowed, as {shown(tag)}", event)
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER:
            raise _refusal(f"the number {shown(node.value)} is too long", node)
        return super().construct_scalar(node)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _refusal(f"the key {shown(key)} is no plain value", key_node)
            if key in seen:
                raise _refusal(f"the key {shown(key)} is given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _refusal(problem: str, where: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, where.start_mark)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file; a one-sentence error names file and line otherwise."""
    text = _read_text(path)
    try:
        content = yaml.load(text, _StrictLoader)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{str(path)!r} is not valid YAML{where}: {problem}") from None
    except RecursionError:
        raise UserError(f"{str(path)!r} is not valid YAML: it is nested too deeply") from None
    except (ValueError, OverflowError) as error:
        raise UserError(f"{str(path)!r} is not valid YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{str(path)!r} must hold a mapping of names to values")
    return content


def _read_text(path: Path) -> str:
    """The text of a file that people write, which is small; a device may have no end."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise UserError(f"{str(path)!r} is too large; allowed: {LARGEST_BYTES // 1024} kB")
        return content.decode()
    except FileNotFoundError:
        raise UserError(f"there is no file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{str(path)!r} cannot be read: {error}") from None


def packaged_names(package: str) -> list[str]:
    """The names of the YAML files that lie in a package."""
    names = (file.name for file in resources.files(package).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def find_yaml(kind: str, name: str, package: str) -> Path:
    """The file of a packaged name, or the user's own file where a path is given."""
    names = packaged_names(package)
    if (known := meant(name, names)) in names:
        return Path(str(resources.files(package) / f"{known}.yaml"))
    own = user_path(name)
    if own.suffix not in (".yaml", ".yml"):
        raise unknown(kind, name, names)
    return own
