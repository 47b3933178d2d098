"""Hyper-parameters of an algorithm: declared once, validated, printed and hashed from there.

An algorithm declares a frozen dataclass whose fields are made with `knob`: each carries its
default, its meaning, where the default comes from and the value that would switch the method off.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, get_args, get_type_hints

from pfl_bench.base import UserError, meant, nearest, shown, unknown
from pfl_bench.config.search import Search

LARGEST = 1e12
"""Beyond this products of hyper-parameters leave the range of 32-bit floats: no value means it."""

USUAL_RANGES = {
    "log": "pfl-bench: about a decade around the default",
    "linear": "pfl-bench: nearly all that is possible",
}
"""Where a range to search comes from, unless its knob says it, by its scale."""


@dataclass(frozen=True)
class Knob:
    """What is known of one hyper-parameter."""

    name: str
    meaning: str
    source: str
    kind: type
    default: Any
    by_model: Mapping[str, Any]
    off: Any
    low: float | None
    high: float | None
    choices: Sequence[Any] | None
    aliases: Mapping[str, Any]
    """Other words for some of the choices."""
    also: Sequence[str]
    """Other names that users know it by."""
    search: Search | None = None
    """Where tuning looks for its value; None where it is left alone."""
    searched: str = ""
    """Where that range comes from."""

    def drawn(self, share: float) -> Any:
        """The value at a share in [0, 1) of the search range, in this knob's type."""
        if self.search is None:
            raise ValueError(f"{self.name} has no range to search")
        value = self.search.at(share)
        return self.convert(round(value) if self.kind is int else value)

    def default_for(self, model: str) -> Any:
        """The default in this knob's type: 1 and 1.0 must not name two results."""
        value = self.by_model.get(model, self.default)
        return None if value is None else _CONVERTERS[self.kind](value)

    def refusal(self, value: Any) -> str:
        """What an error says of a value: itself, the nearest choice and what is allowed."""
        hint = nearest(value, [*map(str, self.choices or ()), *self.aliases])
        is_open = self.kind in (int, float) and self.high is None
        limit = f" (and at most {LARGEST:g})" if is_open and _is_huge(value) else ""
        return f"{shown(value)};{hint} allowed: {self.allowed}{limit}"

    @property
    def allowed(self) -> str:
        """The valid values, in words."""
        if self.choices is not None:
            return self.bounds
        if self.kind is bool:
            return "true or false"
        noun = {int: "a whole number", float: "a number", str: "a word"}[self.kind]
        joint = " of " if self.low is None or self.high is None else " "
        return noun + (joint + self.bounds if self.bounds else "")

    @property
    def bounds(self) -> str:
        """What restricts the values beyond their type, if anything does."""
        if self.choices is not None:
            return "one of " + ", ".join(map(str, self.choices))
        if self.low is not None and self.high is not None:
            return f"from {self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"at least {self.low:g}"
        return "" if self.high is None else f"at most {self.high:g}"

    def convert(self, value: Any) -> Any:
        """`value` (often text from the command line) as this knob's type, or a ValueError."""
        if value is None and self.default is None:
            return None
        converted = _CONVERTERS[self.kind](value)
        if self.choices is not None and self.kind is str:
            word = meant(converted, [*self.choices, *self.aliases])
            converted = self.aliases.get(word, word)
        if self.choices is not None and converted not in self.choices:
            raise ValueError
        if self.kind in (int, float):
            below = self.low is not None and converted < self.low
            above = converted > (LARGEST if self.high is None else self.high)
            if below or above or converted < -LARGEST or not math.isfinite(converted):
                raise ValueError
        return converted


def _is_huge(value: Any) -> bool:
    try:
        return float(value) > LARGEST
    except OverflowError:
        return True
    except (TypeError, ValueError):
        return False


def _to_bool(value: Any) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True}
    words |= {"false": False, "no": False, "off": False, "0": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in words:
        raise ValueError
    return words[str(value).lower()]


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _to_float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value) + 0.0  # -0.0 and 0.0 must not name two results


_CONVERTERS: dict[type, Callable[[Any], Any]] = {
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    str: str,
}


def knob(
    default: Any,
    meaning: str,
    *,
    source: str,
    off: Any = None,
    name: str | None = None,
    by_model: Mapping[str, Any] | None = None,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[Any] | None = None,
    aliases: Mapping[str, Any] | None = None,
    also: Sequence[str] = (),
    search: Sequence[Any] = (),
    searched: str | None = None,
) -> Any:
    """A dataclass field for a hyper-parameter.

    `off` is the degenerate value under which the method becomes another one (None: there is none).
    `name` is what the user types where the field cannot bear it (`lambda` is a Python keyword).
    `search` is where tuning looks, (low, high, "log" or "linear") or some choices, and `searched`
    says where that comes from (by default what is usual for the scale); a knob that buys
    computation, or is no number to tune, has none.
    """
    range_ = Search.of(search) if search else None
    if range_ is not None and searched is None:
        searched = USUAL_RANGES[range_.scale]
    facts = {
        "meaning": meaning,
        "source": source,
        "off": off,
        "name": name,
        "by_model": by_model or {},
        "low": low,
        "high": high,
        "choices": choices,
        "aliases": aliases or {},
        "also": also,
        "search": range_,
        "searched": searched if range_ else "",
    }
    return field(default=default, metadata=facts)


@dataclass(frozen=True)
class NoKnobs:
    """For algorithms without hyper-parameters of their own."""


@lru_cache(maxsize=256)
def knobs(declared: type) -> Mapping[str, Knob]:
    """The knobs of a hyper-parameter dataclass by the name of their field."""
    kinds = get_type_hints(declared)
    return {
        f.name: Knob(
            **{**f.metadata, "name": f.metadata["name"] or f.name},
            kind=_without_none(kinds[f.name]),
            default=f.default,
        )
        for f in dataclasses.fields(declared)
    }


def _without_none(kind: Any) -> type:
    """`float` of `float | None`: None as a default means that the value follows from others."""
    return next((k for k in get_args(kind) if k is not type(None)), kind)


def resolve(declared: type, model: str, chosen: Mapping[str, Any], algorithm: str) -> Any:
    """The hyper-parameters of a run: the defaults for `model`, overridden by what was `chosen`."""
    fields = knobs(declared)
    by_name = {k.name: f for f, k in fields.items()}
    values = {f: k.default_for(model) for f, k in fields.items()}
    for typed_name, value in chosen.items():
        name = meant(typed_name, by_name)
        if name not in by_name:
            raise unknown(f"hyper-parameter of {algorithm}", name, by_name)
        field_name = by_name[name]
        try:
            values[field_name] = fields[field_name].convert(value)
        except (ValueError, TypeError, OverflowError):
            raise UserError(
                f"{algorithm} cannot take {name}={fields[field_name].refusal(value)} "
                f"(valid names: {', '.join(by_name)})"
            ) from None
    return declared(**values)


def at_default(hyper: Any, model: str) -> tuple[str, ...]:
    """The names of the hyper-parameters that have the value they would have unsaid."""
    declared: type = type(hyper)
    fields = knobs(declared).items()
    return tuple(k.name for f, k in fields if getattr(hyper, f) == k.default_for(model))


def as_dict(hyper: Any) -> dict[str, Any]:
    """The values by the names users type."""
    declared: type = type(hyper)
    return {k.name: getattr(hyper, f) for f, k in knobs(declared).items()}
