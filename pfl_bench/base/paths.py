"""Where things lie on disk when the user does not say, and what a path that they say must be."""

from __future__ import annotations

import os
from pathlib import Path

from pfl_bench.base.errors import UserError, shown

LONGEST_NAME = 255
LONGEST_PATH = 4096
"""In bytes, as most systems have it."""


def user_path(text: str | Path) -> Path:
    """A path that somebody typed, `~` expanded; refused where no file could bear it."""
    if not str(text):
        raise UserError("a path is empty; name a file or a folder")
    path = Path(text)
    if "\0" in str(path):
        raise UserError(f"the path {shown(str(path))} holds a NUL character")
    try:
        path = path.expanduser()
        names = [len(part.encode()) for part in path.parts]
    except RuntimeError:
        raise UserError(f"the path {shown(str(path))} begins with an unknown home") from None
    except UnicodeEncodeError:
        raise UserError(f"the path {shown(str(path))} is not valid Unicode; rename it") from None
    if max(names, default=0) > LONGEST_NAME or sum(names) + len(names) > LONGEST_PATH:
        raise UserError(
            f"the path {shown(str(path))} is too long; allowed: {LONGEST_PATH} bytes, and "
            f"{LONGEST_NAME} for each name in it"
        )
    return path


def cache_dir() -> Path:
    """Everything that can be made again: rendered stand-ins, tokenised text, fingerprints."""
    if chosen := os.environ.get("PFL_BENCH_CACHE"):
        return user_path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return user_path(base) / "pfl-bench"


def data_dir(chosen: str | Path | None = None) -> Path:
    """The folder of prepared datasets: --data-dir, else PFL_BENCH_DATA, else beside the cache."""
    if chosen is None:
        chosen = os.environ.get("PFL_BENCH_DATA") or None
    return cache_dir() / "data" if chosen is None else user_path(chosen)


def results_dir(chosen: str | Path | None = None) -> Path:
    """The result store: --results, else PFL_BENCH_RESULTS, else ./results."""
    if chosen is None:
        chosen = os.environ.get("PFL_BENCH_RESULTS") or None
    return Path("results") if chosen is None else user_path(chosen)
