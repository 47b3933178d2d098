"""Names separated by commas, as several options take them."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_bench.base import UserError, shown


def names(option: str, *texts: str, whole: Sequence[str] = ()) -> list[str]:
    """The names in `texts`, each once; one of `whole` may have a comma. None at all is a mistake:
    an empty shell variable must not mean everything."""
    found: dict[str, None] = {}
    for text in texts:
        parts = [text] if text in whole else (part.strip() for part in text.split(","))
        several = [part for part in parts if part]
        if not several:
            raise UserError(f"{option} cannot be {shown(text)}; allowed: names separated by commas")
        found |= dict.fromkeys(several)
    return list(found)
