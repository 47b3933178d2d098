"""What the attacks share: the command line in process, junk of every kind, and what counts as fair.

An input is treated fairly if it is accepted, or refused with exit code 2 and a message that names
what is wrong. Anything else, a traceback above all, is a defect.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from pfl_bench.cli import main

LONG = "x" * 5_000

nasty_texts = st.sampled_from(
    [
        "", " ", "-", "--", "0", "-1", "1e400", "nan", "inf", "-inf", "1_000", "0x10", "٣", "½",
        "true", "null", "None", "[]", "{}", "[/red]", "%s%n", "{0}", "$HOME", "`id`", "; true",
        "~nobody-of-this-name/x", "/dev/null/x", "/", ".", "..", "../../etc/passwd", "a/b",
        "\x1b[31m", "a\nb", "\udcff", "é" * 200, LONG, "9" * 5_000, "fedavgg", "λ",
    ]
)  # fmt: skip
texts = nasty_texts | st.text(st.characters(exclude_characters="\0"), max_size=30)
"""What can stand on a command line, which cannot carry a NUL."""

numbers = st.one_of(
    st.integers(),
    st.integers(-3, 3),
    st.sampled_from([10**18, -(10**18), 10**50, 2**63, 10**13]),
    st.floats(),
    st.sampled_from([1e-320, 1e300, -0.0, 1e13]),
)
scalars = st.none() | st.booleans() | numbers | texts | st.sampled_from(["a\0b", "\0", "../\0"])
junk = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | numbers, inner, max_size=3),
    max_leaves=6,
)


class Reached(Exception):
    """The input was accepted and training or drawing would begin."""


def fuzz(cases: int) -> Callable[[Any], Any]:
    """So many inputs, the same ones every time."""
    return settings(
        max_examples=cases,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def invoke(*arguments: str | Path) -> Result:
    """The command in this process; fails the test unless the input is treated fairly."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if isinstance(result.exception, Reached):
        return result
    if result.exc_info and not isinstance(result.exception, SystemExit | None):
        raise AssertionError(
            f"{arguments} ended in\n{''.join(traceback.format_exception(*result.exc_info))}"
        )
    assert result.exit_code in (0, 2), f"{arguments} ended with {result.exit_code}: {result.output}"
    assert "Traceback" not in result.output
    if result.exit_code == 2:
        assert result.output.strip(), f"{arguments} were refused without a word"
    return result


def is_refused(result: Result) -> bool:
    return result.exit_code == 2


def names_any(message: str, values: Iterable[object]) -> bool:
    """Whether a message names one of the values; a long one it may cut."""
    told = message.casefold()
    return any(form.casefold() in told for value in values for form in _forms(value))


def _forms(value: object) -> set[str]:
    """How a message may write a value down: as given, cut, as the number or the path it means."""
    text = str(value)
    ending = repr(text.rpartition(".")[2])
    stripped = text.strip()
    forms = {text, stripped, repr(value), repr(text), repr(stripped), text[:90], repr(text)[:90]}
    forms.add(ending)
    for number in (int, float):
        with contextlib.suppress(ValueError, OverflowError):
            forms |= {str(number(text)), f"{number(text):g}"}
    with contextlib.suppress(ValueError, OSError):
        forms.add(repr(str(Path(text).resolve())))
    return {form for form in forms if form.strip()}
