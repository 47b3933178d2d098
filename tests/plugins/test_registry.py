"""Plugins from outside: installed packages, files, broken ones, and two of one name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner
from toy import toy_algorithm, toy_config

from pfl_bench.base.errors import UserError
from pfl_bench.cli import main
from pfl_bench.config.hyper import NoKnobs
from pfl_bench.config.options import load_profile
from pfl_bench.engine.algorithm import Algorithm, build_network
from pfl_bench.execution.configuration import configure
from pfl_bench.plugins import registry
from pfl_bench.plugins.registry import (
    algorithm_names,
    broken_plugins,
    check_plugin,
    load_algorithm,
    load_plugin,
    plugin_fingerprint,
)

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from pfl_bench.engine.algorithm import Algorithm
from pfl_bench.config.hyper import knob

@dataclass(frozen=True)
class Hyper:
    mu: float = knob(0.1, "weight", source="test", off=0.0, low=0)

class Good(Algorithm):
    title, summary, citation = "Good", "A method from outside.", "nobody"
    Hyper = Hyper
"""
BUILT_IN = sorted(p.stem for p in Path(__file__).parents[2].glob("algorithms/[a-z]*.py"))


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_files", {})


# --- installed packages ---------------------------------------------------------------------------


def write_package(folder: Path, name: str, entry_points: str, files: dict[str, str]) -> Path:
    module = folder / name
    module.mkdir(parents=True)
    for file, content in {"__init__.py": "", **files}.items():
        (module / file).write_text(dedent(content))
    (folder / "pyproject.toml").write_text(
        "[build-system]\n"
        'requires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n\n'
        f'[project]\nname = "{name}"\nversion = "1"\n\n'
        f'[project.entry-points."pfl_bench.algorithms"]\n{entry_points}\n\n'
        f'[tool.setuptools]\npackages = ["{name}"]\n'
    )
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which two real packages were installed."""
    pytest.importorskip("setuptools", reason="building a package needs setuptools")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    ours = write_package(
        source / "ours",
        "pfl_ours",
        "good = 'pfl_ours.good'\n"
        "chosen = 'pfl_ours.several:Second'\n"
        "broken = 'pfl_ours.broken'\n"
        "twin = 'pfl_ours.good'\n"
        "alien = 'pfl_ours.several:NUMBER'",
        {
            "good.py": GOOD,
            "several.py": GOOD + "class Second(Good): title = 'Second'\nNUMBER = 3\n",
            "broken.py": "import a_library_that_nobody_has\n",
        },
    )
    theirs = write_package(
        source / "theirs",
        "pfl_theirs",
        "twin = 'pfl_theirs.twin'\nfedavg = 'pfl_theirs.twin'",
        {"twin.py": GOOD},
    )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
    done = subprocess.run([*command, str(ours), str(theirs)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def pfl_bench(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own that sees the installed packages."""
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-c", "from pfl_bench.cli import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_algorithm_of_an_installed_package_runs(site: Path, tmp_path: Path) -> None:
    run = "run --algo good --set mu=0.3 --dataset mnist --fraction 0.05 --clients 3 --rounds 1"
    done = pfl_bench(site, *run.split(), "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.search(r"best accuracy +\d", done.stdout)


def test_the_listing_names_broken_plugins_with_their_errors_beside_all_others(site: Path) -> None:
    done = pfl_bench(site, "list", "algos")
    assert done.returncode == 0, done.stderr
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in done.stdout.splitlines())
    assert set(rows) == {*BUILT_IN, "good", "chosen", "broken", "twin", "alien"}
    assert rows["good"] == "A method from outside."
    assert "ModuleNotFoundError" in rows["broken"]
    assert "a_library_that_nobody_has" in rows["broken"]
    assert "not a subclass of Algorithm" in rows["alien"]


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same packages, visible to this process."""
    monkeypatch.syspath_prepend(str(site))


def test_an_entry_point_may_name_one_class_of_several(installed: None) -> None:
    assert load_algorithm("chosen").title == "Second"


def test_asking_for_a_broken_plugin_is_refused_with_its_error(installed: None) -> None:
    outcome = CliRunner().invoke(main, ["show", "broken"])
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("Error: the plugin 'broken' (pfl_ours.broken of the package")
    assert "No module named 'a_library_that_nobody_has'" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def test_two_packages_that_bring_one_name_are_both_named(installed: None) -> None:
    with pytest.raises(UserError, match="two plugins bear the name 'twin'") as caught:
        load_algorithm("twin")
    assert "pfl_ours.good of the package" in str(caught.value)
    assert "pfl_theirs.twin of the package" in str(caught.value)


def test_a_package_cannot_silently_replace_a_built_in_algorithm(installed: None) -> None:
    with pytest.raises(UserError, match=r"'fedavg': the built-in one and pfl_theirs.twin"):
        load_algorithm("fedavg")


def test_broken_plugins_and_twins_take_no_other_down(installed: None) -> None:
    assert set(broken_plugins()) == {"broken", "alien", "twin", "fedavg"}


# --- files ----------------------------------------------------------------------------------------


def write(folder: Path, name: str, content: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(dedent(content))
    return path


def refusal(path: Path) -> str:
    """What the user reads on naming the file with --plugin: one sentence, no traceback."""
    outcome = CliRunner().invoke(main, ["run", "--plugin", str(path)])
    assert outcome.exit_code == 2
    assert isinstance(outcome.exception, SystemExit)
    (line,) = outcome.stderr.splitlines()
    return line.removeprefix("Error: ")


def test_a_file_is_known_by_its_name(tmp_path: Path) -> None:
    assert load_plugin(write(tmp_path, "outside.py", GOOD)) == "outside"
    assert load_algorithm("outside").title == "Good"
    assert "outside" in algorithm_names()


def test_naming_a_file_twice_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "outside.py", GOOD)
    load_plugin(path)
    before = load_algorithm("outside")
    load_plugin(path)
    assert load_algorithm("outside") is before


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "a", "outside.py", GOOD)
    load_plugin(first)
    message = refusal(write(tmp_path / "b", "outside.py", GOOD))
    assert str(first) in message and "'outside'" in message and "taken" in message


def test_a_file_cannot_take_the_name_of_a_built_in_algorithm(tmp_path: Path) -> None:
    assert "'fedavg' is the built-in one" in refusal(write(tmp_path, "fedavg.py", GOOD))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.py") == f"there is no plugin file {str(tmp_path / 'no.py')!r}"


def test_only_python_files_are_plugins(tmp_path: Path) -> None:
    assert "allowed: NAME.py" in refusal(write(tmp_path, "outside.txt", GOOD))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("def broken(:", "SyntaxError"),
        ("import a_library_that_nobody_has", "No module named 'a_library_that_nobody_has'"),
        ("raise ValueError('first line\\nsecond line')", "ValueError: first line second line"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("raise BaseException('for no reason')", "BaseException: for no reason"),
        ("raise GeneratorExit", "GeneratorExit"),
        (
            "class Mute(BaseException):\n    def __str__(self):\n        raise Mute\nraise Mute",
            "Mute: it cannot say why",
        ),
        ("raise ValueError('x' * 10**6)", "ValueError: xxx"),
        ("x = 1", "exactly one subclass of Algorithm and defines none"),
        (GOOD + "class Second(Good): pass", "defines Good, Second"),
        (GOOD.replace('"A method from outside."', '""'), "must say its summary"),
        (GOOD.replace("    Hyper = Hyper", "    Hyper = 3"), "must be a dataclass"),
        (GOOD.replace("mu: float =", "nu: int = 1\n    mu: float ="), "knob(); nu is not"),
        (GOOD.replace("mu: float", "mu: list"), "allowed: bool, int, float, str"),
        (GOOD.replace("mu: float", "mu: Flaot"), "'Flaot' is not defined"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, content: str, reason: str
) -> None:
    path = write(tmp_path, "outside.py", content)
    message = refusal(path)
    assert str(path) in message and reason in message


def test_a_file_that_failed_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write(tmp_path, "outside.py", "raise ValueError")
    refusal(path)
    assert "outside" not in algorithm_names()
    assert "pfl_bench_plugin_outside" not in sys.modules
    path.write_text(GOOD)
    assert load_plugin(path) == "outside"


def test_a_file_whose_name_could_not_name_a_result_is_refused(tmp_path: Path) -> None:
    assert "letters, digits and underscores" in refusal(write(tmp_path, "my algo.py", GOOD))


def test_a_helper_class_with_an_underscore_is_not_taken_for_the_algorithm(tmp_path: Path) -> None:
    content = GOOD.replace(
        "class Good(Algorithm)", "class _Base(Algorithm): pass\nclass Good(_Base)"
    )
    load_plugin(write(tmp_path, "outside.py", content))
    assert load_algorithm("outside").__name__ == "Good"


# --- names ----------------------------------------------------------------------------------------


def test_every_file_in_algorithms_is_found() -> None:
    assert set(BUILT_IN) <= set(algorithm_names())


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown algorithm 'fedprx'; did you mean 'fedprox'"):
        load_algorithm("fedprx")
    with pytest.raises(UserError, match="a file of your own needs --plugin FILE"):
        load_algorithm("fedprx")


@pytest.mark.parametrize(
    ("attribute", "value", "sentence"),
    [
        ("shared", ("extrctor",), "unknown part in Mine.shared 'extrctor'; did you mean 'extract"),
        ("personal", ("haed",), "unknown part in Mine.personal 'haed'; did you mean 'head'"),
        ("shared", "extractor", r"Mine.shared is the text 'extractor'; .* as \('extractor',\)"),
    ],
)
def test_a_part_that_a_plugin_misspells_is_named(
    attribute: str, value: object, sentence: str
) -> None:
    mine = type("Mine", (Algorithm,), {"title": "Mine", attribute: value})
    with pytest.raises(UserError, match=sentence):
        build_network(mine(NoKnobs(), toy_algorithm(toy_config()).task))


def test_an_edited_plugin_is_another_run(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    keys = set()
    for text in ("one", "another"):
        path.write_text(
            "from pfl_bench.engine.algorithm import Algorithm\n\n\n"
            f"class Edited(Algorithm):\n    title = summary = citation = {text!r}\n"
        )
        registry._files.pop("edited", None)
        load_plugin(path)
        keys.add(configure(load_profile("quick"), {"algo": "edited"}, {}, tmp_path).key)
    assert len(keys) == 2


def test_a_plugin_edited_after_it_was_read_stays_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    text = "from pfl_bench.engine.algorithm import Algorithm\n\n\nclass Edited(Algorithm):\n"
    path.write_text(text + "    title = summary = citation = 'one'\n")
    load_plugin(path)
    read = plugin_fingerprint("edited")
    path.write_text(text + "    title = summary = citation = 'another'\n")
    assert plugin_fingerprint("edited") == read
    check_plugin("edited", read)
    registry._files.pop("edited")
    load_plugin(path)
    with pytest.raises(UserError, match=f"the plugin 'edited' is not the one .* {read} was"):
        check_plugin("edited", read)
    check_plugin("fedavg", None)


def test_the_code_of_a_built_in_algorithm_is_not_part_of_a_configuration(tmp_path: Path) -> None:
    assert configure(load_profile("quick"), {"algo": "fedavg"}, {}, tmp_path).plugin is None
