"""The notebooks of docs/notebooks, executed: their cells as a script, with small parameters in the
place of the cell that is tagged for them (the convention of papermill)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PROFILE = "run: {source: standin, rounds: 2, fraction: 0.1, model: cnn_small, image_size: 14}\n"
PARAMETERS = """
ALGOS = ["fedavg", "fedper", "fedcp"]
SETTINGS = {"dataset": "mnist", "setting": "practical", "beta": 0.1}
SEEDS = 2
PROFILE = "tiny.yaml"
RESULTS = "results"
"""


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def script(notebook: Path) -> str:
    """All cells; the value of each one's last line is printed, as a notebook shows it."""
    sources = [
        PARAMETERS if "parameters" in cell["metadata"].get("tags", ()) else "".join(cell["source"])
        for cell in cells(notebook)
    ]
    assert PARAMETERS in sources
    return "\n\n".join(map(_shown, sources))


def _shown(source: str) -> str:
    import ast

    *_, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        return source
    lines = source.splitlines()
    value = "\n".join(lines[last.lineno - 1 :])
    return "\n".join([*lines[: last.lineno - 1], f"print(repr((\n{value}\n)))"])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(PROFILE)
    (tmp_path / "notebook.py").write_text(script(notebook), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "notebook.py"],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    if notebook.stem == "write_a_method":
        assert "rules hold" in done.stdout and "LG-FedAvg, held" in done.stdout
    else:
        assert "FedCP" in done.stdout and "best.accuracy" in done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(notebook: Path) -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(notebook))


def test_both_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["compare_methods", "write_a_method"]
