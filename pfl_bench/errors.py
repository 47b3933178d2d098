"""Mistakes of the user, as opposed to defects of the program.

A `UserError` is printed as one sentence with exit code 2 and never with a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend; the message is one sentence that names the offending value."""


def unknown(kind: str, value: object, allowed: Iterable[str]) -> UserError:
    """The error for a name that does not exist: the value, the nearest match, what is allowed."""
    names = sorted(allowed)
    near = difflib.get_close_matches(str(value).lower(), names, n=1, cutoff=0.5)
    hint = f" did you mean {near[0]!r}?" if near else ""
    listing = ", ".join(names) if names else "none"
    return UserError(f"unknown {kind} {str(value)!r};{hint} allowed: {listing}")
