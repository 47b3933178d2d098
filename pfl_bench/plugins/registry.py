"""Where algorithms come from: this package, installed packages, a file named on the command line, a
class that a Python session registers.

An algorithm is known by the name of its module, its entry point, its file or its class. A
plugin that cannot be used is named with the reason when it is asked for, and does not take the
others down. What an algorithm must hold once it runs is the business of
`pfl_bench.plugins.conformance`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from pfl_bench.base import UserError, meant, reason, unknown, user_path
from pfl_bench.config import as_dict, at_default, knobs, resolve
from pfl_bench.engine import Algorithm
from pfl_bench.plugins.sources import class_fingerprint
from pfl_bench.store import Metric

ENTRY_POINTS = "pfl_bench.algorithms"

_DESCRIPTION = ("title", "summary", "citation")
_KNOB_KINDS = (bool, int, float, str)


@dataclass(frozen=True)
class Source:
    """One place that offers an algorithm."""

    where: str
    load: Callable[[], Any]
    """Gives a module or a class; may raise whatever a plugin's code raises."""


@dataclass(frozen=True)
class _File:
    """A plugin that was named by its file, as the file was when it was read."""

    path: Path
    fingerprint: str
    kind: type[Algorithm]


_files: dict[str, _File] = {}
_registered: dict[str, type[Algorithm]] = {}


def algorithm_names() -> list[str]:
    """Every algorithm that can be asked for, by name."""
    return sorted(_sources())


def algorithm_named(text: str) -> str:
    """The name of the algorithm that is meant in any spelling; the text itself if there is none."""
    return meant(text, _sources())


def load_algorithm(name: str) -> type[Algorithm]:
    """The class behind a name."""
    sources = _sources()
    name = meant(name, sources)
    if name not in sources:
        raise UserError(
            f"{unknown('algorithm', name, sources)}; one in a file of your own needs --plugin FILE"
        )
    if len(sources[name]) > 1:
        places = " and ".join(source.where for source in sources[name])
        raise UserError(f"two plugins bear the name {name!r}: {places}; remove or rename one")
    return _load(name, sources[name][0])


def load_plugin(path: Path) -> str:
    """Make the algorithm in a file available under the file's name; return that name.

    The file is read once: naming it again changes nothing.
    """
    path = user_path(path).resolve()
    name = path.stem
    if name in _files and _files[name].path == path:
        return name
    if not path.is_file():
        raise UserError(f"there is no plugin file {str(path)!r}")
    if path.suffix != ".py":
        raise UserError(f"the plugin {str(path)!r} is not a Python file; allowed: NAME.py")
    if taken := _sources().get(name):
        raise UserError(
            f"the plugin {str(path)!r} bears a name that is taken: {name!r} is {taken[0].where}; "
            "rename the file"
        )
    fingerprint = _fingerprint(path)
    kind = _load(name, Source(f"the file {str(path)!r}", partial(_execute, path)))
    _files[name] = _File(path, fingerprint, kind)
    return name


def register(kind: type[Algorithm], name: str | None = None) -> str:
    """Make a class of this session available, under its own name in small letters or the one given;
    return that name. Registered again, it replaces the one before: a cell was edited."""
    name = kind.__name__.lower() if name is None else name
    others = (*_built_in(), *_installed(), *_from_files())
    if (where := dict(others).get(name)) is not None:
        raise UserError(
            f"the name {name!r} is taken: it is {where.where}; rename the class or give another "
            "name"
        )
    _load(name, Source("a class of this session", lambda: kind))
    class_fingerprint(kind)  # what no configuration can record is told now
    _registered[name] = kind
    return name


def is_registered(name: str) -> bool:
    """Whether the algorithm is a class of this session, which other processes do not have."""
    return algorithm_named(name) in _registered


