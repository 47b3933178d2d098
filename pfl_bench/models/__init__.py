"""Backbones and what they are made of: layers, losses, and the network over one flat vector."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.models.backbones import (
        MODELS,
        TEXT_LENGTH,
        Inputs,
        Model,
        build_model,
        inputs_of,
        model_spec,
        seeded,
        useful_workers,
    )
    from pfl_bench.models.layers import WideLinear, product_by_rows, watched, wide_order
    from pfl_bench.models.losses import balanced_softmax, mmd, rows_by_class
    from pfl_bench.models.network import Network
    from pfl_bench.models.rules import RULES
    from pfl_bench.models.stacked import Stack, StackedNetwork
    from pfl_bench.models.unrolled import UnrolledNetwork

__getattr__, __dir__, __all__ = face(__name__, __file__)
