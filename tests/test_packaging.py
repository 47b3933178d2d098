"""The wheel: it holds all that the package needs and works away from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"algorithms": "*.py", "datasets": "*.py", "tables": "*.yaml"}


def _why_no_wheel() -> str | None:
    try:
        version = metadata.version("setuptools")
        metadata.version("pip")
    except metadata.PackageNotFoundError as error:
        return f"{error.name} is not installed"
    return None if int(version.split(".")[0]) >= 77 else f"setuptools {version} is older than 77"


pytestmark = pytest.mark.skipif(_why_no_wheel() is not None, reason=f"{_why_no_wheel()}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because building leaves its traces beside the sources."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pfl_bench", *FOLDERS):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = (
        sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(source),
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("folder", FOLDERS)
def test_wheel_holds_the_mapped_folders_inside_the_package(contents: set[str], folder: str) -> None:
    expected = {f"pfl_bench/{folder}/{path.name}" for path in (ROOT / folder).glob(FOLDERS[folder])}
    assert expected <= contents


def test_wheel_holds_every_file_of_the_package(contents: set[str]) -> None:
    files = {path for path in (ROOT / "pfl_bench").rglob("*") if path.is_file()}
    wanted = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert wanted - contents == set()


def test_wheel_claims_no_name_but_its_own(contents: set[str]) -> None:
    """A top-level `datasets` would shadow a famous library."""
    tops = {name.split("/")[0] for name in contents}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pfl_bench"}


def test_wheel_says_that_it_is_typed(contents: set[str]) -> None:
    assert "pfl_bench/py.typed" in contents


def run_unpacked(unpacked: Path, cwd: Path, *arguments: str) -> str:
    """The command out of the unpacked wheel, run in `cwd`; prints first where it comes from."""
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(unpacked)!r})\n"
        # An editable install of this checkout would answer for the mapped folders.
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "import pfl_bench, pfl_bench.algorithms, pfl_bench.datasets\n"
        "print(pfl_bench.__file__, *pfl_bench.algorithms.__path__, *pfl_bench.datasets.__path__)\n"
        "from pfl_bench.cli import main\n"
        "main()\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        (sys.executable, "-c", program, *arguments),
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    origins, _, output = done.stdout.partition("\n")
    assert all(origin.startswith(str(unpacked)) for origin in origins.split())
    return output


def test_wheel_finds_its_algorithms_in_any_directory(unpacked: Path, tmp_path: Path) -> None:
    output = run_unpacked(unpacked, tmp_path, "list", "algos")
    names = {path.stem for path in (ROOT / "algorithms").glob("*.py")} - {"__init__"}
    assert {line.split()[0] for line in output.splitlines()} == names


def test_wheel_finds_its_profiles_in_any_directory(unpacked: Path, tmp_path: Path) -> None:
    output = run_unpacked(unpacked, tmp_path, "list", "profiles")
    assert {line.split()[0] for line in output.splitlines()} == {"quick", "lite", "paper"}
