"""From what the user says to a RunConfig: the options, their defaults, and who overrides whom.

Lowest first: the paper's defaults, the profile, the profile's word on this dataset, on this model,
on this table, a configuration file or a table's cell, the command line.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfl_bench.base import (
    UserError,
    find_yaml,
    meant,
    packaged_names,
    plain_text,
    read_yaml,
    shown,
    unknown,
)
from pfl_bench.config.hyper import Knob, knob, knobs
from pfl_bench.config.run_config import DEALING, SAMPLES

PROFILES = "pfl_bench.config.profiles"
PAPER, OURS = "FedCP paper", "pfl-bench"
DEFAULT_BETA = 0.1
"""The paper's, where none is given."""


@dataclass(frozen=True)
class Options:
    """What a user may set for a run; None means that it follows from the others."""

    algo: str = knob("fedavg", "the algorithm", source=OURS)
    dataset: str = knob("cifar10", "the dataset", source=OURS)
    source: str | None = knob(
        None,
        "embedded stand-in or real data",
        source=OURS,
        choices=("standin", "real"),
    )
    fraction: float = knob(
        1.0, "share of the dataset to use, of every class alike", source=PAPER, low=1e-6, high=1
    )
    image_size: int | None = knob(
        None,
        "reduce images to so many pixels a side, by area means (0 leaves them as they are)",
        source=OURS,
        low=0,
    )
    setting: str = knob(
        "practical",
        "how data is dealt to the clients",
        source=PAPER,
        choices=("practical", "pathological", "iid", "natural"),
        aliases={"dirichlet": "practical", "dir": "practical", "pat": "pathological"},
    )
    beta: float | None = knob(
        None,
        "β of the practical setting, the concentration of its Dirichlet draws "
        f"({DEFAULT_BETA} if not given)",
        source=PAPER,
        low=1e-6,
        high=1e6,
        also=("alpha",),
    )
    clients: int = knob(20, "number of clients N", source=PAPER, low=1, high=100_000)
    of: int | None = knob(
        None,
        "M of N|M: draw the N clients from a partition of M",
        source=PAPER,
        low=1,
        high=100_000,
    )
    classes_per_client: int | None = knob(
        None, "classes on a client, pathological setting", source=PAPER, low=1
    )
    partition: str | None = knob(
        None, "pfllib:PATH uses data and partition made by PFLlib", source=OURS
    )
    partition_seed: int = knob(0, "seed of the partition", source=OURS, low=0)
    model: str | None = knob(None, "the model (by default the dataset's)", source=PAPER)
    rounds: int = knob(2000, "iterations T", source=PAPER, low=1)
    local_epochs: int = knob(1, "local epochs per round", source=PAPER, low=1)
    batch_size: int = knob(10, "batch size", source=PAPER, low=1)
    lr: float | None = knob(
        None,
        "local learning rate η (by default the model's)",
        source=PAPER,
        low=0,
        search=(0.002, 0.5, "log"),
        searched="pfl-bench: holds the rates of all models, and half a decade to each side",
    )
    joining_ratio: str = knob(
        "1", "joining ratio ρ, or a range as 0.5-1 to draw it from each round", source=PAPER
    )
    eval_every: int = knob(1, "rounds between evaluations", source=PAPER, low=1)
    patience: int | None = knob(
        None,
        "stop when the mean of the latest scores has not risen for so many scored rounds (three "
        "times as many before the run has begun to learn)",
        source=OURS,
        low=1,
    )
    validation: float = knob(
        0.0,
        "share of each client's training samples held back to choose the best round by (0: it is "
        "chosen by test accuracy, as published)",
        source=PAPER,
        low=0,
        high=0.9,
    )
    new_clients: int = knob(
        0, "clients K that never join and are scored apart", source=PAPER, low=0, high=99_999
    )
    adapt_epochs: int = knob(
        1, "local epochs of a new client before it is scored", source=OURS, low=0
    )
    bn_stats: str = knob(
        "local",
        "batch-norm statistics: each client's own, or averaged",
        source="the authors' code",
        choices=("local", "average"),
    )
    momentum: float = knob(
        0.0, "momentum of local SGD, anew in every round", source=PAPER, low=0, high=1
    )
    weight_decay: float = knob(0.0, "weight decay of local SGD", source=PAPER, low=0)
    lr_decay: float = knob(
        1.0,
        "factor on the local learning rate from one round to the next",
        source=PAPER,
        low=1e-6,
        high=1,
    )
    block_size: int = knob(
        1,
        "clients trained as one computation (1: one by one); results are the same to rounding",
        source=OURS,
        off=1,
        low=1,
        high=1000,
    )
    seed: int = knob(0, "seed of initialisation, batches and client sampling", source=OURS, low=0)
    record: str = knob("", "series to record, separated by commas", source=OURS)


OPTIONS: Mapping[str, Knob] = knobs(Options)
DATA_OPTIONS = tuple(
    "of" if name == "sampled_from" else name
    for name in (*SAMPLES, *DEALING)
    if name != "data_fingerprint"  # follows from the others
)
"""What decides a run's data and who holds it, as users set it."""
_ALSO = {other: name for name, knob in OPTIONS.items() for other in knob.also}


