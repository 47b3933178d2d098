"""Runs on a Ray cluster of two nodes on this machine: same bits, nothing lost or half-written."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import started, wait_until
from smalltables import PLUGIN, PROFILE, computed_here, loaded_plugins, small_plan, small_spec

from pfl_bench.base.errors import UserError
from pfl_bench.data.dataset import Dataset
from pfl_bench.execution.cluster import backend as cluster_module
from pfl_bench.execution.cluster.backend import ATTEMPTS
from pfl_bench.execution.cluster.connection import require_ray
from pfl_bench.execution.cluster.node import installation
from pfl_bench.execution.observer import Began, Ended, Note, Observer, Round
from pfl_bench.execution.options import Execution
from pfl_bench.plugins.registry import load_plugin
from pfl_bench.reporting.tables.plan import TablePlan, run_missing
from pfl_bench.store.records import RoundRecord, same_result
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun
from pfl_bench.tuning.trials import Effort, tune

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="ray is not installed: pip install 'pfl-bench[ray]'",
)

SOON = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
"""When a node that does not answer counts as lost."""
NODE = {"num_cpus": 1, "memory": 4 * 10**9, "object_store_memory": 80 * 2**20}

FATAL = """
        from pathlib import Path
        if client.round == 2 and not Path({mark!r}).exists():
            import os, signal, time
            time.sleep(2)  # a checkpoint on its way is lost with its process
            Path({mark!r}).touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""
