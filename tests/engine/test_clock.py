"""Time in which a process is stopped is not time that it ran."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from pfl_bench.engine.clock import RunningClock

PROGRAM = """
import time
from pfl_bench.engine.clock import RunningClock
clock = RunningClock(longest=1.0, tick=0.05)
began, wall = clock(), time.perf_counter()
print("begun", flush=True)
input()
print(clock() - began, time.perf_counter() - wall)
"""


class Hands:
    """A clock that is set by hand."""

    time = 0.0

    def __call__(self) -> float:
        return self.time


def test_a_gap_that_no_load_explains_did_not_pass() -> None:
    hands = Hands()
    clock = RunningClock(hands, longest=5.0, tick=None)
    began = clock()
    readings = []
    for step in (1.0, 4.9, 100.0, 2.0, 5.1):
        hands.time += step
        readings.append(clock() - began)
    assert readings == pytest.approx([1.0, 5.9, 5.9, 7.9, 7.9])


def test_the_time_before_the_first_look_is_nothing_that_was_missed() -> None:
    hands = Hands()
    clock = RunningClock(hands, longest=5.0, tick=None)
    hands.time = 1000.0
    began = clock()
    hands.time = 1003.0
    assert clock() - began == pytest.approx(3.0)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system cannot stop a process")
def test_a_stopped_process_does_not_age() -> None:
    with subprocess.Popen(
        (sys.executable, "-c", PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        ran, passed = map(float, process.stdout.readline().split())
    assert passed >= 2.5
    assert ran <= passed - 2.0
