"""The paragraph that the report opens with: what is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

_NAMED = 8
"""So many names are spelt out; of more, the most frequent."""


def about(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences on the runs: methods, data and how they are dealt, models, rounds, seeds, days."""
    if not runs:
        return []
    said = [
        f"{_names(runs, 'method', 'method')} on {_names(runs, 'dataset', 'dataset')}, dealt as "
        f"{_names(runs, 'setting', 'setting')} to {_span(run['clients'] for run in runs)} clients.",
        f"Share of the data: {_names(runs, 'share', 'share')}. Model: "
        f"{_names(runs, 'model', 'model')}. Rounds: {_span(run['rounds'] for run in runs)}. Seeds: "
        f"{_span(run['seed'] for run in runs)}.",
    ]
    days = sorted({run["finished"][:10] for run in runs} - {""})
    if days:
        said.append(
            f"Finished on {days[0]}."
            if len(days) == 1
            else f"Finished between {days[0]} and {days[-1]}."
        )
    return said


def _names(runs: Sequence[dict[str, Any]], name: str, noun: str) -> str:
    """The values, the most frequent first, and how many there are where they are several."""
    found = [value for value, _ in Counter(run[name] for run in runs).most_common()]
    if len(found) == 1:
        return str(found[0])
    more = len(found) - _NAMED
    listed = ", ".join(found[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{len(found)} {noun}s ({listed})"


def _span(values: Iterable[int]) -> str:
    found = set(values)
    low, high = min(found), max(found)
    return f"{low}" if low == high else f"{low} to {high}"
