"""A table laid out: on the terminal, as Markdown, LaTeX and CSV, and all formats into a folder.

What a table says is decided in `content`; the picture is drawn in `plot`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.base import UserError, standard_output, write_atomically
from pfl_bench.reporting.tables import markup
from pfl_bench.reporting.tables.content import Entry, Sheet, make_sheet, signed
from pfl_bench.reporting.tables.markup import latex as _tex
from pfl_bench.reporting.tables.markup import markdown as _md

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from pfl_bench.reporting.statistics import Agreement, PairedTest
    from pfl_bench.reporting.tables.plan import TablePlan

PIPE_WIDTH = 120
"""Columns are laid out in blocks, for people to read."""
GAP = 2
"""Blanks between two columns on the terminal."""

CORRELATIONS = (
    "τ and ρ are Kendall's τ-b and Spearman's ρ between our ranking and the paper's, among those "
    "that both have a figure for; the winner here is the best of all, Local included."
)
PAIRED_TEST = (
    "The paired test flips the signs of the differences between equal seeds in all ways "
    "(two-sided); it does not allow for the rival being chosen as the best."
)

# --- terminal -----------------------------------------------------------------------------------


def to_terminal(plan: TablePlan, console: Console | None = None) -> None:
    """Print the table; columns that do not fit beside one another go into further blocks."""
    console = console or standard_output(PIPE_WIDTH)
    sheet = make_sheet(plan)
    console.print(plan.spec.caption, style="bold", markup=False)
    for columns in _blocks(sheet, console.width):
        console.print()
        console.print(_block(sheet, columns))
    console.print()
    for mark, text in sheet.footnotes.items():
        console.print(f"({mark}) {text}", markup=False)
    if sheet.agreement:
        console.print(f"\n{agreement_title(sheet)}", style="bold")
        _print_agreement(sheet, console)
        console.print()
    for name, text in sheet.facts.items():
        console.print(f"{name}: {text}", style="dim", markup=False)


def _blocks(sheet: Sheet, width: int) -> Iterator[list[str]]:
    """The columns in groups that fit into `width`."""
    spec = sheet.plan.spec
    left = width - max(map(len, spec.rows)) - GAP
    block: list[str] = []
    used = 0
    for column in spec.columns:
        needed = GAP + max(_figures_width(sheet, column), *map(len, column.split()))
        if block and used + needed > left:
            yield block
            block, used = [], 0
        block.append(column)
        used += needed
    yield block


def _figures_width(sheet: Sheet, column: str) -> int:
    """Headings may be broken between words; figures may not."""
    rows = sheet.plan.spec.rows
    return max(len(line) for row in rows for line in _lines(sheet.entries[row, column]))


def _block(sheet: Sheet, columns: Sequence[str]) -> Table:
    from rich.text import Text

    spec = sheet.plan.spec
    table = _plain_table()
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(Text(column), justify="right", min_width=_figures_width(sheet, column))
    for row in spec.rows:
        if row in spec.rules and row != spec.rows[0]:
            table.add_section()
        table.add_row(Text(row), *(_styled(sheet.entries[row, column]) for column in columns))
    return table


def _plain_table() -> Table:
    """A line under the head and no other; GAP is one blank of padding and one of the box."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), show_edge=False)


def _styled(entry: Entry) -> Text:
    from rich.text import Text

    figure, *beside = _lines(entry)
    style = "bold green" if entry.is_best else "" if entry.mean is not None else "yellow"
    return Text("\n").join([Text(figure, style), *(Text(line, "dim") for line in beside)])


def _lines(entry: Entry) -> list[str]:
    figure = entry.figure + (f" ({entry.mark})" if entry.mark else "")
    return [figure, *([entry.beside] if entry.beside else [])]


