"""The attack on what clients send, and how close it comes."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.privacy.audit import Attack, attacked, check_attackable
    from pfl_bench.privacy.threat import Threat, with_attack

__getattr__, __dir__, __all__ = face(__name__, __file__)
