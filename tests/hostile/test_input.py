"""Bad input: the command line, run configurations, profiles and table specs, fuzzed.

Each input must be accepted, or refused with exit code 2 and a message that names what is wrong.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from cases import Reached, fuzz, invoke, is_refused, junk, names_any, numbers, texts
from conftest import TABLE
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.base.errors import UserError
from pfl_bench.base.yamlfile import read_yaml
from pfl_bench.cli import main
from pfl_bench.config.options import OPTIONS

CASES = {"flags": 500, "commands": 500, "configurations": 450, "profiles": 300, "tables": 450,
         "yaml": 300}  # fmt: skip

pytestmark = pytest.mark.usefixtures("untrained")

RUN = {"algo": "fedprox", "dataset": "toy", "source": "real", "rounds": 2, "clients": 2,
       "batch_size": 8, "beta": 0.5, "set": {"mu": 0.1}}  # fmt: skip
PROFILE = {"about": "small", "seeds": 2, "run": {"rounds": 2, "source": "real"},
           "datasets": {"toy": {"clients": 2}}, "models": {"cnn": {"lr": 0.1}},
           "tables": {"table": {"rounds": 1}}}  # fmt: skip


def test_there_are_two_thousand_cases() -> None:
    assert sum(CASES.values()) >= 2_000


class Count:
    """How many inputs a test has tried."""

    def __init__(self) -> None:
        self.tried = self.refused = 0

    def add(self, refused: bool) -> None:
        self.tried += 1
        self.refused += refused


@contextlib.contextmanager
def counted(kind: str) -> Iterator[Count]:
    """As many inputs as announced, and a good part of them bad."""
    count = Count()
    yield count
    assert count.tried >= CASES[kind]
    assert count.refused >= count.tried / 5


def tells_structure(message: str) -> bool:
    """Whether what is wrong has no value to name: it is absent, or things do not fit together."""
    told = ("path is empty", "Missing", "must hold a mapping", "valid YAML", "are too few")
    return any(words in message for words in told)


# --- the command line -----------------------------------------------------------------------------


def test_a_bad_value_of_a_flag_is_named(inside: Path) -> None:
    flags = ["--" + name.replace("_", "-") for name in OPTIONS]
    flags += ["--profile", "--seeds", "--set", "--config", "--plugin", "--data-dir", "--workers",
              "--device", "--checkpoint-every"]  # fmt: skip

    with counted("flags") as count:

        @fuzz(CASES["flags"])
        @given(st.sampled_from(flags), texts | numbers.map(str))
        def attack(flag: str, value: str) -> None:
            base = (
                [] if flag in ("--dataset", "--partition", "--data-dir") else ["--dataset", "toy"]
            )
            base += [] if flag == "--algo" else ["--algo", "fedavg"]
            result = invoke("run", *base, flag, value)
            if is_refused(result):
                option = flag.removeprefix("--").replace("-", "_")
                told = names_any(result.output, [value, flag, option])
                assert told or tells_structure(result.output), result.output
            count.add(is_refused(result))

        attack()


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = list(leaves(main))


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command with some of its options and arguments, most of the values junk."""
    words, command = draw(st.sampled_from(COMMANDS))
    values = texts | numbers.map(str) | st.sampled_from(["toy", "fedavg", "table.yaml", "1"])
    line = list(words)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            line += draw(st.lists(values, max_size=1 if parameter.nargs == 1 else 3))
    options = [each for each in command.params if isinstance(each, click.Option)]
    chosen = draw(st.lists(st.sampled_from(options), max_size=4)) if options else []
    for option in chosen:
        line += [option.opts[0]] if option.is_flag else [option.opts[0], draw(values)]
    return line + draw(st.lists(values, max_size=1))


def test_no_command_line_ends_in_a_traceback(inside: Path) -> None:
    """All commands there are, with whatever options they have."""
    with counted("commands") as count:

        @fuzz(CASES["commands"])
        @given(command_lines())
        def attack(line: list[str]) -> None:
            result = invoke(*line)
            if is_refused(result):
                told = names_any(result.output, line) or tells_structure(result.output)
                assert told, result.output
            count.add(is_refused(result))

        attack()


# --- files that people write ----------------------------------------------------------------------


