"""Datasets by name: what exists, where it lies, its arrays, and the fingerprint of its content.

A dataset comes from the stand-ins that are drawn on the spot (`standin`) or from files that
`pfl-bench data prepare` made (`real`). How those files are checked is in `pfl_bench.data.prepared`,
how they are made in `pfl_bench.data.convert`; who gets which sample in `pfl_bench.data.partition`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import os
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pfl_bench.datasets
from pfl_bench.base import (
    UserError,
    meant,
    reason,
    shown,
    unknown,
)
from pfl_bench.config import SOURCE_LABELS, RunConfig
from pfl_bench.data import prepared
from pfl_bench.data.cache import read_standin, read_text, recall, remember, stamp_of, standin_file
from pfl_bench.data.dataset import SUFFIXES, Card, Dataset, DatasetSpec, content_fingerprint
from pfl_bench.data.notes import note

SOURCES = ("standin", "real")
ENTRY_POINTS = "pfl_bench.datasets"


def title(name: str, source: str, remark: str = "") -> str:
    """A dataset as people call it, a stand-in as a stand-in, with what must be remarked on it."""
    spec = specs().get(name)
    called = (spec.title if spec else name) + SOURCE_LABELS.get(source, "")
    return f"{called} ({remark})" if remark else called


def problem(config: RunConfig, remark: str = "") -> str:
    """What is learnt, in a line: the data, with what must be remarked on them, how they are dealt,
    the model."""
    source = "" if config.setting == "pfllib" else config.source  # the setting says that already
    name = title(config.dataset, source, remark)
    part = "" if config.fraction == 1 else f", {config.percent}% of it"
    return (
        f"{name}{part}, {config.setting_label}, {config.clients} clients, "
        f"{config.model}{config.size_label}"
    )


def default_classes_per_client(classes: int) -> int:
    """The paper's choice carried on: a tenth of the classes, two at least."""
    return min(classes, max(2, classes // 10))


def specs() -> dict[str, DatasetSpec]:
    """The built-in datasets and those of installed plugins, by name."""
    return dict(_discover()[0])


def broken() -> dict[str, str]:
    """Plugins that could not be used, with the reason."""
    return dict(_discover()[1])


@functools.cache
def _discover() -> tuple[dict[str, DatasetSpec], dict[str, str]]:
    found: dict[str, DatasetSpec] = {}
    origin: dict[str, str] = {}
    failed: dict[str, str] = {}
    for where, spec in [*_builtin_specs(), *_plugin_specs(failed)]:
        if spec.name in found:
            raise UserError(
                f"the dataset {spec.name!r} is defined twice, by {origin[spec.name]} and {where}"
            )
        found[spec.name], origin[spec.name] = spec, where
    return found, failed


def _builtin_specs() -> Iterator[tuple[str, DatasetSpec]]:
    package = pfl_bench.datasets
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        module = importlib.import_module(info.name)
        for spec in getattr(module, "SPECS", ()):
            yield info.name, spec


def _plugin_specs(failed: dict[str, str]) -> Iterator[tuple[str, DatasetSpec]]:
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            loaded = point.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may fail in any way, the others must still work
            failed[point.name] = reason(error)
            continue
        several = loaded if isinstance(loaded, tuple) else (loaded,)
        if all(isinstance(spec, DatasetSpec) for spec in several):
            yield from ((f"the plugin {point.name}", spec) for spec in several)
        else:
            failed[point.name] = f"{point.value} is not a DatasetSpec or a tuple of them"


def own_names(data_dir: Path) -> list[str]:
    """The user's own sets: prepared files of the folder that no known dataset accounts for."""
    known = specs()
    suffixes = SUFFIXES.values()
    paths = (path for path in data_dir.glob("*") if path.suffix in suffixes)
    # Not links to nowhere; `Path.exists` would raise where a folder may not be entered.
    found = {path.stem for path in paths if os.path.exists(path)}  # noqa: PTH110
    return sorted(name for name in found - known.keys() if _is_name(name))


def _is_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{,99}", name) is not None


def check_name(name: str) -> str:
    """A name that is safe as a file name."""
    if not _is_name(name):
        raise UserError(
            f"a dataset is named with letters, digits, - and _, 100 at most, unlike {shown(name)}"
        )
    return name


def has_standin(name: str) -> bool:
    """Whether there is an embedded stand-in; a set of the user's own has none."""
    known = specs()
    spec = known.get(meant(name, known))
    return spec is not None and spec.standin is not None


def describe(name: str, data_dir: Path) -> DatasetSpec:
    """The specification of a known dataset, or that of the user's own set in `data_dir`."""
    known = specs()
    if (built_in := meant(name, known)) in known:
        return known[built_in]
    own = own_names(data_dir)
    if (name := meant(name, own)) not in own:
        error = unknown("dataset", name, [*known, *own])
        raise UserError(f"{error} (own sets are looked for in {data_dir})")
    path = _own_file(name, data_dir)
    card = recall(path) or Card.of(_assemble(name, "real", path))
    kind = "image" if card.vocabulary is None else "text"
    return DatasetSpec(
        name=name,
        title=name,
        kind=kind,
        classes=card.classes,
        shape=card.shape,
        clients=card.clients,
        classes_per_client=default_classes_per_client(card.classes),
        model="cnn" if kind == "image" else "fasttext",
    )


def _own_file(name: str, data_dir: Path) -> Path:
    candidates = [data_dir / (name + suffix) for suffix in SUFFIXES.values()]
    existing = [path for path in candidates if path.exists()]
    if len(existing) > 1:
        raise UserError(f"{data_dir} holds {name} both as .npz and as .csv: remove one of them")
    return existing[0]


def load(name: str, source: str, data_dir: Path) -> Dataset:
    """The arrays of a dataset; a stand-in is rendered when it is not in the cache."""
    spec = describe(name, data_dir)
    path = _locate(spec, source, data_dir)
    dataset = _assemble(spec.name, source, path)
    _must_fit(spec, Card.of(dataset), path)
    if source == "standin":
        return dataset  # its title says what it is
    return dataclasses.replace(dataset, remark=_remark(spec, len(dataset.y), data_dir))


def _remark(spec: DatasetSpec, samples: int, data_dir: Path) -> str:
    """What sets a prepared file apart from the published dataset, as far as it can be told."""
    part = f"{spec.counted(samples)} samples" if spec.is_part(samples) else ""
    return "; ".join(filter(None, (part, note(spec.name, data_dir))))


def card(name: str, source: str, data_dir: Path) -> Card:
    """What `load` would give, without reading the arrays when the file is known unchanged."""
    spec = describe(name, data_dir)
    path = _locate(spec, source, data_dir)
    known = recall(path) or Card.of(_assemble(spec.name, source, path))
    _must_fit(spec, known, path)
    return known


def fingerprint(name: str, source: str, data_dir: Path) -> str:
    """The fingerprint that `load` would give, instantly when the file is known unchanged."""
    return card(name, source, data_dir).fingerprint


def _must_fit(spec: DatasetSpec, card: Card, path: Path) -> None:
    """A file under the name of a known dataset holds that dataset's classes and shape."""
    if card.classes != spec.classes:
        raise UserError(f"{path} has {card.classes} classes; {spec.title} has {spec.classes}")
    if card.shape != spec.shape:
        raise UserError(f"{path} has images of {card.shape}; {spec.title} has {spec.shape}")


def _locate(spec: DatasetSpec, source: str, data_dir: Path) -> Path:
    """The file that holds the arrays, which exists."""
    if source == "standin":
        return standin_file(spec)
    if source != "real":
        raise unknown("source", source, SOURCES)
    path = data_dir / spec.filename
    if not path.exists():
        raise UserError(
            f"{spec.title} is not prepared: no {spec.filename} in {data_dir} "
            f"(--data-dir or PFL_BENCH_DATA); get it with `{spec.command} --data-dir {data_dir}`"
        )
    return path


def _assemble(name: str, source: str, path: Path) -> Dataset:
    """Read a file, and remember its card for the next time."""
    before = stamp_of(path)
    vocabulary, owners = None, None
    if source == "standin":
        x, y, vocabulary = read_standin(specs()[name], path)
    elif path.suffix == ".csv":
        x, y, vocabulary, owners = read_text(path)
    else:
        x, y, owners = prepared.read_owned_images(path)
    classes = int(y.max()) + 1
    content = content_fingerprint(x, y, classes, vocabulary, owners)
    dataset = Dataset(name, source, x, y, classes, vocabulary, content, owners=owners)
    remember(path, before, Card.of(dataset))
    return dataset
