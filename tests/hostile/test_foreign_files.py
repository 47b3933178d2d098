"""A run's folder in which somebody has put something else: nothing outside it is read or changed,
nothing hangs, and the other runs are there."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from cases import invoke
from prepared import NAME

from pfl_bench.base.errors import UserError
from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.observer import Event, Observer
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute, prepare
from pfl_bench.execution.trained_model import trained_simulator
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import read_run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links and pipes of another kind")

PRECIOUS = b"a thesis\n"
NAMES = ("config.json", "rounds.jsonl", "summary.json", "run.lock", "owner.lock",
         "state.safetensors", "checkpoint-1.safetensors", "checkpoint-9.safetensors",
         "fresh", "replay")  # fmt: skip


@pytest.fixture
def config(data: Path) -> RunConfig:
    chosen = {"dataset": NAME, "clients": 2, "rounds": 2, "batch_size": 8, "algo": "fedavg"}
    return configure(Profile("none", "", {}, {}, {}), chosen, {}, data)


@pytest.fixture
def options(data: Path) -> Execution:
    return Execution(data, workers=1, checkpoint_every=1, keep_state=True)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """What lies elsewhere, and is to be as it was."""
    folder = tmp_path / "elsewhere"
    (folder / "runs").mkdir(parents=True)
    names = ("thesis.txt", "rounds.jsonl", "summary.json", "state.safetensors",
             "checkpoint-1.safetensors", ".draft.tmp")  # fmt: skip
    for name in names:
        (folder / name).write_bytes(PRECIOUS)
    before = {path: path.stat().st_mode for path in folder.rglob("*")}
    yield folder
    assert {path: path.stat().st_mode for path in folder.rglob("*")} == before
    for name in names:
        assert (folder / name).read_bytes() == PRECIOUS, name


def begun(store: Store, config: RunConfig, options: Execution, rounds: int) -> Path:
    """The folder of a run of which so many rounds are done."""
    folder = store.folder(config)
    folder.mkdir(parents=True)
    if rounds == config.rounds:
        execute(config, store, options)
    elif rounds:
        simulator, _ = prepare(config, options)
        with store.open(config) as writer:
            for record in islice(simulator.rounds(), rounds):
                writer.append(record)
                writer.save_checkpoint(record.round, simulator.snapshot.tensors(), {})
    return folder


def put_aside(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_repeated", [False, True])
def test_no_link_in_a_run_s_folder_is_followed(
    tmp_path: Path,
    outside: Path,
    config: RunConfig,
    options: Execution,
    name: str,
    rounds: int,
    is_repeated: bool,
) -> None:
    store = Store(tmp_path / "results")
    folder = begun(store, config, options, rounds)
    put_aside(folder / name)
    is_folder = name in ("fresh", "replay")
    (folder / name).symlink_to(outside if is_folder else outside / "thesis.txt")
    invoke("results", "list", "--results", store.root)
    read_run(folder).records()
    ended = execute(config, store, replace(options, fresh=is_repeated))
    assert ended.status == "finished" and len(ended.records()) == 2
    assert not (folder / "rounds.jsonl").is_symlink()


def test_no_link_in_a_repetition_under_way_is_followed(
    tmp_path: Path, outside: Path, config: RunConfig, options: Execution
) -> None:
    store = Store(tmp_path / "results")
    folder = begun(store, config, options, 2)
    (folder / "fresh").mkdir()
    for name in ("rounds.jsonl", "summary.json", "checkpoint-1.safetensors"):
        (folder / "fresh" / name).symlink_to(outside / name)
    assert execute(config, store, replace(options, fresh=True)).status == "finished"


def test_a_trained_model_is_not_made_in_a_folder_elsewhere(
    tmp_path: Path, outside: Path, config: RunConfig, options: Execution
) -> None:
    store = Store(tmp_path / "results")
    folder = begun(store, config, replace(options, keep_state=False), 2)
    (folder / "replay").symlink_to(outside / "runs")
    assert trained_simulator(config, store, options).snapshot.round == 2


def test_a_run_s_folder_that_is_a_link_is_not_written_to(
    tmp_path: Path, outside: Path, config: RunConfig, options: Execution
) -> None:
    store = Store(tmp_path / "results")
    store.root.mkdir()
    store.folder(config).symlink_to(outside)
    (found,) = store.all()
    assert found.status == "damaged" and "symbolic link" in str(found.damage)
    with pytest.raises(UserError, match="symbolic link"):
        execute(config, store, options)


def test_a_file_of_two_names_is_not_changed_under_the_other(
    tmp_path: Path, outside: Path, config: RunConfig, options: Execution
) -> None:
    store = Store(tmp_path / "results")
    folder = begun(store, config, options, 0)
    (folder / "rounds.jsonl").hardlink_to(outside / "thesis.txt")
    assert execute(config, store, options).status == "finished"


def test_a_copy_by_hard_links_stays_what_it_was(
    tmp_path: Path, config: RunConfig, options: Execution
) -> None:
    store = Store(tmp_path / "results")
    folder = begun(store, config, options, 1)
    (tmp_path / "copy").hardlink_to(folder / "rounds.jsonl")
    before = (tmp_path / "copy").read_bytes()
    assert len(execute(config, store, options).records()) == 2
    assert (tmp_path / "copy").read_bytes() == before


@pytest.mark.parametrize(
    "name", ["config.json", "rounds.jsonl", "summary.json", "state.safetensors"]
)
def test_a_folder_in_place_of_a_file_is_told_before_anything_is_computed(
    tmp_path: Path, config: RunConfig, options: Execution, name: str
) -> None:
    store = Store(tmp_path / "results")
    folder = begun(store, config, options, 2)
    put_aside(folder / name)
    (folder / name / "thesis").mkdir(parents=True)
    rounds: list[Event] = []

    class Watching(Observer):
        def tell(self, event: Event) -> None:
            rounds.append(event)

    with pytest.raises(UserError, match=f"{name} is a folder"):
        execute(config, store, replace(options, fresh=True), Watching())
    assert not rounds and (folder / name / "thesis").is_dir()


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 * 2**30)


@pytest.mark.parametrize("make", [os.mkfifo, sparse, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("fresh", "replay", "run.lock", "owner.lock")]
)
def test_what_never_ends_hangs_no_command_and_fills_no_memory(
    stored: Path, usual: float, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    root = tmp_path / "store"
    shutil.copytree(stored, root)
    folder = next(path for path in root.iterdir() if path.name.startswith("fedavg"))
    put_aside(folder / name)
    make(folder / name)
    assert seconds_to_look_at(root, folder.name[-16:]) < 10 * usual


@pytest.fixture(scope="module")
def usual(stored: Path) -> float:
    """The seconds that it takes to look at a store with nothing wrong in it."""
    return seconds_to_look_at(stored, next(stored.glob("fedavg*")).name[-16:])


def seconds_to_look_at(root: Path, key: str) -> float:
    began = time.monotonic()
    listed = invoke("results", "list", "--results", root)
    assert "local" in listed.output
    for command in (["results", "show", key], ["results", "export"], ["table", "list"]):
        invoke(*command, "--results", root)
    for run in Store(root).all():
        run.records(), run.state()
    return time.monotonic() - began


@pytest.mark.parametrize(
    "make", [os.mkfifo, sparse, lambda path: path.symlink_to("/dev/zero"), Path.mkdir, Path.touch]
)
@pytest.mark.parametrize("name", ["attack-x.json", "attack-a b.json"])
def test_what_is_no_attack_keeps_no_run_from_being_shared(
    stored: Path, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    root = tmp_path / "store"
    shutil.copytree(stored, root)
    for folder in root.iterdir():
        make(folder / name)
    assert "2 runs packed" in invoke("results", "pack", root).output
    assert (
        "2 runs added"
        in invoke(
            "results", "merge", root.with_suffix(".zip"), "--results", tmp_path / "other"
        ).output
    )
    assert (
        "2 runs added" in invoke("results", "merge", root, "--results", tmp_path / "third").output
    )


@pytest.mark.parametrize("make", [os.mkfifo, sparse, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("fresh", "replay")])
def test_a_run_with_something_endless_in_it_is_computed_again(
    tmp_path: Path, config: RunConfig, options: Execution, name: str, make: Callable[[Path], None]
) -> None:
    store = Store(tmp_path / "results")
    folder = begun(store, config, options, 1)
    put_aside(folder / name)
    make(folder / name)
    ended = execute(config, store, options)
    assert ended.status == "finished" and len(ended.records()) == 2
