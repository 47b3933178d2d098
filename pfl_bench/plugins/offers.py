"""What packages offer beside algorithms: metrics and figures, found by name before any is imported.

Installed packages offer by entry points; the modules of a package of this project need none.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from pfl_bench.base import UserError

Offer = Callable[[], Any]
"""Imports what is offered and returns it."""


def offered(group: str, package: str | None = None, attribute: str = "") -> dict[str, Offer]:
    """By name: the entry points of `group`, and the `attribute` of each module of `package`, which
    come first, but for those with an underscore. What fails to import is a mistake in one sentence
    when it is asked for."""
    found: dict[str, Offer] = {
        point.name: partial(_loaded, point.name, point.load)
        for point in _entry_points(group, tuple(sys.path))
    }
    if package is not None:
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if info.name.startswith("_"):
                continue
            load = partial(_attribute, f"{package}.{info.name}", attribute)
            found[info.name] = partial(_loaded, info.name, load)
    return found


def _attribute(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _loaded(name: str, load: Offer) -> Any:
    try:
        return load()
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a package's code raises what it likes
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"what is offered as {name!r} fails to import: {reason}") from error


@lru_cache(maxsize=8)
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Looked for once on a search path: it means reading a file of every installed package."""
    return tuple(importlib.metadata.entry_points(group=group))
