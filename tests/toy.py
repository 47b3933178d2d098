"""The small problems of `pfl_bench.testing`, under a short name for the tests beside this file."""

from pfl_bench.testing import (
    toy_algorithm,
    toy_client,
    toy_config,
    toy_dataset,
    toy_partition,
    toy_run,
    toy_simulator,
    toy_text,
)

__all__ = [
    "toy_algorithm",
    "toy_client",
    "toy_config",
    "toy_dataset",
    "toy_partition",
    "toy_run",
    "toy_simulator",
    "toy_text",
]
