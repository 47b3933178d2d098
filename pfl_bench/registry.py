"""Where algorithms come from: this package, installed packages, a file named on the command line.

An algorithm is known by the name of its module. A plugin that fails to import is named with its
error and does not take the others down.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from pfl_bench.algorithm import Algorithm
from pfl_bench.errors import UserError, unknown

ENTRY_POINTS = "pfl_bench.algorithms"

_from_files: dict[str, tuple[Path, type[Algorithm]]] = {}


def algorithm_names() -> list[str]:
    """Every algorithm that can be asked for, by name."""
    return sorted(_sources())


def load_algorithm(name: str) -> type[Algorithm]:
    """The class behind a name."""
    sources = _sources()
    if name not in sources:
        raise unknown("algorithm", name, sources)
    try:
        return sources[name]()
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"the plugin {name!r} cannot be imported: {reason}") from error


def load_plugin(path: Path) -> str:
    """Make the algorithm in a file available under the file's name; return that name."""
    path = path.expanduser().resolve()
    name = path.stem
    if not path.is_file():
        raise UserError(f"there is no plugin file {str(path)!r}")
    if name in _from_files and _from_files[name][0] == path:
        return name
    if name in _sources():
        raise UserError(f"the plugin file {str(path)!r} bears a name that is taken: {name!r}")
    specification = importlib.util.spec_from_file_location(f"pfl_bench_plugin_{name}", path)
    if specification is None or specification.loader is None:
        raise UserError(f"the plugin file {str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"the plugin file {str(path)!r} fails to import: {reason}") from error
    _from_files[name] = (path, algorithm_of(module))
    return name


def algorithm_of(module: ModuleType) -> type[Algorithm]:
    """The one algorithm that a module defines."""
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Algorithm)
        and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(c.__name__ for c in found) or "none"
        raise UserError(
            f"a plugin defines exactly one subclass of Algorithm; {module.__name__} has: {names}"
        )
    return found[0]


def broken_plugins() -> dict[str, str]:
    """Plugins that cannot be imported, with their errors."""
    broken = {}
    for name in algorithm_names():
        try:
            load_algorithm(name)
        except UserError as error:
            broken[name] = str(error)
    return broken


def _sources() -> dict[str, Callable[[], type[Algorithm]]]:
    sources = dict(_installed())
    sources.update({name: partial(_identity, kind) for name, (_, kind) in _from_files.items()})
    return sources


def _identity(kind: type[Algorithm]) -> type[Algorithm]:
    return kind


@cache
def _installed() -> dict[str, Callable[[], type[Algorithm]]]:
    """Loaders of the built-in algorithms and of those that installed packages bring."""
    import pfl_bench.algorithms as builtin

    loaders: dict[str, Callable[[], type[Algorithm]]] = {}
    for info in pkgutil.iter_modules(builtin.__path__):
        loaders[info.name] = _module_loader(f"{builtin.__name__}.{info.name}")
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if point.name in loaders:
            raise UserError(
                f"two plugins bear the name {point.name!r}: one of them is {point.value} from "
                f"{point.dist.name if point.dist else 'an unknown package'}; uninstall one"
            )
        loaders[point.name] = _entry_loader(point)
    return loaders


def _module_loader(module: str) -> Callable[[], type[Algorithm]]:
    return lambda: algorithm_of(importlib.import_module(module))


def _entry_loader(point: importlib.metadata.EntryPoint) -> Callable[[], type[Algorithm]]:
    def load() -> type[Algorithm]:
        target = point.load()
        return algorithm_of(target) if isinstance(target, ModuleType) else target

    return load
