"""Datasets by name, what of them is cached, and how they are dealt to the clients."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.data import convert
    from pfl_bench.data.dataset import Card, Dataset, DatasetSpec
    from pfl_bench.data.imagesize import reduced_shape
    from pfl_bench.data.notes import note, write_note
    from pfl_bench.data.partition import (
        NATURAL,
        SETTINGS,
        Partition,
        make_partition,
        natural_partition,
        subset,
    )
    from pfl_bench.data.pfllib import read_pfllib
    from pfl_bench.data.pfllib_export import write_pfllib
    from pfl_bench.data.registry import (
        broken,
        card,
        check_name,
        describe,
        fingerprint,
        has_standin,
        load,
        own_names,
        problem,
        specs,
        title,
    )
    from pfl_bench.data.roles import Roles, check_new_clients, roles_of
    from pfl_bench.data.text import Columns

__getattr__, __dir__, __all__ = face(__name__, __file__)
