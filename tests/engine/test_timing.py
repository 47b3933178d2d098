"""The parts of a round and of a run add up to the time that passed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from pfl_bench.engine.timing import ROUND, RUN, RoundWatch, RunWatch
from pfl_bench.plugins.testing import toy_config, toy_run


def test_the_parts_of_a_round_add_up_to_its_total() -> None:
    for record in toy_run(toy_config("ditto", record=("convergence",)), workers=2):
        assert record.seconds.keys() == {*ROUND, "total"}
        assert sum(record.seconds[part] for part in ROUND) == pytest.approx(record.seconds["total"])
        assert all(record.seconds[part] >= 0 for part in ROUND)
        assert record.seconds["training"] > 0
        assert record.seconds["evaluation"] > 0
        assert record.seconds["communication"] > 0


def test_the_seconds_of_workers_count_by_their_number() -> None:
    watch = RoundWatch(workers=4)
    watch.add("training", 4.0)
    assert watch.split()["training"] == pytest.approx(1.0)


def test_aggregation_does_not_count_what_it_waits_for() -> None:
    watch = RoundWatch(workers=1)

    def slow() -> Iterator[int]:
        for k in range(2):
            time.sleep(0.05)
            yield k

    with watch.aggregation(slow()) as uploads:
        for _ in uploads:
            time.sleep(0.02)
    split = watch.split()
    assert 0.04 <= split["aggregation"] < split["total"] - 0.09
    assert split["waiting"] >= 0.09


def test_aggregation_beside_training_counts_only_what_outlasts_it() -> None:
    watch = RoundWatch(workers=1)
    worker = threading.Thread(target=lambda: _work(watch, 0.1))
    worker.start()
    with watch.aggregation(iter(())):
        time.sleep(0.02)
    worker.join()
    split = watch.split()
    assert split["training"] >= 0.1
    assert split["aggregation"] < 0.02


def _work(watch: RoundWatch, seconds: float) -> None:
    with watch.measure("training"):
        time.sleep(seconds)


def test_a_moved_second_leaves_the_sum_as_it_was() -> None:
    watch = RoundWatch(workers=1)
    watch.add("training", 3.0)
    watch.move(1.0, "training", "communication")
    split = watch.split()
    assert (split["training"], split["communication"]) == (2.0, 1.0)


def test_the_parts_of_a_run_add_up_to_the_time_passed() -> None:
    watch = RunWatch()
    with watch.measure("setup"):
        time.sleep(0.02)
    began = time.perf_counter()
    time.sleep(0.03)
    watch.add_round({**dict.fromkeys(ROUND, 0.0), "training": 0.01, "total": 0.01})
    split = watch.split()
    assert tuple(split) == RUN
    assert split["setup"] >= 0.02
    assert split["other"] >= 0.02
    assert sum(split.values()) == pytest.approx(0.02 + time.perf_counter() - began, abs=0.02)