def _print_agreement(sheet: Sheet, console: Console) -> None:
    from rich.text import Text

    head, *rows = agreement_rows(sheet)
    table = _plain_table()
    for title in head:
        table.add_column(Text(title), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    console.print(agreement_note(sheet), style="dim", markup=False)


# --- agreement, the same words in every format --------------------------------------------------


def agreement_rows(sheet: Sheet) -> list[list[str]]:
    """Head and lines. Columns that have nothing to say in any line are left out."""
    axis = "row" if sheet.plan.spec.compared == "columns" else "column"
    head = [axis, "compared", "τ", "ρ", "mean |difference|", "winner in the paper", "winner here"]
    tested = sheet.plan.spec.method
    head.append(f"{tested} against the best other" if tested else "")
    rows = [_agreement_row(one) for one in sheet.agreement]
    kept = [k for k in range(len(head)) if any(row[k] for row in rows)]
    return [[row[k] or "–" for k in kept] for row in (head, *rows)]


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


def agreement_title(sheet: Sheet) -> str:
    is_published = any(one.competitors for one in sheet.agreement)
    return "Agreement with the paper" if is_published else "Paired test"


def agreement_note(sheet: Sheet) -> str:
    """How to read the columns that are there."""
    is_ranked = any(one.kendall is not None for one in sheet.agreement)
    is_tested = any(one.test for one in sheet.agreement)
    return " ".join([CORRELATIONS] * is_ranked + [PAIRED_TEST] * is_tested)


def _tested(test: PairedTest) -> str:
    return (
        f"{signed(test.difference, test.digits)} to {test.rival}, p = {test.p:.3g} "
        f"(n = {test.seeds}, at best {test.smallest_p:.3g})"
    )


# --- Markdown -----------------------------------------------------------------------------------


def to_markdown(plan: TablePlan) -> str:
    sheet = make_sheet(plan)
    spec = plan.spec
    body = [["", *map(_md, spec.columns)]]
    body += [
        [_md(row), *(_md_cell(sheet.entries[row, column]) for column in spec.columns)]
        for row in spec.rows
    ]
    parts = [f"**{_md(spec.caption)}**", _pipes(body)]
    parts += [f"<sup>{mark}</sup> {_md(text)}" for mark, text in sheet.footnotes.items()]
    if sheet.agreement:
        lines = [[_md(cell) for cell in line] for line in agreement_rows(sheet)]
        parts += [f"### {agreement_title(sheet)}", _pipes(lines), agreement_note(sheet)]
    parts.append("\n".join(_md_fact(name, text) for name, text in sheet.facts.items()))
    return "\n\n".join(parts) + "\n"


def _md_fact(name: str, text: str) -> str:
    return f"- {name}: {markup.markdown_code(text) if name == 'Command' else _md(text)}"


def _md_cell(entry: Entry) -> str:
    figure = _md(entry.figure)
    figure = figure if entry.mean is not None else f"*{figure}*"
    figure = f"**{figure}**" if entry.is_best else figure
    mark = f"<sup>{entry.mark}</sup>" if entry.mark else ""
    return figure + mark + (f"<br>{_md(entry.beside)}" if entry.beside else "")


def _pipes(rows: Sequence[Sequence[str]]) -> str:
    """A pipe table: the first row is the head, the first column stands left, the rest right."""
    head, *body = rows
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


# --- LaTeX --------------------------------------------------------------------------------------


def to_latex(plan: TablePlan) -> str:
    r"""A floating table in booktabs' style, the best of each line in bold. Needs the packages
    booktabs and graphicx."""
    sheet = make_sheet(plan)
    spec = plan.spec
    lines = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table*}",
        r"  \centering",
        rf"  \caption{{{_tex(spec.caption)} {_tex_facts(sheet)}}}",
        rf"  \label{{tab:{markup.latex_label(spec.stem)}}}",
        r"  \resizebox{\linewidth}{!}{%",
        rf"  \begin{{tabular}}{{l{'r' * len(spec.columns)}}}",
        r"    \toprule",
        *_tex_head(sheet),
        r"    \midrule",
    ]
    for row in spec.rows:
        if row in spec.rules and row != spec.rows[0]:
            lines.append(r"    \midrule")
        entries = [sheet.entries[row, column] for column in spec.columns]
        lines.append(_tex_row(_tex(row), map(_tex_figure, entries)))
        if any(entry.beside for entry in entries):
            beside = (rf"{{\scriptsize {_tex(e.beside)}}}" if e.beside else "" for e in entries)
            lines.append(_tex_row("", beside))
    lines += [*_tex_agreement(sheet), r"    \bottomrule", r"  \end{tabular}}"]
    for mark, text in sheet.footnotes.items():
        lines.append(rf"  \par\footnotesize\textsuperscript{{{mark}}} {_tex(text)}")
    return "\n".join([*lines, r"\end{table*}"]) + "\n"


