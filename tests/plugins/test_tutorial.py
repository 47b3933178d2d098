"""The tutorial, executed: its files are written, its commands run, in the order of the page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pfl_bench.cli import main
from pfl_bench.plugins import registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCKS = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command of the page printed, in a folder that was empty at first."""
    outputs = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tutorial"))
        patch.setattr(registry, "_files", {})
        for language, file, content in BLOCKS:
            if language == "python":
                Path(file).write_text(content, encoding="utf-8")
            elif language == "sh":
                outputs.update({command: execute(command) for command in content.splitlines()})
    return outputs


def execute(command: str) -> str:
    """`pfl-bench` in this process, which has torch already; pytest in one of its own."""
    program, *arguments = shlex.split(command)
    if program == "pfl-bench":
        outcome = CliRunner().invoke(main, arguments)
        assert outcome.exit_code == 0, f"{command}\n{outcome.output}"
        return outcome.stdout
    assert program == "pytest"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def output(printed: dict[str, str], start: str) -> str:
    (text,) = (text for command, text in printed.items() if command.startswith(start))
    return text


def best_accuracy(text: str) -> float:
    found = re.search(r"best accuracy +([\d.]+)%", text)
    assert found is not None, text
    return float(found[1])


def test_the_plugin_is_validated_and_welcomes_new_clients(printed: dict[str, str]) -> None:
    text = output(printed, "pfl-bench run --validation")
    assert re.search(r"validation +[\d.]+ % in the best round", text)
    assert re.search(r"new clients +[\d.]+ % in the best round", text)


def test_the_algorithm_takes_fewer_than_fifty_lines() -> None:
    (content,) = (content for _, file, content in BLOCKS if file == "knnper.py")
    assert len(content.splitlines()) < 50


def test_what_is_shown_of_scaffold_is_its_file() -> None:
    def lines(text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if line.strip()]

    file = lines((PAGE.parents[1] / "algorithms" / "scaffold.py").read_text("utf-8"))
    shown = [lines(content) for language, _, content in BLOCKS if language == "py"]
    assert len(shown) == 4
    for block in shown:
        start = file.index(block[0])
        assert file[start : start + len(block)] == block


def test_the_plugin_describes_itself_and_its_hyper_parameter(printed: dict[str, str]) -> None:
    text = output(printed, "pfl-bench show knnper")
    assert text.startswith("kNN-Per\n") and "lambda = 0.5" in text


def test_the_plugin_is_far_above_fedavg(printed: dict[str, str]) -> None:
    ours, fedavg = (
        best_accuracy(output(printed, f"pfl-bench run --algo {algo}"))
        for algo in ("knnper", "fedavg")
    )
    assert ours > fedavg + 10


def test_the_plugins_tests_pass_and_hold_the_conformance(printed: dict[str, str]) -> None:
    found = re.search(r"(\d+) passed", output(printed, "pytest"))
    assert found is not None and int(found[1]) >= 15


def test_the_files_that_new_writes_run(printed: dict[str, str]) -> None:
    assert "my_algo.py" in output(printed, "pfl-bench new")
    assert best_accuracy(output(printed, "pfl-bench run --algo my_algo")) > 0


def test_every_command_of_the_page_is_executed(printed: dict[str, str]) -> None:
    commands = re.findall(r"^(?:pfl-bench|pytest) .*$", PAGE.read_text("utf-8"), re.M)
    assert sorted(commands) == sorted(printed)
