"""pfl-bench itself, in a process like the others'."""

from __future__ import annotations

import sys
from pathlib import Path

from common import problem, serve

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.workloads import CIFAR, Workload


def main() -> None:
    given = problem()
    rounds = Workload(given.method, CIFAR, len(given.y)).simulator(int(sys.argv[2])).rounds()
    serve(lambda: next(rounds).accuracy)


main()
