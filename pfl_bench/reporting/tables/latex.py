"""A table as LaTeX."""

from __future__ import annotations

from collections.abc import Iterator

from pfl_bench.reporting.tables.content import Content, Entry
from pfl_bench.reporting.tables.markup import latex as _tex
from pfl_bench.reporting.tables.markup import latex_label, one_line
from pfl_bench.reporting.verdict import MARK


def to_latex(content: Content) -> str:
    r"""A floating table in booktabs' style, the best of each line in bold. Needs the packages
    booktabs and graphicx."""
    spec = content.plan.spec
    lines = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        *(f"% {name}: {one_line(text)}" for name, text in content.facts.items()),
        r"\begin{table*}",
        r"  \centering",
        rf"  \caption{{{_tex(spec.caption)} {_tex(_short(content))}}}",
        rf"  \label{{tab:{latex_label(spec.stem)}}}",
        r"  \resizebox{\linewidth}{!}{%",
        rf"  \begin{{tabular}}{{l{'r' * len(spec.columns)}}}",
        r"    \toprule",
        *_tex_head(content),
        r"    \midrule",
    ]
    for row in spec.rows:
        if row in spec.rules and row != spec.rows[0]:
            lines.append(r"    \midrule")
        entries = [content.entries[row, column] for column in spec.columns]
        lines.append(_tex_row(_tex(row), map(_tex_value, entries)))
        if any(entry.beside for entry in entries):
            beside = (rf"{{\scriptsize {_tex(e.beside)}}}" if e.beside else "" for e in entries)
            lines.append(_tex_row("", beside))
    lines += [*_tex_agreement(content), r"    \bottomrule", r"  \end{tabular}}"]
    for mark, text in content.footnotes.items():
        lines.append(rf"  \par\footnotesize\textsuperscript{{{mark}}} {_tex(text)}")
    return "\n".join([*lines, r"\end{table*}"]) + "\n"


def _tex_head(content: Content) -> list[str]:
    """The columns' names, under their groups where they have any."""
    spec = content.plan.spec
    names = _tex_row("", (_tex(spec.label(column)) for column in spec.columns))
    if not spec.groups:
        return [names]
    spans: list[tuple[str, int, int]] = []
    for k, column in enumerate(spec.columns, start=2):
        group = spec.groups.get(column, "")
        if spans and spans[-1][0] == group:
            spans[-1] = (group, spans[-1][1], k)
        else:
            spans.append((group, k, k))
    heads = (
        rf"\multicolumn{{{last - first + 1}}}{{c}}{{{_tex(group)}}}" for group, first, last in spans
    )
    rules = "".join(rf"\cmidrule(lr){{{first}-{last}}}" for group, first, last in spans if group)
    return [_tex_row("", heads), f"    {rules}", names]


def _tex_value(entry: Entry) -> str:
    value = _tex(entry.text)
    if entry.mean is None:
        value = rf"\textit{{{value}}}"
    mark = rf"\textsuperscript{{{entry.mark}}}" if entry.mark else ""
    return (rf"\textbf{{{value}}}" if entry.is_best else value) + mark


def _tex_agreement(content: Content) -> list[str]:
    """Both rank correlations under each column, where it is the rows that compete."""
    is_ranked = any(one.kendall is not None for one in content.agreement)
    if content.plan.spec.compared != "rows" or not is_ranked:
        return []
    by_column = {one.line: one for one in content.agreement}
    columns = [by_column.get(column) for column in content.plan.spec.columns]
    rows = {
        r"Kendall's $\tau$": [one and one.kendall for one in columns],
        r"Spearman's $\rho$": [one and one.spearman for one in columns],
    }
    shown = (
        _tex_row(title, ("--" if v is None else _tex(f"{v:.2f}".replace("-", "−")) for v in values))
        for title, values in rows.items()
    )
    return [r"    \midrule", *shown]


def _short(content: Content) -> str:
    """What a reader of the paper must know; the rest stands as a comment above the table."""
    plan = content.plan
    over = "attacked images" if plan.spec.is_attacked else "seeds"
    number = f"{plan.seeds} seed{'' if plan.seeds == 1 else 's'}"
    spread = f"Mean ± standard deviation over {number if over == 'seeds' else over}"
    told = [spread if any(entry.std is not None for entry in content.entries.values()) else number]
    if any(entry.standin for entry in content.entries.values()):
        told.append("stand-in data")
    if any(entry.rising for entry in content.entries.values()):
        told.append(f"{MARK} more rounds would change this cell")
    return f"{'; '.join(told)}."


def _tex_row(first: str, cells: Iterator[str] | map[str]) -> str:
    return f"    {' & '.join([first, *cells])} \\\\"
