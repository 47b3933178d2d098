"""Stand-ins for the datasets, drawn on the spot."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.data.standins import images, text

__getattr__, __dir__, __all__ = face(__name__, __file__)