def spots(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested mappings and lists."""
    items: Any = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = enumerate(content)
    for key, value in items:
        yield (*path, key)
        yield from spots(value, (*path, key))


def with_value(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(content)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


@st.composite
def spoilt(draw: st.DrawFn, sound: dict[str, Any]) -> tuple[dict[str, Any], list[object]]:
    """A sound file with one thing wrong, and what a message may name: the place, the value, or
    what no longer goes with the rest, the hyper-parameter and the default dataset."""
    places = sorted(spots(sound), key=str)
    mappings = [(), *(path for path in places if isinstance(_at(sound, path), dict))]
    unknown_keys = st.tuples(st.sampled_from(mappings), texts | numbers)
    path = draw(st.sampled_from(places) | unknown_keys.map(lambda pair: (*pair[0], pair[1])))
    value = draw(junk)
    return with_value(sound, path, value), [*path, value, *_inner(value), "mu", "Cifar10"]


def _at(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


def _inner(value: Any) -> list[object]:
    """Everything within a nested value: any of it may be what is wrong."""
    if isinstance(value, dict):
        return [each for pair in value.items() for part in pair for each in (part, *_inner(part))]
    if isinstance(value, list):
        return [each for part in value for each in (part, *_inner(part))]
    return []


def written(path: Path, content: Any) -> Path:
    path.write_text(yaml.safe_dump(content, allow_unicode=False), encoding="utf-8")
    return path


def check_file(count: Count, file: Path, suspects: list[object], *arguments: str) -> None:
    result = invoke(*arguments)
    if is_refused(result):
        assert names_any(result.output, suspects) or tells_structure(result.output), result.output
    count.add(is_refused(result))


def test_a_bad_run_configuration_is_refused_by_its_value(inside: Path) -> None:
    file = inside / "run.yaml"
    with counted("configurations") as count:

        @fuzz(CASES["configurations"])
        @given(spoilt(RUN))
        def attack(case: tuple[dict[str, Any], list[object]]) -> None:
            content, suspects = case
            check_file(count, written(file, content), suspects, "run", "--config", str(file))

        attack()


def test_a_bad_profile_is_refused_by_its_value(inside: Path) -> None:
    file = inside / "profile.yaml"
    with counted("profiles") as count:

        @fuzz(CASES["profiles"])
        @given(spoilt(PROFILE))
        def attack(case: tuple[dict[str, Any], list[object]]) -> None:
            content, suspects = case
            arguments = ("run", "--algo", "fedavg", "--dataset", "toy", "--profile", str(file))
            check_file(count, written(file, content), suspects, *arguments)

        attack()


def test_a_bad_table_is_refused_by_its_value(inside: Path) -> None:
    file = inside / "own.yaml"
    sound = yaml.safe_load(TABLE)
    with counted("tables") as count:

        @fuzz(CASES["tables"])
        @given(spoilt(sound), st.sampled_from(["--dry-run", "--render-only"]))
        def attack(case: tuple[dict[str, Any], list[object]], how: str) -> None:
            content, suspects = case
            arguments = ("table", str(file), "--seeds", "1", how)
            check_file(count, written(file, content), suspects, *arguments)

        attack()


fragments = st.sampled_from(
    ["a", "rounds", ": ", ":", "\n", "\n  ", "- ", "[", "]", "{", "}", ", ", "? ", "| ", "> ", "&a",
     "*a", "<<: ", "!!int ", "!!bool ", "!!timestamp ", "!!set ", "!!binary ", "! ", "'", '"', "#",
     "---\n", "...\n", "%YAML 1.1\n", "0x", "0b1", "1:30", ".inf", ".nan", "2024-02-30", "~", "\t",
     "1" * 120, "\\", "\u2028", "\ufeff", "=", "@"]
)  # fmt: skip


def test_no_text_taken_for_yaml_ends_in_a_traceback(inside: Path) -> None:
    file = inside / "any.yaml"
    with counted("yaml") as count:

        @fuzz(CASES["yaml"])
        @given(st.lists(fragments, max_size=12).map("".join))
        def attack(text: str) -> None:
            file.write_text(text, encoding="utf-8")
            try:
                read_yaml(file)
            except UserError as error:
                assert "any.yaml" in str(error) and "\n" not in str(error)
                count.add(refused=True)
            else:
                count.add(refused=False)

        attack()


# --- what the fuzzing found, so that it stays found -----------------------------------------------


def test_an_accepted_input_reaches_the_training(inside: Path) -> None:
    """The guard against training is also the proof that good input is not refused."""
    file = written(inside / "run.yaml", RUN)
    assert isinstance(invoke("run", "--config", file).exception, Reached)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (
            ["run", "--algo", "fedavg", "--results", "~nobody-of-this-name/x", "--dataset", "toy"],
            "an unknown home",
        ),
        (["table", "~nobody-of-this-name/t.yaml"], "an unknown home"),
        (["run", "--config", ""], "a path is empty"),
        (["run", "--plugin", "p" * 300 + ".py"], "is too long"),
        (["results", "show", "k" * 5_000], "is too long"),
        (["new", "n" * 300], "at most 80"),
        (["data", "prepare", "n" * 300, "--from", "."], "100 at most"),
        (["run", "--algo", "fedavg", "--data-dir", "\udcff"], "is not valid Unicode"),
        (["run", "--algo", "fedavg", "--lr", "1e300", "--dataset", "toy"], "lr cannot be '1e300'"),
        (
            ["run", "--algo", "fedavg", "--batch-size", "1" + "0" * 30, "--dataset", "toy"],
            "batch_size cannot be",
        ),
        (["run", "--algo", "fedprox", "--set", "mu=1e39", "--dataset", "toy"], "mu='1e39'"),
        (["run", "--workers", "100000000"], "100000000"),
    ],
)
def test_what_once_was_a_traceback_is_a_sentence(inside: Path, line: list[str], named: str) -> None:
    result = invoke(*line)
    assert is_refused(result)
    assert named in result.output


def test_names_in_markup_are_shown_as_they_are(inside: Path) -> None:
    spec = yaml.safe_load(TABLE)
    spec["rows"][0]["name"] = "[/red]"
    result = invoke("table", written(inside / "own.yaml", spec), "--dry-run")
    assert "[/red]" in result.output and not is_refused(result)


def test_a_message_stays_short_however_long_the_value(inside: Path) -> None:
    for line in (["run", "--algo", "x" * 100_000], ["show", "x" * 100_000], ["list", "y" * 9_999]):
        result = invoke(*line)
        assert is_refused(result) and len(result.output) < 2_000
