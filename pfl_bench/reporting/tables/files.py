"""A table in files: its values as CSV, and all formats into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.base import UserError, write_atomically
from pfl_bench.reporting.tables import markup
from pfl_bench.reporting.tables.content import Content, Entry
from pfl_bench.reporting.tables.latex import to_latex
from pfl_bench.reporting.tables.markdown import to_markdown

if TYPE_CHECKING:
    import pandas as pd

    from pfl_bench.reporting.tables.plot import Look


def write_all(content: Content, folder: Path, look: Look | None = None) -> list[Path]:
    """The table in every format, as NAME.md, .tex, .csv, .png and .svg in `folder`; where it shows
    an attack, also what that recovered, as NAME_images.png and .svg."""
    from pfl_bench.reporting.tables import plot, recovered

    plan = content.plan
    texts = {".md": to_markdown(content), ".tex": to_latex(content), ".csv": to_csv(content)}
    paths = {suffix: folder / f"{plan.spec.stem}{suffix}" for suffix in (*texts, ".png", ".svg")}
    try:
        for suffix, text in texts.items():
            write_atomically(paths[suffix], text)
        plot.save(content, look or plot.Look(), paths[".png"], paths[".svg"])
        images = recovered.save(plan, folder / f"{plan.spec.name}_images")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}") from error
    return [*paths.values(), *images]


def to_csv(content: Content) -> str:
    """One line per cell, figures unrounded."""
    return markup.csv(to_frame(content))


def to_frame(content: Content) -> pd.DataFrame:
    """One row per cell, figures unrounded."""
    import pandas as pd

    return pd.DataFrame([_row(content, place, entry) for place, entry in content.entries.items()])


def _row(content: Content, place: tuple[str, str], entry: Entry) -> dict[str, Any]:
    plan = content.plan
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
        **_csv_interval(content, entry),
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


def _csv_interval(content: Content, entry: Entry) -> dict[str, float | None]:
    """Its ends, in a table that was asked for intervals."""
    if not content.plan.spec.interval:
        return {}
    low, high = entry.interval or (None, None)
    return {"interval_low": low, "interval_high": high}