STEPS = {"slow": "time.sleep(0.1)", "raising": "raise ArithmeticError('no such luck')"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """The head, where the driver is, and another node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        require_ray()
        from ray.cluster_utils import Cluster

        head = {**NODE, "include_dashboard": False, "_system_config": SOON}
        started = Cluster(initialize_head=True, head_node_args=head)
        try:
            started.add_node(**NODE)
            yield started
        finally:
            started.shutdown()


@pytest.fixture
def plugins(tmp_path: Path) -> Iterator[tuple[Path, ...]]:
    """Algorithms that take their time, or raise."""
    with loaded_plugins(tmp_path, STEPS) as paths:
        yield paths


def _mortal(folder: Path) -> tuple[Path, Path]:
    """An algorithm that kills its process once, in round 2, and the mark that it leaves."""
    path, mark = folder / "mortal.py", folder / "it-died"
    path.write_text(PLUGIN.format(step=FATAL.format(mark=str(mark)).strip()))
    load_plugin(path)
    return path, mark


def _plan(store: Store, *algos: str, seeds: int = 1, rounds: int = 2) -> TablePlan:
    return small_plan(small_spec(*algos), store, seeds, rounds)


def _on(cluster: Any, plugins: tuple[Path, ...] = (), **how: Any) -> Execution:
    """The cluster, and how to run on it."""
    return Execution(Path("no-data"), where="ray", address=cluster.address, plugins=plugins, **how)


def _stored(store: Store) -> dict[str, list[RoundRecord]]:
    return {run.key: run.records() for run in store.all() if run.is_final}


def _is_same(found: dict[str, list[RoundRecord]], expected: dict[str, list[RoundRecord]]) -> bool:
    return found.keys() == expected.keys() and all(
        len(found[key]) == len(expected[key]) and all(map(same_result, found[key], expected[key]))
        for key in expected
    )


class _Diary(Observer):
    """Writes down what it is told, and may do something after a round."""

    def __init__(self, after_round: Callable[[str, int], None] | None = None):
        self.begun: list[tuple[str, int]] = []
        self.notes: list[str] = []
        self._after_round = after_round or (lambda key, round: None)

    def on_began(self, event: Began) -> None:
        self.begun.append((event.config.key, len(event.earlier)))

    def on_round(self, event: Round) -> None:
        self._after_round(event.config.key, event.record.round)

    def on_note(self, event: Note) -> None:
        self.notes.append(event.text)


# --- the same as here -----------------------------------------------------------------------------


def test_results_are_the_same_bits_as_here_the_data_is_put_once_and_a_third_failure_is_reported(
    cluster: Any, tmp_path: Path, plugins: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, diary = Store(tmp_path / "results"), _Diary()
    plan = _plan(store, "fedavg", "raising", "fedper")
    broken = plan.cells["raising", "only"].configs[0]
    expected = computed_here(_plan(store, "fedavg", "fedper"), Store(tmp_path / "here"))
    put: list[object] = []
    ray = require_ray()
    really_put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: put.append(value) or really_put(value))
    _, failures = run_missing(plan, store, _on(cluster, plugins), diary)
    assert _is_same(_stored(store), expected)
    assert failures == {broken.request: "ArithmeticError: no such luck (raising.py, line 9)"}
    assert [key for key, _ in diary.begun].count(broken.key) == ATTEMPTS == 3
    assert sum(isinstance(value, Dataset) for value in put) == 1


def test_tuning_by_halves_chooses_the_same_as_here(cluster: Any, tmp_path: Path) -> None:
    """And what goes on after the first half of the rounds is the run that was begun."""
    spec = small_spec("fedavg").running({"validation": 0.3})
    effort, here = Effort(4, halving=True), Execution(Path("no-data"), workers=1)
    afar, near = Store(tmp_path / "afar"), Store(tmp_path / "near")
    profile = replace(PROFILE, run={**PROFILE.run, "rounds": 4, "fraction": 0.05})
    found, failures = tune(spec, profile, effort, afar, _on(cluster))
    expected, _ = tune(spec, profile, effort, near, here)
    assert not failures and found == expected
    assert _is_same(_stored(afar), _stored(near))
    lengths = {run.key: len(run.records()) for run in afar.all()}
    assert sorted(lengths.values()) == [2, 2, 4, 4]


def test_what_is_stored_is_not_repeated_and_a_fresh_run_takes_its_place(
    cluster: Any, tmp_path: Path
) -> None:
    store, diary, empty = Store(tmp_path / "results"), _Diary(), Store(tmp_path / "none")
    plan = _plan(empty, "fedavg")
    computed_here(plan, store)
    first = store.find(plan.missing()[0].config)
    _, failures = run_missing(plan, store, _on(cluster), diary)
    assert not failures and diary.begun == []
    run_missing(plan, store, _on(cluster, fresh=True), diary)
    again = store.find(plan.missing()[0].config)
    assert len(diary.begun) == 1
    assert first is not None and again is not None and first.summary and again.summary
    assert first.summary["records_sha256"] != again.summary["records_sha256"]  # other seconds
    assert all(map(same_result, first.records(), again.records()))
    assert not list(store.root.glob("*/fresh"))


def test_a_run_computed_elsewhere_is_tried_again_after_all_others(
    cluster: Any, tmp_path: Path
) -> None:
    store = Store(tmp_path / "results")
    plan = _plan(store, "fedper", "fedavg", "local")
    taken = plan.cells["fedper", "only"].configs[0]
    elsewhere = contextlib.ExitStack()
    elsewhere.enter_context(store.open(taken))

    class _Patient(Observer):
        ended: list[str] = []

        def on_ended(self, event: Ended) -> None:
            self.ended.append(event.config.key)
            if len(self.ended) == 2:
                elsewhere.close()

    with elsewhere:
        _, failures = run_missing(plan, store, _on(cluster, jobs=3), _Patient())
    assert not failures and _Patient.ended[-1] == taken.key


# --- faults ---------------------------------------------------------------------------------------


def test_a_run_whose_worker_is_killed_continues_from_its_checkpoint(
    cluster: Any, tmp_path: Path, plugins: tuple[Path, ...]
) -> None:
    path, mark = _mortal(tmp_path)
    store, diary = Store(tmp_path / "results"), _Diary()
    plan = _plan(store, "mortal", rounds=3)
    _, failures = run_missing(plan, store, _on(cluster, (path,), checkpoint_every=1), diary)
    assert not failures and mark.exists()
    assert diary.notes == ["its worker died; it continues after round 1 (attempt 2)"]
    assert [round for _, round in diary.begun] == [0, 1]
    assert _is_same(_stored(store), computed_here(plan, Store(tmp_path / "here")))


def test_a_timed_run_that_dies_continues_from_its_own_rounds_not_from_untimed_ones(
    cluster: Any, tmp_path: Path
) -> None:
    path, mark = _mortal(tmp_path)
    store, diary = Store(tmp_path / "results"), _Diary()
    plan = _plan(store, "mortal", rounds=3)
    (run,) = plan.missing()
    with store.open(run.config) as writer:
        for round in (1, 2):
            writer.append(RoundRecord(round, [0], [1], [2], [0.5]))
        writer.save_checkpoint(2, {"server/head": torch.zeros(1)}, {"timed": False})
    options = _on(cluster, (path,), timed=True, checkpoint_every=1)
    _, failures = run_missing(plan, store, options, diary)
    assert not failures and mark.exists()
    assert [round for _, round in diary.begun] == [0, 1]


def test_a_run_whose_node_is_lost_continues_elsewhere_from_its_checkpoint(
    cluster: Any, tmp_path: Path, plugins: tuple[Path, ...]
) -> None:
    store = Store(tmp_path / "results")
    plan = _plan(store, "slow", seeds=2, rounds=8)
    expected = computed_here(plan, Store(tmp_path / "here"))
    doomed = cluster.list_all_nodes()[-1]
    reached: dict[str, int] = {}

    def lose_the_node_half_way(key: str, round: int) -> None:
        reached[key] = round
        if doomed in cluster.list_all_nodes() and len(reached) == 2 and min(reached.values()) > 2:
            cluster.remove_node(doomed, allow_graceful=False)

    diary = _Diary(lose_the_node_half_way)
    try:
        options = _on(cluster, plugins, checkpoint_every=1)
        _, failures = run_missing(plan, store, options, diary)
    finally:
        if doomed not in cluster.list_all_nodes():
            cluster.add_node(**NODE)
    assert not failures
    (note,) = diary.notes
    assert "it continues after round" in note
    assert sorted(round > 0 for _, round in diary.begun) == [False, False, True]
    assert _is_same(_stored(store), expected)


def test_interrupted_runs_save_and_the_next_call_continues_to_the_same_end(
    cluster: Any, tmp_path: Path, plugins: tuple[Path, ...]
) -> None:
    store = Store(tmp_path / "results")
    plan = _plan(store, "slow", rounds=6)
    expected = computed_here(plan, Store(tmp_path / "here"))

    def press_ctrl_c(key: str, round: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_missing(plan, store, _on(cluster, plugins), _Diary(press_ctrl_c))
    assert len(list(store.root.glob("*/checkpoint-*"))) == 1  # saved because of the interruption
    continued = computed_here(plan, store)
    assert _is_same(continued, expected)
    (run,) = _summarised(store)
    assert run.summary["provenance"]["resumed_after_round"] > 0


def test_a_driver_killed_and_started_again_ends_with_the_same_results(
    cluster: Any, tmp_path: Path, plugins: tuple[Path, ...]
) -> None:
    store = Store(tmp_path / "results")
    plan = _plan(store, "slow", seeds=2, rounds=8)
    expected = computed_here(plan, Store(tmp_path / "here"))
    profile = tmp_path / "tiny.yaml"
    profile.write_text("run: {source: standin, rounds: 8, fraction: 0.02}\n")
    settings = f"--algo slow --dataset mnist --clients 3 --beta 1 --profile {profile}"
    command = (
        "run", *settings.split(), "--seeds", "2", "--checkpoint-every", "1", "--backend", "ray",
        "--plugin", str(plugins[0]), "--results", str(store.root), "--address", cluster.address,
    )  # fmt: skip
    with started(sys.executable, "-m", "pfl_bench", *command) as process:
        # Which rounds' checkpoints arrive is a matter of pace.
        wait_until(lambda: len({p.parent for p in store.root.glob("*/checkpoint-[2-5].*")}) == 2)
        process.kill()
    assert _stored(store) == {}
    with started(sys.executable, "-m", "pfl_bench", *command) as process:
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "best accuracy over 2 seeds" in output
    assert _is_same(_stored(store), expected)
    resumed = [run.summary["provenance"]["resumed_after_round"] for run in _summarised(store)]
    assert len(resumed) == 2 and all(round >= 2 for round in resumed)


def _summarised(store: Store) -> Iterator[Any]:
    return (run for run in store.all() if isinstance(run, StoredRun) and run.summary)


def _local_command(tmp_path: Path, plugins: tuple[Path, ...]) -> tuple[str, ...]:
    """A long run on a Ray of its own."""
    settings = "--algo slow --dataset mnist --clients 3 --beta 1 --fraction 0.02 --rounds 200"
    return (
        sys.executable, "-m", "pfl_bench", "run", *settings.split(), "--backend", "ray",
        "--plugin", str(plugins[0]), "--results", str(tmp_path / "results"),
        "--checkpoint-every", "1",
    )  # fmt: skip


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")


@needs_proc
def test_a_local_ray_is_heard_on_this_machine_alone_and_dies_with_a_killed_command(
    tmp_path: Path, plugins: tuple[Path, ...]
) -> None:
    before = _ray_processes()
    with started(*_local_command(tmp_path, plugins)) as process:
        wait_until(lambda: any((tmp_path / "results").glob("*/checkpoint-*")))
        own = _ray_processes() - before
        heard = {place for pid in own for place in _listening(pid)}
        assert own and heard and heard <= {"0100007F", "0000000000000000FFFF00000100007F"}
        modes = {_environment(pid).get("RAY_AUTH_MODE") for pid in own if not _has_title(pid)}
        assert modes == {"token"}
        process.kill()
        wait_until(lambda: not _ray_processes() & own)


def _has_title(pid: str) -> bool:
    """Whether a process has written a title over its command line, and so over its environment."""
    program = Path("/proc", pid, "cmdline").read_bytes().partition(b"\0")[0]
    return not Path(os.fsdecode(program)).exists()


def _environment(pid: str) -> dict[str, str]:
    lines = Path("/proc", pid, "environ").read_text(errors="replace").split("\0")
    return dict(line.partition("=")[::2] for line in lines)


def _listening(pid: str) -> Iterator[str]:
    """The addresses, as the kernel writes them, on which a process takes connections."""
    with contextlib.suppress(OSError):
        sockets = {str(path.readlink()) for path in Path("/proc", pid, "fd").iterdir()}
        for table in ("tcp", "tcp6"):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == "0A" and f"socket:[{inode}]" in sockets:
                    yield local.partition(":")[0]


def test_a_ray_that_asks_for_no_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UserError, match=r"RAY_AUTH_MODE is 'disabled'.*allowed: token"):
        require_ray()


def test_a_ray_that_knows_no_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(require_ray(), "__version__", "2.51.1")
    with pytest.raises(UserError, match=r"needs ray 2\.56 or newer.*not 2\.51\.1"):
        require_ray()


@needs_proc
def test_without_an_address_a_local_ray_is_started_and_ctrl_c_leaves_nothing_behind(
    tmp_path: Path, plugins: tuple[Path, ...]
) -> None:
    before = _ray_processes()
    with started(*_local_command(tmp_path, plugins)) as process:
        wait_until(lambda: any((tmp_path / "results").glob("*/checkpoint-*")))
        assert _ray_processes() > before
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        wait_until(lambda: _ray_processes() <= before, seconds=20)
    assert process.returncode == 130
    assert "The same command continues where it left off" in errors
    assert "Traceback" not in errors


def _ray_processes() -> set[str]:
    """The processes of every Ray on this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            if b"ray::" in line or b"/raylet" in line or b"gcs_server" in line:
                found.add(path.parent.name)
    return found


# --- mistakes -------------------------------------------------------------------------------------


def test_a_node_with_another_version_is_named(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, there = Store(tmp_path / "results"), installation()["torch"]
    monkeypatch.setattr(cluster_module, "installation", lambda: {**installation(), "torch": "0.1"})
    with pytest.raises(UserError, match=f"torch is 0.1 here and {there} there"):
        run_missing(_plan(store, "fedavg"), store, _on(cluster), _Diary())
    assert _stored(store) == {}


def test_more_cores_than_any_node_has_are_refused(cluster: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    with pytest.raises(UserError, match=r"no node of the cluster has 64 core\(s\) for a run"):
        run_missing(_plan(store, "fedavg"), store, _on(cluster, workers=64), _Diary())
