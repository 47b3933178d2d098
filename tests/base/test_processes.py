"""Whether another process is at work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pfl_bench.base.processes import is_alive


def test_this_process_is_alive_and_so_is_one_that_runs_under_another_name() -> None:
    assert is_alive(os.getpid())
    wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(wait, stdin=subprocess.PIPE) as other:
        assert is_alive(other.pid)


def test_a_process_that_has_ended_is_not_even_before_its_parent_asks_how() -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("this system does not tell of processes that have ended and were not asked for")
    with subprocess.Popen([sys.executable, "-c", ""]) as other:
        deadline = time.monotonic() + 30
        while is_alive(other.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_alive(other.pid)
        os.kill(other.pid, 0)  # its number is still taken
    assert not is_alive(other.pid)


@pytest.mark.parametrize("number", [2**31 - 1, 10**400])
def test_a_number_that_no_process_has_is_not(number: int) -> None:
    assert not is_alive(number)
