"""JSON Schema, as much of it as the files in documents/ use.

A schema is turned into a function once and asked often: every line of every run passes through.
Whatever a file says beyond the words below is an error here, so that no sentence of a schema goes
unheeded. Two things are as our documents have them: a whole number is written without a point, and
the floats that JSON lacks stand for the texts by which it writes them.
"""

from __future__ import annotations

import functools
import json
import math
import re
import zlib
from collections.abc import Callable
from importlib import resources
from typing import Any

from pfl_bench.base import shown

Check = Callable[[Any], str | None]
"""What is wrong with a value, as "place: sentence"; None where nothing is."""

_FOLDER = "documents"
_SAID_ONLY = {"$schema", "$id", "$defs", "title", "description"}
_KINDS: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def mismatch(kind: str, document: Any) -> str | None:
    """What keeps `document` from being a config, a record, a summary or an attack; None where it is
    one."""
    try:
        return (problem := _check_of(f"{kind}.schema.json")(document)) and problem.lstrip(".: ")
    except RecursionError:
        return "it is nested too deeply"


@functools.cache
def edition() -> str:
    """Tells apart what documents were judged by at different times."""
    files = (each.read_bytes() for each in (resources.files("pfl_bench.store") / _FOLDER).iterdir())
    return f"{zlib.crc32(b''.join(sorted(files))):08x}"


@functools.cache
def _check_of(file: str) -> Check:
    return _compiled(_read(file), file)


@functools.cache
def _read(file: str) -> dict[str, Any]:
    place = resources.files("pfl_bench.store") / _FOLDER / file
    return json.loads(place.read_text(encoding="utf-8"))


def _referred(reference: str, file: str) -> tuple[dict[str, Any], str]:
    """What `file#/$defs/name` stands for, and the file that it stands in."""
    elsewhere, _, place = reference.partition("#/")
    home = elsewhere or file
    schema: Any = _read(home)
    for name in place.split("/"):
        schema = schema[name]
    return schema, home


def _reference(reference: str, file: str) -> Check:
    """Made when first needed, because it may need itself."""
    made: Check | None = None

    def check(value: Any) -> str | None:
        nonlocal made
        if made is None:
            made = _compiled(*_referred(reference, file))
        return made(value)

    return check


def _compiled(schema: dict[str, Any], file: str) -> Check:
    words = {name: value for name, value in schema.items() if name not in _SAID_ONLY}
    if "$ref" in words:
        reference = words.pop("$ref")
        _refuse_further(words)
        return _reference(reference, file)
    if "anyOf" in words:
        several = [_compiled(each, file) for each in words.pop("anyOf")]
        _refuse_further(words)
        return _any_of(several)
    if "enum" in words:
        allowed = words.pop("enum")
        _refuse_further(words)
        return lambda value: None if _plain(value) in allowed else f": {shown(value)} is unknown"
    declared = words.pop("type")
    names = [declared] if isinstance(declared, str) else declared
    kinds = tuple(kind for name in names for kind in _KINDS[name])
    inner = {
        str: _text(words),
        int: (number := _number(words)),
        float: number,
        list: _array(words, file),
        dict: _object(words, file),
    }
    _refuse_further(words)
    title = " or ".join("nothing" if name == "null" else name for name in names)

    def check(value: Any) -> str | None:
        kind = type(value)
        if kind not in kinds or (kind is float and not math.isfinite(value)):
            return f": {shown(value)} is not of the kind {title}"
        further = inner.get(kind)
        return further(value) if further else None

    return check


def _refuse_further(words: dict[str, Any]) -> None:
    if words:
        raise ValueError(f"a schema says {', '.join(words)}, which nobody checks")


def _plain(value: Any) -> Any:
    """A float that JSON lacks as the text it is written as."""
    if type(value) is float and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _any_of(several: list[Check]) -> Check:
    def check(value: Any) -> str | None:
        problem = None
        for each in several:
            problem = each(value)
            if problem is None:
                return None
        return problem

    return check


def _text(words: dict[str, Any]) -> Check | None:
    shortest, longest = words.pop("minLength", 0), words.pop("maxLength", math.inf)
    pattern = re.compile(words.pop("pattern", ""), re.ASCII)

    def check(value: str) -> str | None:
        if not shortest <= len(value) <= longest:
            return f": a text of {len(value):,} letters, and {shortest} to {longest} are allowed"
        # Python's $ stands before a last newline, too.
        if pattern.search(value) is None or (pattern.pattern[-1:] == "$" and _ends_oddly(value)):
            return f": {shown(value)} is not such a text"
        return None

    def _ends_oddly(value: str) -> bool:
        return value[-1:] == "\n" and pattern.search(f"{value}x") is None

    return check


def _number(words: dict[str, Any]) -> Check:
    low, high = words.pop("minimum", -math.inf), words.pop("maximum", math.inf)

    def check(value: float) -> str | None:
        return None if low <= value <= high else f": {shown(value)} is not from {low} to {high}"

    return check


def _array(words: dict[str, Any], file: str) -> Check:
    fewest, most = words.pop("minItems", 0), words.pop("maxItems", math.inf)
    schema = words.pop("items", None)
    item = _all_is_well if schema is None else _compiled(schema, file)
    ranges = schema is not None and _is_range(schema, file)

    def check(value: list[Any]) -> str | None:
        if not fewest <= len(value) <= most:
            return f": {len(value):,} entries, and {fewest} to {most} are allowed"
        if ranges and _are_like_numbers(value) and not item(min(value)) and not item(max(value)):
            return None  # and so are all between
        for position, each in enumerate(value):
            if problem := item(each):
                return f"[{position}]{problem}"
        return None

    return check


def _is_range(schema: Any, file: str) -> bool:
    """Whether the numbers that a schema admits are those between two."""
    if "$ref" in schema:
        return _is_range(*_referred(schema["$ref"], file))
    if "anyOf" in schema:
        kinds = [each for each in schema["anyOf"] if "enum" not in each]
        return len(kinds) == 1 and _is_range(kinds[0], file)
    return schema.get("type") in ("integer", "number")


def _are_like_numbers(values: list[Any]) -> bool:
    """Whether all are whole, or all finite floats, so that their least and greatest tell of all."""
    kinds = set(map(type, values))
    return kinds == {int} or (kinds == {float} and math.isfinite(sum(values)))


def _object(words: dict[str, Any], file: str) -> Check:
    required, most = words.pop("required", []), words.pop("maxProperties", math.inf)
    known = {name: _compiled(each, file) for name, each in words.pop("properties", {}).items()}
    name_check = _compiled(words.pop("propertyNames"), file) if "propertyNames" in words else None
    others = words.pop("additionalProperties", True)
    other = _compiled(others, file) if isinstance(others, dict) else _all_is_well

    def check(value: dict[str, Any]) -> str | None:
        for name in required:
            if name not in value:
                return f": there is no {name}"
        if len(value) > most:
            return f": {len(value):,} names, and {most} are allowed"
        for name, each in value.items():
            if name_check is not None and (problem := name_check(name)):
                return f": as a name{problem[1:]}"
            if name not in known and others is False:
                return f": {shown(name)} is unknown"
            if problem := known.get(name, other)(each):
                return f".{name}{problem}"
        return None

    return check


def _all_is_well(_: Any) -> str | None:
    return None
