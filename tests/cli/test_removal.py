"""`pfl-bench results rm` and `prune`: what goes, what stays, and that nothing goes unasked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from test_results import Config

from pfl_bench.base.errors import UserError
from pfl_bench.cli import main
from pfl_bench.store.folder import RunBusy
from pfl_bench.store.records import RoundRecord
from pfl_bench.store.store import Store

FEDCP, OTHER, FEDAVG = Config(), Config(seed=1), Config("fedavg", "mnist", "standin")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "results")
    for config in (FEDCP, OTHER, FEDAVG):
        with store.open(config) as writer:
            writer.append(RoundRecord(1, [0], [5], [10], [0.5]))
            writer.finish("finished")
    return store


def _call(store: Store, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["results", *arguments, "--results", str(store.root)])


def _names(store: Store) -> set[str]:
    return {path.name for path in store.root.iterdir()}


@pytest.fixture
def outside(store: Store) -> Iterator[Path]:
    """A folder beside the store, to which links in it lead; it must stay as it is."""
    victim = store.root.parent / "victim"
    victim.mkdir()
    (victim / "thesis.tex").write_text("whole")
    yield victim
    assert (victim / "thesis.tex").read_text() == "whole"
    assert [path.name for path in victim.iterdir()] == ["thesis.tex"]


def test_named_runs_go_and_no_others(store: Store) -> None:
    result = _call(store, "rm", FEDCP.key[:8], str(store.folder(OTHER)), "--yes")
    assert result.exit_code == 0, result.output
    assert _names(store) == {store.folder(FEDAVG).name}


def test_filters_mean_every_run_that_agrees_with_all_of_them(store: Store) -> None:
    assert _call(store, "rm", "--algo", "FedCP", "--dataset", "CIFAR-10", "--yes").exit_code == 0
    assert _names(store) == {store.folder(FEDAVG).name}


@pytest.mark.parametrize("command", [("rm", "--algo", "fedcp"), ("prune", "--models")])
def test_a_dry_run_and_an_unasked_one_remove_nothing(store: Store, command: tuple[str]) -> None:
    (store.folder(FEDCP) / "state.safetensors").write_bytes(b"x" * 1000)
    before = sorted(store.root.rglob("*"))
    told = _call(store, *command, "--dry-run")
    assert told.exit_code == 0 and store.folder(FEDCP).name in told.output
    refused = _call(store, *command)
    assert refused.exit_code == 2 and "--yes" in refused.stderr
    assert sorted(store.root.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments", [(), ("nosuch",), ("--algo", "nosuch"), (FEDCP.key, "--algo", "fedcp"), ("",)]
)
def test_what_names_no_run_removes_none(store: Store, arguments: tuple[str, ...]) -> None:
    before = _names(store)
    assert _call(store, "rm", *arguments, "--yes").exit_code == 2
    assert _names(store) == before


def test_a_run_that_is_being_computed_stays_and_the_others_go(store: Store) -> None:
    with store.open(FEDCP):
        assert "is being computed by process" in _call(store, "rm", FEDCP.key, "--dry-run").output
        result = _call(store, "rm", "--algo", "fedcp", "--yes")
        assert result.exit_code == 1 and "is being computed by" in result.stderr
        with pytest.raises(RunBusy):
            store.remove_model(next(run for run in store.all() if run.key == FEDCP.key))
    assert _names(store) == {store.folder(FEDCP).name, store.folder(FEDAVG).name}
    assert all(run.is_final for run in store.all())


def test_a_link_goes_and_what_it_leads_to_stays(store: Store, outside: Path) -> None:
    link = store.root / f"linked-{'0' * 16}"
    link.symlink_to(outside)
    (store.folder(FEDCP) / "fresh").symlink_to(outside)
    (store.folder(FEDCP) / "thesis.tex").symlink_to(outside / "thesis.tex")
    assert _call(store, "prune", "--yes").exit_code == 0
    assert not link.is_symlink()
    assert _call(store, "rm", FEDCP.key, "--yes").exit_code == 0
    assert _names(store) == {store.folder(OTHER).name, store.folder(FEDAVG).name}


def test_nothing_outside_the_store_goes(store: Store, tmp_path: Path, outside: Path) -> None:
    elsewhere = Store(tmp_path / "elsewhere")
    with elsewhere.open(FEDCP) as writer:
        writer.finish("finished")
    for path in (elsewhere.folder(FEDCP), outside):
        assert _call(store, "rm", str(path), "--yes").exit_code != 0
    (run,) = elsewhere.all()
    with pytest.raises(UserError, match="no run in"):
        store.remove(run)
    assert list(elsewhere.all()) and len(_names(store)) == 3


def test_pruning_takes_what_is_damaged_or_without_a_record_and_unfinished_runs_if_asked(
    store: Store,
) -> None:
    (store.folder(FEDCP) / "rounds.jsonl").write_bytes(b"")
    begun = store.root / f"begun-{'1' * 16}"
    begun.mkdir()
    with store.open(unfinished := Config(seed=7)) as writer:
        writer.append(RoundRecord(1, [0], [5], [10], [0.5]))
    assert _call(store, "prune", "--yes").exit_code == 0
    left = {store.folder(config).name for config in (OTHER, FEDAVG)}
    assert _names(store) == left | {store.folder(unfinished).name}
    assert _call(store, "prune", "--interrupted", "--yes").exit_code == 0
    assert _names(store) == left
    assert "nothing to remove" in _call(store, "prune", "--yes").output


def test_pruning_models_leaves_the_results(store: Store) -> None:
    model = store.folder(FEDCP) / "state.safetensors"
    model.write_bytes(b"x" * 1000)
    result = _call(store, "prune", "--models", "--yes")
    assert result.exit_code == 0 and "1 removed, 1 kB" in result.output
    assert not model.exists() and all(run.is_final for run in store.all())


def test_a_removal_that_was_killed_half_way_leaves_no_run_and_is_finished_by_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(folder: Path) -> None:
        os.remove(folder / "summary.json")  # noqa: PTH107 - as a removal does it
        raise KeyboardInterrupt

    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr("pfl_bench.store.store.shutil.rmtree", die)
        store.remove(next(run for run in store.all() if run.key == FEDCP.key))
    assert FEDCP.key not in {run.key for run in Store(store.root).all()}
    assert len(_names(store)) == 3
    store.tidy()
    assert _names(store) == {store.folder(OTHER).name, store.folder(FEDAVG).name}


def test_nothing_is_removed_from_an_archive(store: Store, tmp_path: Path) -> None:
    archive = tmp_path / "mine.zip"
    packed = CliRunner().invoke(main, ["results", "pack", str(store.root), "--out", str(archive)])
    assert packed.exit_code == 0, packed.output
    content = archive.read_bytes()
    for command in (("rm", FEDCP.key), ("prune",)):
        result = _call(Store(archive), *command, "--yes")
        assert result.exit_code == 2 and "is an archive" in result.stderr
    assert archive.read_bytes() == content
