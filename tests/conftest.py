"""What every test needs: the helpers beside this file, and a cache of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def same_global_seed() -> None:
    """The product never draws from torch's global state; modules that a test builds itself do."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stand-ins are rendered once per session, away from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PFL_BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("PFL_BENCH_DATA", raising=False)
        patch.delenv("PFL_BENCH_RESULTS", raising=False)
        yield
