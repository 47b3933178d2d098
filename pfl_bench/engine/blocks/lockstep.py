"""Jobs that run until each asks for the same thing, which is then done for all of them at once.

Every job has a thread of its own, and one of them runs at a time, in their order: the threads are
there to be stopped in the middle, not to compute in parallel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

A = TypeVar("A")
T = TypeVar("T")

Meet = Callable[[A], None]
"""Called by a job with what it asks for; comes back when that is done."""


class _Abandoned(BaseException):
    """Another job failed: this one will not be continued."""


class _Lane(Generic[A, T]):
    """A job in progress."""

    def __init__(self, job: Callable[[Meet[A]], T]):
        self._job = job
        self._may_run, self._is_waiting = threading.Semaphore(0), threading.Semaphore(0)
        self._is_abandoned = False
        self._asked: list[A] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=threading.current_thread().name)
        self._thread.start()

    def _work(self) -> None:
        self._may_run.acquire()
        try:
            if not self._is_abandoned:
                self.result = self._job(self._meet)
        except _Abandoned:
            pass
        except BaseException as error:
            self.error = error
        self._is_waiting.release()

    def _meet(self, asked: A) -> None:
        self._asked.append(asked)
        self._is_waiting.release()
        self._may_run.acquire()
        if self._is_abandoned:
            raise _Abandoned

    def advance(self) -> list[A]:
        """Let the job run until it asks for something, which is returned, or is done."""
        self._asked.clear()
        self._may_run.release()
        self._is_waiting.acquire()
        if self.error is not None:
            raise self.error
        return list(self._asked)

    def end(self) -> None:
        """See the thread off, whether its job is done or not."""
        self._is_abandoned = True
        self._may_run.release()
        self._thread.join()


def in_lockstep(
    jobs: Sequence[Callable[[Meet[A]], T]], together: Callable[[list[tuple[int, A]]], None]
) -> list[T]:
    """The results of the jobs. `together` does what those that are not done yet ask for, each
    given with the number of its job."""
    lanes: list[_Lane[A, T]] = [_Lane(job) for job in jobs]
    try:
        going = list(enumerate(lanes))
        while going:
            asked = [(number, a) for number, lane in going for a in lane.advance()]
            if asked:
                together(asked)
            going = [(number, lanes[number]) for number, _ in asked]
    finally:
        for lane in lanes:
            lane.end()
    return [lane.result for lane in lanes]
