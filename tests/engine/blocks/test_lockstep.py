"""Jobs that wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from pfl_bench.engine.blocks.lockstep import in_lockstep


def job(times: int, name: str, meet: Callable[[str], None]) -> str:
    for number in range(times):
        meet(f"{name}{number}")
    return name


def test_what_is_asked_for_is_done_for_all_that_still_go_on() -> None:
    met: list[list[tuple[int, str]]] = []
    jobs = [partial(job, times, name) for times, name in ((2, "a"), (0, "b"), (3, "c"))]
    assert in_lockstep(jobs, met.append) == ["a", "b", "c"]
    assert met == [[(0, "a0"), (2, "c0")], [(0, "a1"), (2, "c1")], [(2, "c2")]]


def test_one_job_runs_at_a_time_and_in_order() -> None:
    trace: list[int] = []

    def traced(number: int, meet: Callable[[str], None]) -> None:
        trace.append(number)
        meet("")
        trace.append(number)

    in_lockstep([partial(traced, n) for n in range(3)], lambda asked: trace.append(-1))
    assert trace == [0, 1, 2, -1, 0, 1, 2]


@pytest.mark.parametrize("where", ["job", "together"])
def test_an_error_ends_all_jobs_and_leaves_no_thread(where: str) -> None:
    before, cleaned = threading.active_count(), []

    def careful(meet: Callable[[str], None]) -> None:
        try:
            meet("")
        finally:
            cleaned.append(1)

    def failing(meet: Callable[[str], None]) -> None:
        if where == "job":
            raise ValueError(where)
        meet("")

    def together(asked: list[tuple[int, str]]) -> None:
        raise ValueError(where)

    with pytest.raises(ValueError, match=where):
        in_lockstep([careful, failing, careful], together)
    assert threading.active_count() == before
    assert len(cleaned) == (1 if where == "job" else 2)