def _tex_head(sheet: Sheet) -> list[str]:
    """The columns' names, under their groups where they have any."""
    spec = sheet.plan.spec
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


def _tex_figure(entry: Entry) -> str:
    figure = _tex(entry.figure)
    if entry.mean is None:
        figure = rf"\textit{{{figure}}}"
    mark = rf"\textsuperscript{{{entry.mark}}}" if entry.mark else ""
    return (rf"\textbf{{{figure}}}" if entry.is_best else figure) + mark


def _tex_agreement(sheet: Sheet) -> list[str]:
    """Both rank correlations under each column, where it is the rows that compete."""
    is_ranked = any(one.kendall is not None for one in sheet.agreement)
    if sheet.plan.spec.compared != "rows" or not is_ranked:
        return []
    by_column = {one.line: one for one in sheet.agreement}
    columns = [by_column.get(column) for column in sheet.plan.spec.columns]
    rows = {
        r"Kendall's $\tau$": [one and one.kendall for one in columns],
        r"Spearman's $\rho$": [one and one.spearman for one in columns],
    }
    shown = (
        _tex_row(title, ("--" if v is None else _tex(f"{v:.2f}".replace("-", "−")) for v in values))
        for title, values in rows.items()
    )
    return [r"    \midrule", *shown]


def _tex_facts(sheet: Sheet) -> str:
    facts = (
        rf"{name}: \texttt{{{_tex(text)}}}." if name == "Command" else f"{name}: {_tex(text)}."
        for name, text in sheet.facts.items()
    )
    return " ".join(facts)


def _tex_row(first: str, cells: Iterator[str] | map[str]) -> str:
    return f"    {' & '.join([first, *cells])} \\\\"


# --- CSV ----------------------------------------------------------------------------------------


def to_csv(plan: TablePlan) -> str:
    """One line per cell, figures unrounded."""
    import pandas as pd

    sheet = make_sheet(plan)
    lines = [_csv_line(sheet, place, entry) for place, entry in sheet.entries.items()]
    return markup.csv(pd.DataFrame(lines))


def _csv_line(sheet: Sheet, place: tuple[str, str], entry: Entry) -> dict[str, Any]:
    plan = sheet.plan
    cell = plan.cells[place]
    config = cell.configs[0] if cell.configs else None
    paper = entry.published
    shown = paper if paper is not None and not entry.standin else None
    return {
        "table": plan.spec.name,
        "row": place[0],
        "column": place[1],
        "measure": cell.cell.measure,
        "status": entry.status,
        "mean": entry.mean,
        "std": entry.std if entry.mean is not None else None,
        "seeds": entry.seeds,
        "still_rising": entry.rising,
        "published_status": paper.status if paper else None,
        "published_mean": shown.mean if shown else None,
        "published_std": shown.std if shown else None,
        "difference": entry.difference,
        "rank": entry.ranks.ours if entry.ranks else None,
        "published_rank": entry.ranks.paper if entry.ranks else None,
        "reason": cell.reason,
        "profile": plan.profile.name,
        "dataset": config.dataset if config else None,
        "source": config.source if config else None,
        "rounds": config.rounds if config else None,
    }


# --- files --------------------------------------------------------------------------------------


def write_all(plan: TablePlan, folder: Path) -> list[Path]:
    """The table in every format, as NAME.md, .tex, .csv, .png and .svg in `folder`; where it shows
    an attack, also what that recovered, as NAME_images.png and .svg."""
    from pfl_bench.privacy import pictures
    from pfl_bench.reporting.tables.plot import save

    texts = {".md": to_markdown(plan), ".tex": to_latex(plan), ".csv": to_csv(plan)}
    paths = {suffix: folder / f"{plan.spec.stem}{suffix}" for suffix in (*texts, ".png", ".svg")}
    try:
        for suffix, text in texts.items():
            write_atomically(paths[suffix], text)
        save(plan, paths[".png"], paths[".svg"])
        images = pictures.save(plan, folder / f"{plan.spec.name}_images")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}") from error
    return [*paths.values(), *images]
