"""What drivers share: the problem as arrays, and laps on demand.

A driver is told "lap" on its standard input and answers with a line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable

import numpy as np


class Problem:
    """Samples as floats in [-1, 1], channels first; who has which; initial model and method."""

    def __init__(self, path: str):
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        self.x = np.ascontiguousarray(
            arrays["x"].astype(np.float32).transpose(0, 3, 1, 2) / 127.5 - 1
        )
        self.y = arrays["y"].astype(np.int64)
        self.lr, self.batch_size = float(arrays["lr"]), int(arrays["batch_size"])
        self.method, self.hyper = str(arrays["method"]), json.loads(str(arrays["hyper"]))
        self.rounds = int(arrays["rounds"])
        self.clients = range(int(arrays["clients"]))
        self.train = [arrays[f"train/{k}"] for k in self.clients]
        self.test = [arrays[f"test/{k}"] for k in self.clients]
        self.model = {k.removeprefix("model/"): v for k, v in arrays.items() if k[:6] == "model/"}

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.x[rows], self.y[rows]


def problem() -> Problem:
    return Problem(sys.argv[1])


def processor_seconds() -> float:
    """Of this process and those of its children that have ended."""
    return sum(os.times()[:4])


class Laps:
    """The driver's end of the conversation."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever else is printed goes to the log
        self._began: tuple[float, float] | None = None

    def wait(self) -> None:
        """Until the next lap is asked for; the process ends when none is."""
        if not sys.stdin.readline():
            self._out.close()
            os._exit(0)
        self._began = time.perf_counter(), processor_seconds()

    def finish(self, accuracy: float) -> None:
        assert self._began is not None
        self._tell(
            seconds=time.perf_counter() - self._began[0],
            processor=processor_seconds() - self._began[1],
            accuracy=accuracy,
            memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )

    def ready(self) -> None:
        self._tell(ready=True)

    def _tell(self, **values: object) -> None:
        self._out.write(json.dumps(values) + "\n")
        self._out.flush()


def serve(lap: Callable[[], float]) -> None:
    """Run `lap`, which returns the accuracy, whenever it is asked for."""
    laps = Laps()
    laps.ready()
    while True:
        laps.wait()
        laps.finish(lap())
