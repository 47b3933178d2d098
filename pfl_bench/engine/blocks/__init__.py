"""Clients in blocks: several trained as one computation, without their algorithm's knowing."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.engine.blocks.forming import windows
    from pfl_bench.engine.blocks.lockstep import Meet, in_lockstep
    from pfl_bench.engine.blocks.recording import Unstackable
    from pfl_bench.engine.blocks.training import Asked, Block, Found

__getattr__, __dir__, __all__ = face(__name__, __file__)
