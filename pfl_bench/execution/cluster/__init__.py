"""Runs on the nodes of a Ray cluster."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.execution.cluster.backend import ray_cluster
    from pfl_bench.execution.cluster.connection import require_ray

__getattr__, __dir__, __all__ = face(__name__, __file__)
