"""What knows nothing of learning: mistakes of the user, files, paths, YAML, seeds, processes,
the terminal and the style of pictures.
"""

from typing import TYPE_CHECKING

from pfl_bench.base.face import face

if TYPE_CHECKING:
    from pfl_bench.base import paths, plot_style, seeds
    from pfl_bench.base.errors import (
        UserError,
        is_out_of_memory,
        nearest,
        plain_text,
        reason,
        shown,
        unknown,
    )
    from pfl_bench.base.files import (
        IrregularFile,
        append_to,
        irregularity,
        open_regular,
        read_regular,
        replacing,
        size_in_words,
        write_atomically,
    )
    from pfl_bench.base.paths import cache_dir, data_dir, results_dir, user_path
    from pfl_bench.base.plot_style import COLUMN, FORMATS, PAGE, picture_format
    from pfl_bench.base.processes import heed_no_more, is_alive, obey_parent, terminable
    from pfl_bench.base.seeds import numpy_generator
    from pfl_bench.base.spelling import GREEK, meant, plain, typed
    from pfl_bench.base.streams import guarded, printable
    from pfl_bench.base.terminal import standard_error, standard_output
    from pfl_bench.base.version import VERSION, install_command
    from pfl_bench.base.yamlfile import find_yaml, packaged_names, read_yaml

__getattr__, __dir__, __all__ = face(__name__, __file__)
