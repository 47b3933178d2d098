"""The rules that every algorithm must hold, checked from Python: conformance tests as a frame."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.api.runs import own_threads
from pfl_bench.base import UserError
from pfl_bench.plugins import algorithm_named, load_algorithm, register

if TYPE_CHECKING:
    import pandas as pd

    from pfl_bench.engine import Algorithm

_TESTS = """
from pfl_bench.plugins import AlgorithmConformance

class TestIt(AlgorithmConformance):
    name = {name!r}
"""


def check(algo: str | type[Algorithm]) -> pd.DataFrame:
    """A row for each rule: whether the algorithm holds it, and if not, what was seen. That a method
    does what its paper says is for tests of your own."""
    import pandas as pd

    try:
        import pytest
    except ImportError:
        raise UserError(
            "check needs the package pytest; install it with: pip install pytest"
        ) from None
    if not isinstance(algo, str):
        algo = register(algo)
    load_algorithm(algo)
    reports = _Reports()
    with tempfile.TemporaryDirectory() as folder, own_threads():
        file = Path(folder, "test_conformance_of_one.py")
        file.write_text(_TESTS.format(name=algorithm_named(algo)), encoding="utf-8")
        (Path(folder) / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        # Nothing of the session's own settings, and nothing printed: the frame tells it.
        switches = ["-p", "no:cacheprovider", "-p", "no:terminal", "--rootdir", folder]
        pytest.main([str(file), *switches, "-c", str(Path(folder, "pytest.ini"))], [reports])
    sys.modules.pop(file.stem, None)  # or the next algorithm would be taken for this one
    if not reports.rows:
        raise UserError(f"the rules could not be checked for {algo!r}: pytest ran no test")
    return pd.DataFrame(reports.rows, columns=["rule", "holds", "seen"])


class _Reports:
    """What pytest tells of each test."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.failed:
            rule = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
            crash = getattr(report.longrepr, "reprcrash", None)
            seen = "" if report.passed else str(crash.message if crash else report.longrepr)
            self.rows.append({"rule": rule, "holds": report.passed, "seen": seen})
