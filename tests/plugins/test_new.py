"""`pfl-bench new`: what it writes works at once, and nothing is overwritten."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pfl_bench.base.errors import UserError
from pfl_bench.cli import main
from pfl_bench.cli.new import new
from pfl_bench.plugins import registry
from pfl_bench.plugins.registry import load_plugin


def call(*arguments: str) -> Result:
    return CliRunner().invoke(new, arguments)


def refusal(*arguments: str) -> str:
    error = call(*arguments).exception
    assert isinstance(error, UserError)
    return str(error)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_files", {})
    return tmp_path


@pytest.fixture
def written(here: Path) -> list[str]:
    """The lines printed on writing my_algo into a folder with a space in its name."""
    outcome = call("my_algo", "--out", "my folder")
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout.splitlines()


def test_the_plugin_and_its_test_are_all_that_is_written(here: Path, written: list[str]) -> None:
    files = {str(path.relative_to(here)) for path in here.rglob("*.*")}
    assert files == {"my folder/my_algo.py", "my folder/test_my_algo.py"}


def test_the_printed_command_runs_the_plugin(here: Path, written: list[str]) -> None:
    command = next(line for line in written if "pfl-bench" in line)
    small = "--dataset mnist --fraction 0.05 --clients 3 --rounds 1"
    arguments = shlex.split(command.strip())[1:] + small.split()
    outcome = CliRunner().invoke(main, arguments)
    assert outcome.exit_code == 0, outcome.output
    assert re.search(r"my_algo on MNIST.*best accuracy +\d", outcome.stdout, re.DOTALL)


def test_the_generated_tests_pass(here: Path, written: list[str]) -> None:
    command = next(line for line in written if "pytest" in line)
    tests = shlex.split(command.strip())[1:]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 15  # type: ignore[index]


@pytest.mark.parametrize("name", ["hyper", "client", "algorithm", "a1"])
def test_a_name_that_the_template_uses_itself_works_too(here: Path, name: str) -> None:
    assert call(name).exit_code == 0
    assert load_plugin(here / f"{name}.py") == name


@pytest.mark.parametrize("existing", ["my_algo.py", "test_my_algo.py"])
def test_an_existing_file_is_refused_and_left_as_it_was(here: Path, existing: str) -> None:
    (here / existing).write_text("mine")
    assert existing in refusal("my_algo")
    assert [path.name for path in here.iterdir()] == [existing]
    assert (here / existing).read_text() == "mine"


@pytest.mark.parametrize("name", ["my-algo", "9lives", "MyAlgo", "../up", "class", "a b", ""])
def test_a_name_that_no_module_can_bear_is_refused(here: Path, name: str) -> None:
    assert f"cannot be called {name!r}; allowed" in refusal(name)
    assert not list(here.iterdir())


def test_the_name_of_an_algorithm_is_refused(here: Path) -> None:
    assert refusal("fedcp").startswith("the name 'fedcp' is taken")


@pytest.mark.parametrize("name", ["torch", "random"])
def test_a_name_that_would_hide_a_python_module_is_refused(here: Path, name: str) -> None:
    assert f"{name}.py would hide" in refusal(name)


def test_a_folder_that_cannot_be_made_is_named(here: Path) -> None:
    (here / "file").touch()
    assert refusal("my_algo", "--out", "file").startswith("cannot write to 'file'")
