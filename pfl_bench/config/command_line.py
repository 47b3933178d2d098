"""The command that makes a stored run again: every setting spelt out, so that neither a default nor
a profile has a say.

Reads a configuration; what the flags mean is in `options` and `execution.configuration`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pfl_bench.config.options import DATA_OPTIONS
from pfl_bench.config.run_config import RunConfig

PFLLIB_PATH = "pfllib:PATH"
"""Stands for the place of a PFLlib partition, which a configuration does not know."""

_FLAGS = (
    *DATA_OPTIONS, "model", "rounds", "local_epochs", "batch_size", "lr", "momentum",
    "weight_decay", "lr_decay", "joining_ratio", "eval_every", "patience", "validation",
    "new_clients", "adapt_epochs", "bn_stats", "block_size", "seed", "record",
)  # fmt: skip


def run_command(config: RunConfig) -> str | None:
    """`pfl-bench run …` for one configuration; None where no honest command can be given."""
    words = ["pfl-bench", "run", "--algo", config.algo]
    if config.plugin is not None:
        words += ["--plugin", f"{config.algo}.py"]
    for name, value in config.hyper.items():
        if value is not None:  # follows from another setting, which is given
            words += ["--set", f"{name}={_text(value)}"]
    for name, value in _options(config):
        words += [f"--{name.replace('_', '-')}", value]
    command = shlex.join(words)
    # A control character in a stored name could end the quoting of a terminal that it is pasted in.
    return command if command.isprintable() else None


def requirements(config: RunConfig) -> str | None:
    """What the command takes for granted, in a sentence; None where it needs nothing else."""
    wanted = []
    if config.source == "real":
        wanted.append(
            f"the prepared data of {config.dataset} with the fingerprint {config.data_fingerprint} "
            "(--data-dir or PFL_BENCH_DATA)"
        )
    if config.source == "pfllib":
        wanted.append("the folder of the PFLlib partition in place of PATH")
    if config.plugin is not None:
        wanted.append(
            f"the plugin's file with the fingerprint {config.plugin} "
            "(leave --plugin out where it is installed as a package)"
        )
    return f"It needs {' and '.join(wanted)}." if wanted else None


def _options(config: RunConfig) -> Iterator[tuple[str, str]]:
    """The flags that have a value, in the order in which people think of them."""
    is_pfllib = config.source == "pfllib"
    if is_pfllib:
        yield "partition", PFLLIB_PATH
    values: dict[str, Any] = {
        **config.to_dict(),
        "of": config.sampled_from,
        "image_size": config.image_size or 0,  # a profile may have another word on it
        "joining_ratio": _ratio(*config.joining_ratio),
        "record": ",".join(config.record) or None,
    }
    for name in _FLAGS:
        if values[name] is not None and not (is_pfllib and name in DATA_OPTIONS):
            yield name, _text(values[name])


def _ratio(low: float, high: float) -> str:
    """The ratio without exponents: their minus would be taken for the dash of a range."""
    first, second = (format(Decimal(repr(bound)), "f") for bound in (low, high))
    return first if low == high else f"{first}-{second}"


def _text(value: Any) -> str:
    """A value as typed; floats to the last bit."""
    return str(value).lower() if isinstance(value, bool) else str(value)
