"""A card told to compute the same bits each time.

Not run on a card by us: `pfl-bench doctor` checks on the user's.
"""

from __future__ import annotations

import os

import torch

from pfl_bench.base import UserError

TF32 = "PFL_BENCH_TF32"
"""Set to 1, products and convolutions on a card are rounded to ten bits first; results say so."""
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACES = (":4096:8", ":16:8")
"""With these cuBLAS takes its sums in one order, whichever streams run beside each other."""


def make_repeatable(device: torch.device) -> None:
    """Have `device` compute the same bits each time: before its first product, because cuBLAS looks
    at its settings once."""
    if device.type != "cuda":
        return
    chosen = os.environ.setdefault(_WORKSPACE, _WORKSPACES[0])
    if chosen not in _WORKSPACES:
        raise UserError(
            f"{_WORKSPACE} is {chosen!r}, with which two runs on a card differ; allowed: "
            f"{', '.join(_WORKSPACES)}, or leave it unset"
        )
    torch.use_deterministic_algorithms(True)
    # Whoever reads memory before writing it would be found by this, at the cost of writing it all.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False  # it times algorithms and takes the one that won
    is_coarse = os.environ.get(TF32) == "1"
    torch.backends.cudnn.allow_tf32 = is_coarse
    torch.set_float32_matmul_precision("high" if is_coarse else "highest")
