"""From options to something that can run: the configuration, its data and its partition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pfl_bench import data
from pfl_bench.base import UserError, meant, shown, unknown, user_path
from pfl_bench.config import (
    DATA_OPTIONS,
    DEALING,
    DEFAULT_BETA,
    SAMPLES,
    Options,
    Profile,
    RunConfig,
    checked,
    merge,
    parse_ratio,
)
from pfl_bench.data import (
    NATURAL,
    Dataset,
    DatasetSpec,
    Partition,
    check_new_clients,
    make_partition,
    natural_partition,
    read_pfllib,
    subset,
)
from pfl_bench.engine import RECORDABLE
from pfl_bench.models import MODELS, model_spec
from pfl_bench.plugins import load_algorithm, method_facts

Fingerprint = Callable[[str, str, Path], str]
"""Gives the fingerprint of a dataset by name, source and data folder."""

PFLLIB = "pfllib:"


def configure(
    profile: Profile,
    chosen: Mapping[str, Any],
    hyper: Mapping[str, Any],
    data_dir: Path,
    fingerprint: Fingerprint | None = None,
) -> RunConfig:
    """The configuration of a run from what the user chose; raises UserError where it cannot be.

    `fingerprint` tells the data's for those who read results and need not have the data."""
    chosen = checked(chosen, "this run")
    # A misspelt model or dataset would never apply and nobody would notice.
    for model in (*profile.models, *profile.replace_models, *profile.replace_models.values()):
        model_spec(model)
    for dataset in profile.datasets:
        data.describe(dataset, data_dir)
    partition = chosen.get("partition")
    if partition is not None:
        return _configure_pfllib(profile, chosen, hyper, pfllib_path(partition))
    name = chosen.get("dataset") or profile.run.get("dataset") or Options().dataset
    spec = data.describe(name, data_dir)
    name = spec.name
    options = merge(profile, {**chosen, "dataset": name}, default_model=spec.model)
    source = options.source or "real"
    if source == "standin" and spec.standin is None and "source" not in chosen:
        source = "real"
    if options.setting == NATURAL:
        clients, of = _natural_clients(options, chosen, spec)
        options = replace(options, clients=clients, of=of)
    _check_consistency(options, chosen)
    practical, pathological = (options.setting == s for s in ("practical", "pathological"))
    per_client = options.classes_per_client or spec.classes_per_client
    config = _config(
        options,
        hyper,
        dataset=name,
        source=source,
        data_fingerprint="",
        setting=options.setting,
        beta=(options.beta or DEFAULT_BETA) if practical else None,
        clients=options.clients,
        sampled_from=options.of if options.of != options.clients else None,
        classes_per_client=per_client if pathological else None,
        image_size=_image_size(options.image_size, spec, "image_size" in chosen),
    )
    # Last, because a stand-in may have to be drawn for it: a mistake is told before that.
    tell = fingerprint or data.fingerprint
    return replace(config, data_fingerprint=tell(name, source, data_dir))


def _natural_clients(
    options: Options, chosen: Mapping[str, Any], spec: DatasetSpec
) -> tuple[int, int]:
    """How many clients take part, and how many the data come with."""
    total = spec.clients
    if total is None:
        raise UserError(
            f"{spec.title} does not say to whom its samples belong, so that there is no natural "
            "setting; a set of your own does if prepared with --client-column"
        )
    if chosen.get("of", total) != total:
        raise UserError(f"of cannot be {chosen['of']}: {spec.title} comes with {total} clients")
    wanted = options.clients if "clients" in chosen else total
    if wanted > total:
        raise UserError(f"clients cannot be {wanted}: {spec.title} comes with {total}")
    return wanted, total


def _configure_pfllib(
    profile: Profile, chosen: Mapping[str, Any], hyper: Mapping[str, Any], path: Path
) -> RunConfig:
    """A partition from outside brings its own data and decides all that belongs to it."""
    for key in DATA_OPTIONS:
        if key in chosen:
            raise UserError(
                f"{key} cannot be {chosen[key]!r}: the partition {str(path)!r} decides it"
            )
    dataset, partition = _pfllib(path)
    default_model = next(n for n, spec in MODELS.items() if spec.kind == dataset.kind)
    options = merge(profile, {**chosen, "dataset": dataset.name}, default_model=default_model)
    return _config(
        replace(options, fraction=1.0, partition_seed=Options().partition_seed),
        hyper,
        dataset=dataset.name,
        source="pfllib",
        data_fingerprint=f"{dataset.fingerprint}-{partition.fingerprint}",
        setting="pfllib",
        beta=None,
        clients=partition.clients,
        sampled_from=None,
        classes_per_client=None,
    )


def _image_size(size: int | None, spec: DatasetSpec, is_chosen: bool) -> int | None:
    """The side to which images are reduced; None where they stay as they are.

    What a profile says for all datasets leaves texts and smaller images alone; what was chosen for
    this run is refused there."""
    if not size:
        return None
    if spec.shape is None:
        refusal = f"image_size {size} belongs to images, and {spec.name!r} holds texts"
    elif size > min(spec.shape[1:]):
        height, width = spec.shape[1:]
        refusal = (
            f"image_size cannot be {size}: images are only reduced, and those of {spec.name!r} "
            f"have {height}×{width} pixels"
        )
    else:
        return None if spec.shape[1:] == (size, size) else size
    if is_chosen:
        raise UserError(refusal)
    return None


