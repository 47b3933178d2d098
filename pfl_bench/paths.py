"""Where things lie on disk when the user does not say: prepared data, cache, results."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Everything that can be made again: rendered stand-ins, tokenised text, fingerprints."""
    if chosen := os.environ.get("PFL_BENCH_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "pfl-bench"


def data_dir(chosen: str | Path | None = None) -> Path:
    """The folder of prepared datasets: --data-dir, else PFL_BENCH_DATA, else beside the cache."""
    chosen = chosen or os.environ.get("PFL_BENCH_DATA")
    return Path(chosen).expanduser() if chosen else cache_dir() / "data"


def results_dir(chosen: str | Path | None = None) -> Path:
    """The result store: --results, else PFL_BENCH_RESULTS, else ./results."""
    chosen = chosen or os.environ.get("PFL_BENCH_RESULTS")
    return Path(chosen).expanduser() if chosen else Path("results")
