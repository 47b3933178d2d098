"""Where algorithms come from, what they must hold, and small problems to try them on."""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.plugins.conformance import AlgorithmConformance, assert_same
    from pfl_bench.plugins.inspection import AGNEWS_VOCABULARY, footprint
    from pfl_bench.plugins.offers import offered
    from pfl_bench.plugins.registry import (
        algorithm_named,
        algorithm_names,
        broken_plugins,
        check_plugin,
        check_taken,
        is_registered,
        load_algorithm,
        load_plugin,
        method_facts,
        plugin_fingerprint,
        register,
        taken,
    )
    from pfl_bench.plugins.testing import (
        toy_algorithm,
        toy_client,
        toy_config,
        toy_dataset,
        toy_partition,
        toy_run,
        toy_server,
        toy_simulator,
        toy_text,
    )

__getattr__, __dir__, __all__ = face(__name__, __file__)