def _config(options: Options, hyper: Mapping[str, Any], **facts: Any) -> RunConfig:
    assert options.model is not None
    model = meant(options.model, MODELS)
    spec = model_spec(model)
    algorithm = load_algorithm(options.algo)
    record = tuple(sorted({name.strip() for name in options.record.split(",")} - {""}))
    _check_record(record, {**RECORDABLE, **algorithm.recordable}, options.algo)
    check_new_clients(options.new_clients, facts["clients"])
    return RunConfig(
        **method_facts(options.algo, model, hyper),
        fraction=options.fraction,
        partition_seed=options.partition_seed,
        model=model,
        rounds=options.rounds,
        local_epochs=options.local_epochs,
        batch_size=options.batch_size,
        lr=spec.lr if options.lr is None else options.lr,
        joining_ratio=parse_ratio(options.joining_ratio),
        eval_every=options.eval_every,
        patience=options.patience,
        validation=options.validation,
        new_clients=options.new_clients,
        adapt_epochs=options.adapt_epochs,
        bn_stats=options.bn_stats,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
        lr_decay=options.lr_decay,
        block_size=options.block_size,
        seed=options.seed,
        record=record,
        **facts,
    )


def _check_consistency(options: Options, chosen: Mapping[str, Any]) -> None:
    """Refuse what contradicts itself: a value that the chosen setting would silently ignore."""
    if "beta" in chosen and options.setting != "practical":
        raise UserError(
            f"beta {chosen['beta']:g} belongs to the practical setting, not to {options.setting!r}"
        )
    if "classes_per_client" in chosen and options.setting != "pathological":
        raise UserError(
            f"classes_per_client {chosen['classes_per_client']} belongs to the pathological "
            f"setting, not to {options.setting!r}"
        )
    if not options.new_clients and options.adapt_epochs != Options().adapt_epochs:
        raise UserError(f"adapt_epochs {options.adapt_epochs} belongs to new_clients")
    if options.of is not None and options.of < options.clients:
        raise UserError(
            f"{options.clients} clients cannot be drawn from a partition of {options.of}"
        )


def _check_record(record: Iterable[str], recordable: Mapping[str, str], algo: str) -> None:
    for name in record:
        if name not in recordable:
            raise unknown(f"series to record for {algo}", name, recordable)


def load_data(
    config: RunConfig, data_dir: Path, partition: str | None
) -> tuple[Dataset, Partition]:
    """The data of a run and how it is dealt; refused where the data are no longer those that the
    configuration names."""
    if config.source == "pfllib":
        if partition is None:
            raise UserError(
                f"the run {config.key} uses a PFLlib partition; say where with --partition "
                f"{PFLLIB}PATH"
            )
        dataset, dealt = _pfllib(pfllib_path(partition))
        found = f"{dataset.fingerprint}-{dealt.fingerprint}"
        _must_be(config.data_fingerprint, found, dataset.name)
        return dataset, dealt
    samples, dealing = config.values(SAMPLES), config.values(DEALING)
    return _dataset(samples, data_dir), _partition(samples, dealing, data_dir)


def dataset_key(config: RunConfig) -> str:
    """All that decides the samples of a run, whoever holds them."""
    return repr(config.values(SAMPLES))


def data_key(config: RunConfig) -> str:
    """All that decides a run's data and who holds it."""
    return repr(config.values((*SAMPLES, *DEALING)))


def _must_be(wanted: str, found: str, name: str) -> None:
    if found != wanted:
        raise UserError(
            f"the data of {name!r} are not those that the run was configured for: their "
            f"fingerprint is {found}, not {wanted}"
        )


Values = tuple[tuple[str, Any], ...]


@functools.lru_cache(maxsize=1)
def _dataset(samples: Values, data_dir: Path) -> Dataset:
    wanted = dict(samples)
    dataset = data.load(wanted["dataset"], wanted["source"], data_dir)
    _must_be(wanted["data_fingerprint"], dataset.fingerprint, wanted["dataset"])
    if wanted["fraction"] != 1:
        kept = subset(dataset.y, wanted["fraction"], wanted["partition_seed"])
        owners = None if dataset.owners is None else dataset.owners[kept]
        dataset = replace(dataset, x=dataset.x[kept], y=dataset.y[kept], owners=owners)
    return dataset.reduced(wanted["image_size"])


@functools.lru_cache(maxsize=1)
def _partition(samples: Values, dealing: Values, data_dir: Path) -> Partition:
    dataset, wanted = _dataset(samples, data_dir), dict(dealing)
    seed = dict(samples)["partition_seed"]
    clients, sampled_from = wanted["clients"], wanted["sampled_from"]
    if wanted["setting"] == NATURAL:
        assert dataset.owners is not None  # or it would have another fingerprint
        return natural_partition(dataset.owners, sampled_from or clients, clients, seed)
    return make_partition(dataset.y, dataset.classes, seed=seed, **wanted)


@functools.lru_cache(maxsize=1)
def _pfllib(path: Path) -> tuple[Dataset, Partition]:
    return read_pfllib(path)


def pfllib_path(text: str, option: str = "--partition") -> Path:
    """The folder of a partition in PFLlib's layout."""
    if not text.startswith(PFLLIB):
        raise UserError(f"{option} cannot be {shown(text)}; allowed: {PFLLIB}PATH")
    return user_path(text.removeprefix(PFLLIB))
