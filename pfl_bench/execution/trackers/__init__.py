"""Whoever keeps the values of runs too: TensorBoard, MLflow, Weights & Biases, a plugin."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.execution.trackers.choice import check_trackers, tracking
    from pfl_bench.execution.trackers.tracker import Tracked, Tracker, scalars

__getattr__, __dir__, __all__ = face(__name__, __file__)
