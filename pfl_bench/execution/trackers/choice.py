"""Trackers by name, as `--track NAME` or `--track NAME:PLACE` has them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence

from pfl_bench.base import UserError, meant, shown, unknown
from pfl_bench.execution.observer import Observer, Observers
from pfl_bench.execution.request import Request
from pfl_bench.execution.trackers.tracker import Tracker
from pfl_bench.plugins import offered
from pfl_bench.store import Store

ENTRY_POINTS = "pfl_bench.trackers"
_OURS = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WandB"}
_HERE = {"tensorboard": "tensorboard", "mlflow": "mlflow_runs", "wandb": "wandb_runs"}


def check_trackers(texts: Sequence[str]) -> None:
    """Refuse, before anything is computed, what is unknown, incomplete or not installed."""
    for text in texts:
        _named(text)[0].check_installed()


@contextlib.contextmanager
def tracking(texts: Sequence[str], requests: Sequence[Request], store: Store) -> Iterator[Observer]:
    """All of these as one, told of the runs and their tags."""
    names = {one.config.request: store.folder(one.config).name for one in requests}
    tags = {one.config.request: dict(one.tags) for one in requests}
    check_trackers(texts)
    trackers = [kind(place, names, tags) for kind, place in map(_named, texts)]
    try:
        yield Observers(*trackers)
    finally:
        for tracker in trackers:
            tracker.close([one.config for one in requests])


def _named(text: str) -> tuple[type[Tracker], str]:
    name, _, place = text.partition(":")
    offers = offered(ENTRY_POINTS)
    names = sorted({*offers, *_OURS})
    name = meant(name, names)
    if name not in names:
        raise unknown("tracker", name, names)
    kind = _ours(name) if name in _OURS else _checked(name, offers[name]())
    if kind.place_is_needed and not place:
        raise UserError(f"--track cannot be {shown(text)}; allowed: {name}:{kind.place_is_needed}")
    return kind, place


def _ours(name: str) -> type[Tracker]:
    module = importlib.import_module(f"pfl_bench.execution.trackers.{_HERE[name]}")
    kind: type[Tracker] = getattr(module, _OURS[name])
    return kind


def _checked(name: str, kind: object) -> type[Tracker]:
    if not (isinstance(kind, type) and issubclass(kind, Tracker)):
        raise UserError(f"what is offered as the tracker {name!r} is not a subclass of Tracker")
    return kind
