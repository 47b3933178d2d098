"""The fingerprint of a class that lies in no file of its own: one defined in a notebook's cell.

It covers what the class does: the source of its methods and of every function and class of the same
notebook that they use, and the plain values that they read there. What it takes from imported
modules counts by name, as it does in a plugin's file.
"""

from __future__ import annotations

import dataclasses
import dis
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from pfl_bench.base import UserError

_READING = ("LOAD_GLOBAL", "LOAD_NAME")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_GENERATED = "<string>"
"""Where the methods that a dataclass writes itself say that they come from."""
_SILENT = {
    "__module__", "__qualname__", "__dict__", "__weakref__", "__doc__", "__firstlineno__",
    "__static_attributes__", "__dataclass_params__", "__match_args__", "__abstractmethods__",
    "_abc_impl", "__annotations_cache__", "__annotate_func__", "__slots__", "__replace__",
    "__hash__",
}  # fmt: skip
"""Members that follow from the others or change no result."""


def class_fingerprint(kind: type) -> str:
    """16 hexadecimal digits over what the class does, as it stands at this moment."""
    lines = _Telling(kind.__module__).of_class(kind)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


class _Telling:
    """Puts things into words, each of the module `home` once."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._told: set[int] = set()

    def of_class(self, kind: type) -> Iterator[str]:
        if kind.__module__ != self._home:
            yield f"{kind.__module__}.{kind.__qualname__}"
            return
        yield f"class {kind.__qualname__}"
        if id(kind) in self._told:
            return
        self._told.add(id(kind))
        for base in kind.__bases__:
            yield from self.of_class(base)
        for name, value in sorted(vars(kind).items()):
            if name not in _SILENT and not _is_generated(kind, name):
                yield f"{name}:"
                yield from self._of(value, f"{kind.__qualname__}.{name}")

    def _of(self, value: Any, where: str) -> Iterator[str]:
        match value:
            case ModuleType():
                yield value.__name__
            case type():
                yield from self.of_class(value)
            case FunctionType():
                yield from self._of_function(value, where)
            case staticmethod() | classmethod():
                yield from self._of(value.__func__, where)
            case property():
                for function in (value.fget, value.fset, value.fdel):
                    yield from self._of(function, where)
            case partial():
                yield from self._of((value.func, value.args, value.keywords), where)
            case dataclasses.Field():
                yield from self._of((value.default, value.default_factory), where)
                yield from self._of(value.metadata, where)
            case Mapping():
                for key, item in value.items():
                    yield repr(key)
                    yield from self._of(item, where)
            case tuple() | list():
                for item in value:
                    yield from self._of(item, where)
            case set() | frozenset():
                yield repr(sorted(map(repr, value)))
            case _ if isinstance(value, _PLAIN) or value is dataclasses.MISSING:
                yield repr(value)
            case _ if dataclasses.is_dataclass(value):
                for field in dataclasses.fields(value):
                    yield from self._of(getattr(value, field.name), f"{where}.{field.name}")
            case _ if inspect.isbuiltin(value) or type(value).__module__ in ("types", "typing"):
                yield repr(value)
            case _ if getattr(value, "__module__", None) not in (None, self._home):
                yield f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}"
            case _:
                raise UserError(
                    f"{where} is of type {type(value).__name__}, which no configuration can "
                    "record; make it a number, a text, a function or a hyper-parameter"
                )

    def _of_function(self, function: FunctionType, where: str) -> Iterator[str]:
        if wrapped := getattr(function, "__wrapped__", None):
            yield from self._of(wrapped, where)
        if function.__globals__.get("__name__") != self._home:
            yield f"{function.__globals__.get('__name__')}.{function.__qualname__}"
            return
        if id(function) in self._told:
            yield function.__qualname__
            return
        self._told.add(id(function))
        try:
            yield inspect.getsource(function.__code__)
        except (OSError, TypeError):
            raise UserError(
                f"the source of {where} cannot be read; define it in a notebook's cell or a file"
            ) from None
        yield from self._of((function.__defaults__, function.__kwdefaults__), where)
        for name in sorted(_globals_read(function.__code__)):
            if name in function.__globals__:
                yield f"{name}:"
                yield from self._of(function.__globals__[name], f"the global {name} of {where}")
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            if name != "__class__":
                yield f"{name}:"
                yield from self._of(cell.cell_contents, f"{name} of {where}")


def _is_generated(kind: type, name: str) -> bool:
    """Whether a dataclass wrote this method itself, from its fields."""
    function = inspect.unwrap(vars(kind)[name]) if name.startswith("__") else None
    is_text = isinstance(function, FunctionType) and function.__code__.co_filename == _GENERATED
    return is_text and dataclasses.is_dataclass(kind)


def _globals_read(code: CodeType) -> set[str]:
    """The global names that a function reads, those of functions within it included."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in _READING}
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return found.union(*map(_globals_read, inner))