@dataclass(frozen=True)
class Profile:
    """How much of an experiment to run: overrides for all runs, per dataset, model and table."""

    name: str
    about: str
    run: Mapping[str, Any]
    datasets: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]
    seeds: int = 5
    """Runs per cell of a table."""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    argument: str = ""
    """What stands after `--profile` to get this profile."""
    ranks: bool = True
    """Whether its runs are long enough to say which method is better; if not, no table does."""
    replace_models: Mapping[str, str] = field(default_factory=dict)
    """What is trained in place of a dataset's own model and of one that a table names."""

    def trained_model(self, named: str) -> str:
        return self.replace_models.get(named, named)


def profile_names() -> list[str]:
    return packaged_names(PROFILES)


def default_profile(is_on_real_data: bool) -> str:
    """The profile that is meant for such data, where none is named."""
    return "lite" if is_on_real_data else "quick"


def load_profile(name: str) -> Profile:
    """A built-in profile by name, or one of the user's own by the path of its file."""
    return dataclasses.replace(_read_profile(find_yaml("profile", name, PROFILES)), argument=name)


def _read_profile(path: Path) -> Profile:
    content = read_yaml(path)
    parts = ("about", "seeds", "ranks", "run", "datasets", "models", "tables", "replace_models")
    for key in content:
        if key not in parts:
            raise UserError(f"{str(path)!r}: {unknown('key', key, parts)}")
    run = _options(content, "run", path)
    datasets, models, tables = (
        {name: _options(part, name, path) for name in part}
        for part in (_block(content, key, path) for key in ("datasets", "models", "tables"))
    )
    seeds = content.get("seeds", Profile.seeds)
    if not isinstance(seeds, int) or isinstance(seeds, bool) or not 1 <= seeds <= 1000:
        raise UserError(f"{str(path)!r}: seeds cannot be {shown(seeds)}; allowed: 1 to 1000")
    about = plain_text(content.get("about", ""), f"{str(path)!r}: about")
    replaced = _block(content, "replace_models", path)
    for named, trained in replaced.items():
        if not isinstance(named, str) or not isinstance(trained, str):
            raise UserError(
                f"{str(path)!r}: replace_models cannot have {shown(named)}: {shown(trained)}; "
                "allowed: a model's name and another's"
            )
    ranks = content.get("ranks", Profile.ranks)
    if not isinstance(ranks, bool):
        raise UserError(f"{str(path)!r}: ranks cannot be {shown(ranks)}; allowed: true, false")
    return Profile(
        path.stem, about, run, datasets, models, seeds, tables, ranks=ranks, replace_models=replaced
    )


def _block(content: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """The mapping under `name`, empty where there is none."""
    block = content.get(name) or {}
    if not isinstance(block, dict):
        raise UserError(f"{str(path)!r}: {name} must hold names and values, not {shown(block)}")
    return block


def _options(content: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """The options that a profile has under `name`."""
    block = checked(_block(content, name, path), str(path))
    if "partition" in block:
        raise UserError(f"{str(path)!r}: a partition goes with a run, not with a profile")
    return block


def checked(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options converted to their types; an error names the place, the key and what is allowed."""
    result: dict[str, Any] = {}
    for said, value in values.items():
        key = option_named(said)
        if key not in OPTIONS:
            raise UserError(f"{where}: {unknown('option', said, OPTIONS)}")
        if key in result:
            raise UserError(f"{where}: {key} is given twice")
        if value is None:
            continue
        try:
            result[key] = OPTIONS[key].convert(_spelt(key, value))
        except (ValueError, TypeError, OverflowError):
            raise UserError(f"{where}: {key} cannot be {OPTIONS[key].refusal(value)}") from None
    return result


def option_named(key: str) -> str:
    """The setting that a key means, in any spelling; the key itself where it means none."""
    word = meant(key, [*OPTIONS, *_ALSO])
    return _ALSO.get(word, word)


def _spelt(key: str, value: Any) -> Any:
    """A YAML list where the command line has a text: several series, or a range of ratios."""
    separators = {"record": ",", "joining_ratio": "-"}
    if isinstance(value, list) and key in separators:
        return separators[key].join(map(str, value))
    return value


def merge(profile: Profile, chosen: Mapping[str, Any], default_model: str) -> Options:
    """The options of a run; `chosen` (already checked) wins over the profile.

    A model that was chosen is meant; only the dataset's own is what the profile may replace."""
    dataset = chosen.get("dataset", profile.run.get("dataset", OPTIONS["dataset"].default))
    on_dataset = profile.datasets.get(meant(dataset, profile.datasets), {})
    said = {**profile.run, **on_dataset, **chosen}
    model = said.get("model") or profile.trained_model(default_model)
    layers = (
        profile.run,
        on_dataset,
        profile.models.get(meant(model, profile.models), {}),
        {k: v for k, v in chosen.items() if v is not None},
    )
    values: dict[str, Any] = {"model": model}
    for layer in layers:
        values |= checked(layer, f"profile {profile.name}")
    return dataclasses.replace(Options(), **values)


def parse_ratio(text: str) -> tuple[float, float]:
    """A joining ratio or a range of them: 1, 0.5 or 0.5-1."""
    low, *high = re.split(r"(?<![eE])-", str(text), maxsplit=1)  # 1e-1 is one number
    try:
        bounds = (float(low), float(high[0] if high else low))
    except ValueError:
        bounds = (0.0, 0.0)
    if not 0 < bounds[0] <= bounds[1] <= 1:
        raise UserError(
            f"joining_ratio cannot be {shown(text)}; allowed: a number in (0, 1], or a range as "
            "0.5-1"
        )
    return bounds
