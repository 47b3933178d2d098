"""What every test needs: the helpers beside this file, and a cache of its own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pfl_bench.base.processes import ENDINGS
from pfl_bench.plugins import registry
from pfl_bench.store.store import Store

sys.path.insert(0, str(Path(__file__).parent))

# A shell's background job ignores Ctrl-C, one under nohup the end of its terminal, and so would
# every command that a test starts and stops.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


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


@pytest.fixture(autouse=True)
def same_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm of a test's own is not among those of the tests after it."""
    monkeypatch.setattr(registry, "_files", dict(registry._files))


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """A command that was told to stop heeds no signal any more; the tests after it do."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDINGS)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the toy problem."""
    from prepared import prepare_toy

    return prepare_toy(tmp_path_factory.mktemp("data"), samples=64)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "results")
