"""What a run asks of the processor or the card: the same bits each time, and few waits."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.device.setup import TF32, make_repeatable
    from pfl_bench.device.streams import WorkerPool, handed_over, taken_over, this_stream
    from pfl_bench.device.values import exact, fetched, put

__getattr__, __dir__, __all__ = face(__name__, __file__)
