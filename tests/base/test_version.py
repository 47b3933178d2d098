"""The hint for an extra is a command that works from where the package is."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from pfl_bench.base.version import install_command


def test_a_clone_installs_itself(tmp_path: Path) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    words = shlex.split(install_command("report", clone))
    assert words == [sys.executable, "-m", "pip", "install", "-e", f"{clone}[report]"]


def test_an_installed_package_is_had_from_the_index(tmp_path: Path) -> None:
    assert shlex.split(install_command("ray", tmp_path))[-1] == "pfl-bench[ray]"


def test_the_tests_run_from_a_clone_and_would_be_told_its_folder() -> None:
    root = Path(__file__).resolve().parents[2]
    assert str(root) in install_command("report")
