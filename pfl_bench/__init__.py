"""pfl-bench: a benchmark suite for personalized federated learning.

Importing the package is cheap: torch is imported by the modules that compute.
"""

from pfl_bench.base import VERSION as __version__

__all__ = ["__version__"]
