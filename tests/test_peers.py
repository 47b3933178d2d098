"""The pieces of `scripts/bench --peers` that need no peer: problem, laps of a driver, rows."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from benchmarks.peers.contest import DRIVERS, OURS, driven, rows
from benchmarks.peers.environments import PEERS
from benchmarks.peers.problem import export


def test_the_problem_is_ours_in_plain_arrays(tmp_path: Path) -> None:
    path = tmp_path / "problem.npz"
    simulator = export(path, 400).simulator(workers=1)
    with np.load(path) as file:
        assert int(file["clients"]) == len(simulator.shards)
        for k, shard in enumerate(simulator.shards):
            assert file[f"train/{k}"].tolist() == shard.train.tolist()
            assert file[f"test/{k}"].tolist() == shard.test.tolist()
        assert file["model/extractor.conv2.weight"].shape == (64, 32, 5, 5)
        assert file["x"].shape == (400, 32, 32, 3)


def test_a_driver_runs_a_lap_when_it_is_told(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        dedent(f"""
        import sys
        sys.path.insert(0, {str(DRIVERS)!r})
        from common import serve
        laps = []
        def lap():
            laps.append(1)
            print("said beside the answers")
            return len(laps) / 10
        serve(lap)
        """)
    )
    with driven([sys.executable, script], tmp_path / "log", threads=1) as driver:
        told = [driver.lap() for _ in range(2)]
    assert [lap["accuracy"] for lap in told] == [0.1, 0.2]
    assert all(lap["seconds"] >= 0 and lap["memory"] > 0 for lap in told)
    assert "beside" in (tmp_path / "log").read_text()


def test_a_driver_that_ends_is_noticed(tmp_path: Path) -> None:
    ends = [sys.executable, "-c", "raise SystemExit(1)"]
    with (
        pytest.raises(RuntimeError, match="it ended"),
        driven(ends, tmp_path / "log", threads=1),
    ):
        pass


def test_ratios_are_of_the_same_lap() -> None:
    def laps(*seconds: float) -> list[dict[str, float]]:
        return [{"seconds": s, "processor": 2 * s, "memory": 5, "accuracy": 0.5} for s in seconds]

    ours, peer = rows({OURS: laps(1, 4, 2), "peer": laps(2, 12, 5)}, {"peer": "slow"})
    assert (ours.seconds, ours.low, ours.high, ours.ratio.median) == (2, 1, 4, 1)
    assert (peer.ratio.low, peer.ratio.median, peer.ratio.high) == (2, 2.5, 3)
    assert peer.differs == "slow"


def test_every_peer_has_a_driver_and_says_what_differs() -> None:
    for peer in PEERS:
        assert (DRIVERS / f"{peer.driver}.py").is_file()
        assert peer.differs and peer.requirements
