"""Mistakes of the user, as opposed to defects of the program.

A `UserError` is printed as one sentence with exit code 2 and never with a traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

LONGEST_SHOWN = 200


class UserError(Exception):
    """Something the user can mend; the message is one sentence that names the offending value."""


def shown(value: object) -> str:
    """`value` in quotes as a message names it: on one line, and cut where it is very long."""
    text = repr(value)
    if len(text) <= LONGEST_SHOWN:
        return text
    half = LONGEST_SHOWN // 2
    return f"{text[:half]}…{text[-half:]} ({len(text):,} characters)"


def reason(error: BaseException) -> str:
    """What an exception of foreign code says, on one line and cut where it is very long."""
    try:
        said = str(error)
    except BaseException:  # even its words are foreign code
        said = "it cannot say why"
    text = " ".join(f"{type(error).__name__}: {said}".split())
    return text if len(text) <= 2 * LONGEST_SHOWN else f"{text[: 2 * LONGEST_SHOWN]}…"


def plain_text(value: object, what: str) -> str:
    """Words of a file that are printed as they stand: on one line, and nothing but letters."""
    text = " ".join(str(value).split())
    if not text.isprintable():
        raise UserError(f"{what} cannot be {shown(value)}; allowed: text that can be printed")
    return text


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the machine, or a card of it, had no room left; torch says so in its own way."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, ImportError):  # a library that the loader found no room for
        return bool(re.search("failed to map segment|cannot allocate memory", str(error), re.I))
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def unknown(kind: str, value: object, allowed: Iterable[str]) -> UserError:
    """The error for a name that does not exist: the value, the nearest match, what is allowed."""
    names = sorted(allowed)
    listing, hint = ", ".join(names) if names else "none", nearest(value, names)
    return UserError(f"unknown {kind} {shown(str(value))};{hint} allowed: {listing}")


def nearest(value: object, names: Iterable[str]) -> str:
    """A question after the name that `value` resembles; nothing where there is none."""
    text = str(value)[:LONGEST_SHOWN].lower()
    near = difflib.get_close_matches(text, list(names), n=1, cutoff=0.5)
    return f" did you mean {near[0]!r}?" if near else ""