def method_facts(
    algo: str, model: str, chosen: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """What a configuration says of its method; hyper-parameters that were not `chosen` stand at
    their default."""
    kind, algo = load_algorithm(algo), algorithm_named(algo)
    hyper = resolve(kind.Hyper, model, chosen, algo)
    return {
        "algo": algo,
        "hyper": as_dict(hyper),
        "standing": at_default(hyper, model),
        "plans_rounds": kind.plans_rounds,
        "plugin": plugin_fingerprint(algo),
    }


def taken(algo: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Of the hyper-parameters that were chosen for several methods, those that this one has."""
    names = _hyper_names(algo)
    return {name: value for name, value in chosen.items() if meant(name, names) in names}


def check_taken(algos: Iterable[str], chosen: Mapping[str, Any]) -> None:
    """A hyper-parameter is for the methods that have it; one that none has is a mistake."""
    several = list(algos)
    names = sorted({name for algo in several for name in _hyper_names(algo)})
    for name in chosen:
        if meant(name, names) not in names:
            raise unknown(f"hyper-parameter of {', '.join(several)}", name, names)


def _hyper_names(algo: str) -> list[str]:
    return [knob.name for knob in knobs(load_algorithm(algo).Hyper).values()]


def plugin_fingerprint(name: str) -> str | None:
    """16 hexadecimal digits over the file that a plugin lies in, or over the source of a class that
    was registered; None for a built-in algorithm.

    An edited plugin is another method: its earlier results must not be taken for its own.
    """
    kind = load_algorithm(name)
    if name in _registered:
        return class_fingerprint(kind)
    if kind.__module__.startswith("pfl_bench.algorithms."):
        return None
    if name in _files:
        return _files[name].fingerprint
    source = inspect.getsourcefile(kind)
    return _fingerprint(Path(source)) if source else "no source"


def check_plugin(name: str, fingerprint: str | None) -> None:
    """Make sure that the algorithm here is the one that a run was configured with."""
    present = plugin_fingerprint(name)
    if present != fingerprint:
        raise UserError(
            f"the plugin {name!r} is not the one of this run: its file is {present}, and "
            f"{fingerprint} was ordered"
        )


def broken_plugins() -> dict[str, str]:
    """Plugins that cannot be used, with the reasons."""
    broken = {}
    for name in algorithm_names():
        try:
            load_algorithm(name)
        except UserError as error:
            broken[name] = str(error)
    return broken


# --- finding --------------------------------------------------------------------------------------


def _sources() -> dict[str, list[Source]]:
    """Everything on offer by name. Nothing is imported yet."""
    sources: dict[str, list[Source]] = {}
    for name, source in (*_built_in(), *_installed(), *_from_files(), *_from_session()):
        sources.setdefault(name, []).append(source)
    return sources


def _built_in() -> Iterator[tuple[str, Source]]:
    import pfl_bench.algorithms as package

    yield from _modules(package.__name__, tuple(package.__path__))


@lru_cache(maxsize=1)
def _modules(package: str, folders: tuple[str, ...]) -> tuple[tuple[str, Source], ...]:
    """Listed once: a table asks thousands of times. Packages are what algorithms bring along."""
    names = [info.name for info in pkgutil.iter_modules(folders) if not info.ispkg]
    return tuple(
        (name, Source("the built-in one", partial(importlib.import_module, f"{package}.{name}")))
        for name in names
    )


def _installed() -> Iterator[tuple[str, Source]]:
    for point in _entry_points(tuple(sys.path)):
        package = point.dist.name if point.dist else "an unnamed package"
        yield point.name, Source(f"{point.value} of the package {package}", point.load)


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Looked for once on a search path: it means reading a file of every installed package."""
    return tuple(importlib.metadata.entry_points(group=ENTRY_POINTS))


def _from_files() -> Iterator[tuple[str, Source]]:
    for name, file in _files.items():
        yield name, Source(f"the file {str(file.path)!r}", partial(_already_loaded, file.kind))


def _from_session() -> Iterator[tuple[str, Source]]:
    for name, kind in _registered.items():
        yield name, Source("a class of this session", partial(_already_loaded, kind))


def _already_loaded(kind: type[Algorithm]) -> type[Algorithm]:
    return kind


# --- loading --------------------------------------------------------------------------------------


def _load(name: str, source: Source) -> type[Algorithm]:
    """The algorithm of a source, or one sentence on why there is none."""
    try:
        offered = source.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin's code raises what it likes
        raise UserError(
            f"the plugin {name!r} ({source.where}) fails to import: {reason(error)}"
        ) from error
    try:
        kind = _only_algorithm(offered) if isinstance(offered, ModuleType) else offered
        _check(name, kind)
    except UserError as error:
        raise UserError(f"the plugin {name!r} ({source.where}) cannot be used: {error}") from None
    return kind


def _fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _execute(path: Path) -> ModuleType:
    """The module of a file, known to Python as an imported one is: dataclasses look it up."""
    name = f"pfl_bench_plugin_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _only_algorithm(module: ModuleType) -> type[Algorithm]:
    """The one algorithm that a module defines; a name with an underscore is a helper's."""
    found = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Algorithm)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]
    if len(found) != 1:
        names = ", ".join(kind.__name__ for kind in found) or "none"
        raise UserError(f"it must define exactly one subclass of Algorithm and defines {names}")
    return found[0]


def _check(name: str, kind: Any) -> None:
    """Refuse what would fail later, where the message could no longer say why."""
    if not name.isidentifier():
        raise UserError("its name must be letters, digits and underscores")
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise UserError(f"{kind!r} is not a subclass of Algorithm")
    for attribute in _DESCRIPTION:
        text = getattr(kind, attribute, None)
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{kind.__name__} must say its {attribute}")
    _check_hyper(kind)
    _check_metrics(kind)


def _check_hyper(kind: type[Algorithm]) -> None:
    declared = kind.Hyper
    where = f"{kind.__name__}.Hyper"
    if not dataclasses.is_dataclass(declared):
        raise UserError(f"{where} must be a dataclass")
    plain = [f.name for f in dataclasses.fields(declared) if "meaning" not in f.metadata]
    if plain:
        raise UserError(f"the fields of {where} are made with knob(); {', '.join(plain)} is not")
    try:
        declared_knobs = knobs(declared)
    except (NameError, TypeError) as error:
        raise UserError(f"the types of {where} cannot be read: {error}") from None
    for field, knob in declared_knobs.items():
        if knob.kind not in _KNOB_KINDS:
            allowed = ", ".join(k.__name__ for k in _KNOB_KINDS)
            raise UserError(f"{where}.{field} is of type {knob.kind!r}; allowed: {allowed}")


def _check_metrics(kind: type[Algorithm]) -> None:
    where = f"{kind.__name__}.metrics"
    if isinstance(kind.metrics, str) or not all(isinstance(m, Metric) for m in kind.metrics):
        raise UserError(f"{where} must be a tuple of pfl_bench.store.Metric")
    for metric in kind.metrics:
        if not metric.name.isidentifier():
            raise UserError(f"{where}: {metric.name!r} must be letters, digits and underscores")
