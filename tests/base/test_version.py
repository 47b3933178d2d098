"""The hint for an extra is a command that works from where the package is."""

from __future__ import annotations

import json
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


def test_a_package_that_was_installed_from_a_clone_is_had_from_it(tmp_path: Path) -> None:
    clone, site = tmp_path / "my clone", tmp_path / "site-packages"
    (site / "pfl_bench-0.2.0.dist-info").mkdir(parents=True)
    (site / "pfl_bench-0.2.0.dist-info" / "METADATA").write_text("Name: pfl-bench\n")
    note = site / "pfl_bench-0.2.0.dist-info" / "direct_url.json"
    note.write_text(json.dumps({"url": clone.as_uri(), "dir_info": {}}))
    assert shlex.split(install_command("ray", site))[-1] == "pfl-bench[ray]"  # it is gone
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    assert shlex.split(install_command("ray", site))[-1] == f"{clone}[ray]"
    note.write_text('["nonsense"]')
    assert shlex.split(install_command("ray", site))[-1] == "pfl-bench[ray]"


def test_the_tests_run_from_a_clone_and_would_be_told_its_folder() -> None:
    root = Path(__file__).resolve().parents[2]
    assert str(root) in install_command("report")
