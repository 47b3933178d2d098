"""Classes of a Python session as algorithms: their names, and what their fingerprint covers."""

from __future__ import annotations

import itertools
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pfl_bench as pfl
from pfl_bench.plugins import registry
from pfl_bench.plugins.sources import class_fingerprint

CELL = """
from dataclasses import dataclass
import torch
from pfl_bench import Algorithm, knob

SCALE = 2.0
OTHER = 1

def helper(x):
    return x * SCALE

def twice(f):
    def inner(x):
        return 2 * f(x)
    return inner

@twice
@torch.no_grad()
def doubled(x):
    return x - 1

@dataclass(frozen=True)
class Knobs:
    mu: float = knob(0.1, "the pull", source="mine")

class Mine(Algorithm):
    title, summary, citation, scored_model = "Mine", "Mine.", "none", "the global model"
    Hyper = Knobs

    def train(self, client, received):
        super().train(client, received)
        parts = [doubled(1.0), *(helper(v) for v in (1.0, 2.0))]
        assert parts and torch.ones(1)
"""
_counter = itertools.count()


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Executes a cell as a notebook does: no file, its lines kept for who asks; later cells see
    the names of earlier ones."""
    module = ModuleType("session")
    monkeypatch.setitem(sys.modules, "session", module)
    monkeypatch.setattr(registry, "_registered", {})

    def execute(cell: str) -> ModuleType:
        name = f"<cell {next(_counter)}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        exec(compile(cell, name, "exec"), vars(module))
        return module

    return execute


Session = Callable[[str], ModuleType]


def fingerprint(cell: str, session: Session) -> str:
    return class_fingerprint(session(cell).Mine)


def test_the_same_cell_has_the_same_fingerprint(session: Session) -> None:
    assert fingerprint(CELL, session) == fingerprint(CELL, session)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(1.0, 2.0)", "(1.0, 3.0)"),
        ("return x * SCALE", "return x + SCALE"),
        ("return x - 1", "return x - 2"),
        ("2 * f(x)", "3 * f(x)"),
        ("SCALE = 2.0", "SCALE = 2.5"),
        ("knob(0.1", "knob(0.2"),
        ('"the global model"', '"the model"'),
    ],
)
def test_whatever_the_method_does_is_in_it(session: Session, old: str, new: str) -> None:
    assert old in CELL
    assert fingerprint(CELL, session) != fingerprint(CELL.replace(old, new), session)


def test_what_the_method_does_not_read_is_not(session: Session) -> None:
    changed = CELL.replace("OTHER = 1", "OTHER = 2")
    assert fingerprint(CELL, session) == fingerprint(changed, session)


def test_a_helper_edited_in_a_later_cell_changes_it(session: Session) -> None:
    pfl.register(session(CELL).Mine)
    before = registry.plugin_fingerprint("mine")
    session("def helper(x):\n    return x - SCALE\n")
    assert registry.plugin_fingerprint("mine") != before


def test_a_value_that_cannot_be_recorded_is_refused(session: Session) -> None:
    module = session(CELL.replace("SCALE = 2.0", "SCALE = object()"))
    with pytest.raises(pfl.UserError, match=r"the global SCALE of .*helper.* of type object"):
        pfl.register(module.Mine)
    assert "mine" not in registry.algorithm_names()


def test_a_function_without_source_is_refused(session: Session) -> None:
    module = session(CELL)
    linecache.cache.pop(module.helper.__code__.co_filename)
    with pytest.raises(pfl.UserError, match=r"source of .* cannot be read"):
        pfl.register(module.Mine)


def test_the_name_of_a_built_in_algorithm_is_taken(session: Session) -> None:
    with pytest.raises(pfl.UserError, match="'fedavg' is taken"):
        pfl.register(session(CELL).Mine, "fedavg")


def test_what_is_no_algorithm_is_refused() -> None:
    wrong: Any = int
    with pytest.raises(pfl.UserError, match="not a subclass of Algorithm"):
        pfl.register(wrong)


def test_an_edited_class_runs_anew_and_the_old_result_stays(
    session: Session, tmp_path: Path
) -> None:
    small = {"dataset": "mnist", "fraction": 0.02, "clients": 3, "rounds": 1, "source": "standin"}
    first = pfl.run(session(CELL).Mine, results=tmp_path, workers=1, progress=False, **small)
    edited = session(CELL.replace("(1.0, 2.0)", "(1.0, 4.0)")).Mine
    second = pfl.run(edited, results=tmp_path, workers=1, progress=False, **small)
    assert first.path != second.path
    assert first.config["plugin"] != second.config["plugin"]
    assert len(pfl.Store(tmp_path).runs(algo="mine")) == 2


def test_a_class_of_the_session_does_not_go_to_other_processes(
    session: Session, tmp_path: Path
) -> None:
    pfl.register(session(CELL).Mine)
    with pytest.raises(pfl.UserError, match="a class of this session"):
        pfl.table("main", rows=["mine"], columns=["mnist"], seeds=1, jobs=2, results=tmp_path)
