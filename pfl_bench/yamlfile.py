"""YAML that people write: those that come with the package, and safe, strict reading of them."""

from __future__ import annotations

from collections.abc import Hashable
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from pfl_bench.errors import UserError, unknown


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader without aliases (which can blow up) and without repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.constructor.ConstructorError(None, None, "aliases are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in seen:
                problem = f"the key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file; a one-sentence error names file and line otherwise."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"there is no file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{str(path)!r} cannot be read: {error}") from None
    try:
        content = yaml.load(text, _StrictLoader)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{str(path)!r} is not valid YAML{where}: {problem}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{str(path)!r} is not valid YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{str(path)!r} must hold a mapping of names to values")
    return content


def packaged_names(package: str) -> list[str]:
    """The names of the YAML files that lie in a package."""
    names = (file.name for file in resources.files(package).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def find_yaml(kind: str, name: str, package: str) -> Path:
    """The file of a packaged name, or the user's own file where a path is given."""
    if name in packaged_names(package):
        return Path(str(resources.files(package) / f"{name}.yaml"))
    own = Path(name).expanduser()
    if own.suffix not in (".yaml", ".yml"):
        raise unknown(kind, name, packaged_names(package))
    return own
