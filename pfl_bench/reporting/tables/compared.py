"""What stands below a table of how its cells compare: with the paper, and the table's method with
every other. The same words in every format; what they rest on is worked out in `statistics` and
`ranking`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pfl_bench.reporting.ranking import MATCHES, Match
from pfl_bench.reporting.tables.content import Content, signed

if TYPE_CHECKING:
    from pfl_bench.reporting.statistics import Agreement, PairedTest

CORRELATIONS = (
    "τ and ρ are Kendall's τ-b and Spearman's ρ between our ranking and the paper's, among those "
    "that both have a figure for; the winner here is the best of all, Local included."
)
PAIRED_TEST = (
    "The paired test flips the signs of the differences between equal seeds in all ways "
    "(two-sided); it does not allow for the rival being chosen as the best."
)


@dataclass(frozen=True)
class Block:
    """A small table under the table, and how to read it."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str


def blocks(content: Content) -> list[Block]:
    """Those that have something to say."""
    found = []
    if content.agreement:
        found.append(_agreement(content))
    if content.matches:
        found.append(_matches(content))
    return found


def _agreement(content: Content) -> Block:
    """Columns that have nothing to say in any line are left out."""
    axis = "row" if content.plan.spec.compared == "columns" else "column"
    head = [axis, "compared", "τ", "ρ", "mean |difference|", "winner in the paper", "winner here"]
    tested = content.plan.spec.method
    head.append(f"{tested} against the best other" if tested else "")
    rows = [_agreement_row(one) for one in content.agreement]
    kept = [k for k in range(len(head)) if any(row[k] for row in rows)]
    is_published = any(one.competitors for one in content.agreement)
    is_ranked = any(one.kendall is not None for one in content.agreement)
    is_tested = any(one.test for one in content.agreement)
    return Block(
        "Agreement with the paper" if is_published else "Paired test",
        [head[k] for k in kept],
        [[row[k] or "–" for k in kept] for row in rows],
        " ".join([CORRELATIONS] * is_ranked + [PAIRED_TEST] * is_tested),
    )


def _agreement_row(one: Agreement) -> list[str]:
    difference = one.mean_absolute_difference
    return [
        one.line,
        str(one.competitors) if one.competitors else "",
        *("" if value is None else f"{value:.2f}" for value in (one.kendall, one.spearman)),
        "" if difference is None else f"{difference:.2f}",
        _named(one.paper_winners),
        "the same" if one.same_winner else _named(one.our_winners),
        _tested(one.test) if one.test else "",
    ]


def _named(winners: Sequence[str]) -> str:
    """The winner, or who shares the first place."""
    if len(winners) < 2:
        return "".join(winners)
    return f"a tie of {len(winners)}" if len(winners) > 3 else " = ".join(winners)


def _tested(test: PairedTest) -> str:
    return (
        f"{signed(test.difference, test.digits)} to {test.rival}, p = {test.p:.3g} "
        f"(n = {test.seeds}, at best {test.smallest_p:.3g})"
    )


def _matches(content: Content) -> Block:
    method = content.plan.spec.method
    digits = next(iter(content.entries.values())).measure.digits
    return Block(
        f"{method} against every other",
        ["rival", "pairs", "better", "worse", "median difference", "p", "p after Holm"],
        [_match_row(one, digits) for one in content.matches],
        MATCHES,
    )


def _match_row(one: Match, digits: int) -> list[str]:
    counts = (one.pairs, one.better, one.worse)
    values = (f"{one.p:.2g}", f"{one.adjusted:.2g}")
    return [one.rival, *map(str, counts), signed(one.median, digits), *values]
