"""A stream of the card for each worker, so that what clients compute can overlap there.

Work of one stream is done in its order; between streams there is none, unless one waits for an
event of the other. So whoever hands something to another thread also hands over the event that ends
its making. On a processor there are no streams and nothing to wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from pfl_bench.device.values import tensors_in


class WorkerPool(ThreadPoolExecutor):
    """The threads on which clients train. On a card each has a stream of its own: a job begins
    after all that was asked for before it was submitted, and whoever takes its result goes on after
    the job."""

    def __init__(self, workers: int, device: torch.device, card: Any = torch.cuda):
        super().__init__(workers, thread_name_prefix="client")
        self._device, self._card = device, card
        self._own = threading.local()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        if self._device.type != "cuda":
            return super().submit(fn, *args, **named)
        ready = self._card.current_stream(self._device).record_event()
        made = super().submit(self._on_own_stream, ready, fn, args, named)
        return _Handed(made, self._device, self._card)

    def _on_own_stream(
        self, ready: Any, fn: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, Any]:
        if not hasattr(self._own, "stream"):
            self._own.stream = self._card.Stream(self._device)
        stream = self._own.stream
        with self._card.stream(stream):
            stream.wait_event(ready)
            result = fn(*args, **named)
            return result, stream.record_event()


class _Handed:
    """The future of a job on another stream."""

    def __init__(self, made: Future[tuple[Any, Any]], device: torch.device, card: Any):
        self._made, self._device, self._card = made, device, card

    def result(self, timeout: float | None = None) -> Any:
        value, done = self._made.result(timeout)
        here = self._card.current_stream(self._device)
        here.wait_event(done)
        for tensor in tensors_in(value):
            if tensor.device.type == "cuda":
                # The worker's stream must not have its memory back before this one has read it.
                tensor.record_stream(here)
        return value

    def cancel(self) -> bool:
        return self._made.cancel()


def this_stream(
    device: torch.device, card: Any = torch.cuda
) -> Callable[[], AbstractContextManager[Any]]:
    """What lets another thread, which works for this one, go on with this one's stream."""
    if device.type != "cuda":
        return nullcontext
    return partial(card.stream, card.current_stream(device))


def handed_over(device: torch.device, card: Any = torch.cuda) -> Any:
    """What whoever takes a thing over from this thread has to wait for; None on a processor."""
    return card.current_stream(device).record_event() if device.type == "cuda" else None


def taken_over(event: Any, device: torch.device, card: Any = torch.cuda) -> None:
    """Go on, on this thread's stream, after what was handed over."""
    if event is not None:
        card.current_stream(device).wait_event(event)
