"""`tables/` holds specs only, and what docs/results holds is what the stored runs give."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pfl_bench.cli import main
from pfl_bench.reporting.tables import plot, recovered

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "results"
COMMAND = re.compile(r"^- Command: `+ ?pfl-bench (table .*?) ?`+$", re.MULTILINE)
TEXTS = (".md", ".tex", ".csv")


def published() -> Iterator[tuple[str, Path]]:
    """Every rendered table, with the profile whose results it was made from."""
    for page in sorted(PAGES.glob("*/*.md")):
        if COMMAND.search(page.read_text(encoding="utf-8")):
            yield page.parent.name, page


def store(folder: str) -> Path:
    """The reference results that a folder was made from: those called like it, or like its profile
    (`quick` of `quick-tuned`)."""
    names = (folder, folder.partition("-")[0])
    archives = (ROOT / "results" / f"{name}.zip" for name in names)
    return next(archive for archive in archives if archive.exists())


def test_tables_are_specs_and_nothing_else() -> None:
    names = {path.name for path in (ROOT / "tables").iterdir() if path.name != "__pycache__"}
    assert {name for name in names if not name.endswith(".yaml")} == {"__init__.py"}


def test_every_published_table_is_what_the_stored_runs_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot, "save", lambda *_: None)
    monkeypatch.setattr(recovered, "save", lambda *_: [])
    monkeypatch.chdir(ROOT)
    for profile, page in published():
        (command,) = COMMAND.findall(page.read_text(encoding="utf-8"))
        out = tmp_path / profile / page.stem
        words = [*shlex.split(command), "--render-only", "--results", str(store(profile))]
        if "--data-dir" in words:  # stored runs need no data
            words[words.index("--data-dir") + 1] = str(tmp_path)
        result = CliRunner().invoke(main, [*words, "--out", str(out)])
        assert result.exit_code == 0, result.output
        for suffix in TEXTS:
            made = (out / page.name).with_suffix(suffix).read_text(encoding="utf-8")
            assert made == page.with_suffix(suffix).read_text(encoding="utf-8"), page


def test_the_page_of_privacy_has_the_figures_of_its_tables() -> None:
    """As means over seeds, with their spread for PSNR; a row may be of two methods that agree."""
    text = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    table = text[text.index("| | PSNR, DLG |") :].split("\n\n")[0].splitlines()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    told = {name: values for names, *values in lines for name in names.split(", ")}
    for random in ("random images", "the mean image"):
        del told[random]
    psnr, ssim = (_cells(PAGES / "quick-short" / f"privacy-{s}.csv") for s in ("psnr", "ssim"))
    made = {}
    for method in psnr["PSNR"]:
        dlg, inverting = psnr["PSNR"][method], psnr["Inverting"][method]
        seeds = {"4": " (four seeds)", "5": ""}[dlg["seeds"]]
        made[f"{method}{seeds}"] = [
            *(f"{float(c['mean']):.2f} ± {float(c['std']):.2f}" for c in (dlg, inverting)),
            *(f"{float(ssim[attack][method]['mean']):.2f}" for attack in ("PSNR", "Inverting")),
        ]
    assert told == made


def _cells(path: Path) -> dict[str, dict[str, dict[str, str]]]:
    cells: dict[str, dict[str, dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            cells.setdefault(line["row"], {})[line["column"]] = line
    return cells
