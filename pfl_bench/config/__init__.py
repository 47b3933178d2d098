"""From what the user says to one `RunConfig`: hyper-parameters and options with their defaults,
profiles, the configuration and the command line that makes it again.
"""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.config.command_line import requirements, run_command
    from pfl_bench.config.hyper import Knob, NoKnobs, as_dict, at_default, knob, knobs, resolve
    from pfl_bench.config.options import (
        DATA_OPTIONS,
        DEFAULT_BETA,
        OPTIONS,
        Options,
        Profile,
        checked,
        default_profile,
        load_profile,
        merge,
        option_named,
        parse_ratio,
        profile_names,
    )
    from pfl_bench.config.run_config import (
        BOOKKEEPING,
        CONFIG_VERSION,
        DEALING,
        ENDS,
        SAMPLES,
        SOURCE_LABELS,
        RunConfig,
    )
    from pfl_bench.config.search import Search

__getattr__, __dir__, __all__ = face(__name__, __file__)
