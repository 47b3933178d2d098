"""What a user says of a run, in Python, in a file and on the command line, and the configurations
that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.base import UserError, shown, unknown, user_path
from pfl_bench.config import (
    OPTIONS,
    Profile,
    checked,
    default_profile,
    load_profile,
    option_named,
)

if TYPE_CHECKING:
    from pfl_bench.config import RunConfig

MOST_SEEDS = 1000
LONGEST_SEED = 18
COMPARING = ("validation", "new_clients", "adapt_epochs")
"""The options of a run that make a comparison fair, for every cell of a table."""

# What a configuration file may hold beside the options themselves.
_FILE_ONLY = ("set", "profile", "seeds")


@dataclass(frozen=True)
class Asked:
    """What a user says of a run, in a file and on the command line."""

    profile: Profile
    chosen: dict[str, Any]
    """Options."""
    hyper: dict[str, Any]
    seeds: tuple[int, ...] | None
    """Which, counted from the setting `seed`; None where that is left to the command."""

    def configs(self, algos: Sequence[str], data_dir: Path) -> list[RunConfig]:
        """A configuration for each method and seed. Of several methods, each takes the
        hyper-parameters that it has."""
        from pfl_bench.execution import configure
        from pfl_bench.plugins import check_taken, taken

        if len(algos) > 1:
            check_taken(algos, self.hyper)
        found = []
        for algo in algos:
            hyper = taken(algo, self.hyper) if len(algos) > 1 else self.hyper
            first = configure(self.profile, {**self.chosen, "algo": algo}, hyper, data_dir)
            found += [replace(first, seed=first.seed + k) for k in self.seeds or (0,)]
        return found


def gather(
    config_file: str | None,
    said: Mapping[str, Any],
    hyper: Mapping[str, Any],
    data_dir: str | Path | None,
    profile: str | None,
    seeds: Any = None,
) -> Asked:
    """What the file and the flags say; flags win, and an empty key says nothing. A folder of real
    data given by hand is meant to be used."""
    from pfl_bench.base import read_yaml

    content = {} if config_file is None else read_yaml(user_path(config_file))
    extra = {key: content.pop(key) for key in _FILE_ONLY if key in content}
    for key in content:
        if option_named(key) not in OPTIONS:
            raise UserError(f"{config_file!r}: {unknown('key', key, [*OPTIONS, *_FILE_ONLY])}")
    own = extra.get("set") or {}
    if not isinstance(own, dict):
        raise UserError(f"{config_file!r}: set must hold names and values, not {shown(own)}")
    chosen = checked(content, repr(config_file))
    chosen |= checked({k: v for k, v in said.items() if v is not None}, "this run")
    if data_dir is not None and not {"source", "partition"} & chosen.keys():
        chosen["source"] = "real"
    named = extra.get("profile") if profile is None else profile
    wanted = extra.get("seeds") if seeds is None else seeds
    which = None if wanted is None else seeds_named(wanted)
    if which is not None and not _is_number(wanted):
        if "seed" in chosen:
            raise UserError(f"seed {chosen['seed']} and a list of seeds exclude each other")
        chosen["seed"] = 0
    followed = profile_for(None if named is None else str(named), [chosen])
    return Asked(followed, chosen, {**own, **hyper}, which)


def profile_for(named: str | None, runs: Iterable[Mapping[str, Any]]) -> Profile:
    """The profile that is named; where none is, the one for the data of these runs, each told by
    its options. Stand-ins among real data make it the one for stand-ins, which takes both."""
    return load_profile(default_profile(all(map(_is_real, runs))) if named is None else named)


def _is_real(chosen: Mapping[str, Any]) -> bool:
    """Whether a run takes real data whatever its profile: said so, dealt by others, or with no
    stand-in."""
    from pfl_bench.data import has_standin

    if (source := chosen.get("source")) is not None:
        return bool(source == "real")
    dataset = chosen.get("dataset") or OPTIONS["dataset"].default
    return chosen.get("partition") is not None or not has_standin(str(dataset))


def seeds_named(value: Any) -> tuple[int, ...]:
    """So many seeds from 0 on, or those of a list: 3, "0,1,2", [0, 1, 2]."""
    items = value if isinstance(value, list) else str(value).split(",")
    texts = [str(item).strip() for item in items]
    if all(text.isdecimal() and len(text) <= LONGEST_SEED for text in texts):
        numbers = [int(text) for text in texts]
        if len(texts) == 1 and _is_number(value) and 1 <= numbers[0] <= MOST_SEEDS:
            return tuple(range(numbers[0]))
        if not _is_number(value) and len(set(numbers)) == len(numbers) <= MOST_SEEDS:
            return tuple(numbers)
    raise UserError(
        f"seeds cannot be {shown(value)}; allowed: a whole number from 1 to {MOST_SEEDS}, or a "
        "list of different ones as 0,1,2"
    )


def _is_number(value: Any) -> bool:
    """Whether it says how many seeds rather than which."""
    return not isinstance(value, list) and "," not in str(value)
