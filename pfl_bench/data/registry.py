"""Datasets by name: what exists, where it lies, its arrays, and the fingerprint of its content.

A dataset comes from the stand-ins that are drawn on the spot (`standin`) or from files that
`pfl-bench data prepare` made (`real`). How those files are checked and made is in
`pfl_bench.data.convert`; who gets which sample is in `pfl_bench.data.partition`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import json
import logging
import os
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import pfl_bench.datasets
from pfl_bench.base import (
    UserError,
    cache_dir,
    meant,
    open_regular,
    read_regular,
    reason,
    shown,
    unknown,
    write_atomically,
)
from pfl_bench.config import SOURCE_LABELS, RunConfig
from pfl_bench.data import convert, text
from pfl_bench.data.imagesize import area_means, reduced_shape

log = logging.getLogger(__name__)

SOURCES = ("standin", "real")
ENTRY_POINTS = "pfl_bench.datasets"

Arrays = tuple[np.ndarray, np.ndarray, int | None]
"""x, y, and the vocabulary of a text set."""
Owned = tuple[np.ndarray, np.ndarray, int | None, np.ndarray | None]
"""The same, and the client of each sample where the data say so."""

_SUFFIXES = {"image": ".npz", "text": ".csv"}
NOTE_LETTERS = 100
NOTE_BYTES = 8 * NOTE_LETTERS


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """What is known of a dataset before its arrays are read. A plugin provides one of these."""

    name: str
    title: str
    kind: str
    """image or text"""
    classes: int
    shape: tuple[int, int, int] | None = None
    """(channels, height, width) of an image"""
    samples: int | None = None
    """as published, train and test together"""
    classes_per_client: int
    """the default of the pathological partition"""
    model: str
    """the default model"""
    standin: Callable[[], Arrays] | None = None
    standin_key: str = ""
    """all that the rendering depends on; another key is another rendering"""
    prepare: Callable[[Path, Path | None], None] | None = None
    """makes the prepared file (first) from what the user has (second), or downloads it"""
    clients: int | None = None
    """to how many the samples belong, where the data say so"""
    needs: str = ""
    """what `data prepare --from` must be given where there is no download"""

    @property
    def filename(self) -> str:
        return self.name + _SUFFIXES[self.kind]

    def is_part(self, samples: int) -> bool:
        return self.samples is not None and samples < self.samples

    def counted(self, samples: int) -> str:
        """So many samples, and of how many where they are a part of the published ones."""
        return f"{samples:,}" + (f" of the {self.samples:,}" if self.is_part(samples) else "")

    @property
    def command(self) -> str:
        """How the prepared file is had."""
        source = f" --from {self.needs}" if self.needs else ""
        return f"pfl-bench data prepare {self.name}{source}"


@dataclass(frozen=True)
class Dataset:
    """All samples, train and test part merged."""

    name: str
    source: str
    x: np.ndarray
    """images n×h×w×c, uint8 or float32 in [-1, 1]; text n×200 int32 token indices, 0 is padding"""
    y: np.ndarray
    classes: int
    vocabulary: int | None
    """rows of the embedding of a text set"""
    fingerprint: str
    remark: str = ""
    """what must be said wherever figures made from it appear; nothing if it is as published"""
    owners: np.ndarray | None = None
    """the client of each sample, from 0, where the data say so"""

    @property
    def kind(self) -> str:
        return "image" if self.vocabulary is None else "text"

    @property
    def shape(self) -> tuple[int, int, int] | None:
        if self.kind == "text":
            return None
        height, width, channels = self.x.shape[1:]
        return channels, height, width

    @property
    def title(self) -> str:
        return title(self.name, self.source)

    def reduced(self, size: int | None) -> Dataset:
        """The same images at `size`×`size` pixels; None leaves them as they are."""
        return self if size is None else dataclasses.replace(self, x=area_means(self.x, size))


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


@dataclass(frozen=True)
class Card:
    """What a dataset says of itself without its arrays; remembered between commands."""

    fingerprint: str
    samples: int
    dtype: str
    shape: tuple[int, int, int] | None
    vocabulary: int | None
    classes: int
    smallest_class: int
    largest_class: int
    clients: int | None = None
    """to how many the samples belong, where the data say so"""

    @classmethod
    def of(cls, dataset: Dataset) -> Card:
        counts = np.bincount(dataset.y)
        return cls(
            fingerprint=dataset.fingerprint,
            samples=len(dataset.y),
            dtype=dataset.x.dtype.name,
            shape=dataset.shape,
            vocabulary=dataset.vocabulary,
            classes=dataset.classes,
            smallest_class=int(counts.min()),
            largest_class=int(counts.max()),
            clients=None if dataset.owners is None else int(dataset.owners.max()) + 1,
        )

    def reduced(self, size: int | None) -> Card:
        """What the dataset says of itself once its images are reduced."""
        return dataclasses.replace(self, shape=reduced_shape(self.shape, size))


def content_fingerprint(
    x: np.ndarray,
    y: np.ndarray,
    classes: int,
    vocabulary: int | None,
    owners: np.ndarray | None = None,
) -> str:
    """16 hexadecimal digits over all that an algorithm can see of a dataset."""
    header = [[x.dtype.str, x.shape], [y.dtype.str, y.shape], classes, vocabulary]
    digest = hashlib.sha256(json.dumps(header).encode())
    for array in (x, y) if owners is None else (x, y, owners):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


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
    suffixes = _SUFFIXES.values()
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
    card = _recall(path) or Card.of(_assemble(name, "real", path))
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
    candidates = [data_dir / (name + suffix) for suffix in _SUFFIXES.values()]
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


def note(name: str, data_dir: Path) -> str:
    """What the user says of a prepared file, to stand wherever its figures do; often nothing."""
    path = _note_file(name, data_dir)
    try:
        words = read_regular(path, NOTE_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    return _one_line(words.strip(), str(path))


def write_note(name: str, data_dir: Path, words: str) -> None:
    """Keep a note beside a prepared file; an empty one takes it away."""
    path = _note_file(name, data_dir)
    words = _one_line(words.strip(), "the note")
    try:
        if words:
            write_atomically(path, f"{words}\n")
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def _note_file(name: str, data_dir: Path) -> Path:
    return data_dir / f"{name}.note"


def _one_line(words: str, where: str) -> str:
    if len(words) > NOTE_LETTERS or not words.isprintable():
        raise UserError(f"{where} must be one line of at most {NOTE_LETTERS} letters")
    return words


def card(name: str, source: str, data_dir: Path) -> Card:
    """What `load` would give, without reading the arrays when the file is known unchanged."""
    spec = describe(name, data_dir)
    path = _locate(spec, source, data_dir)
    known = _recall(path) or Card.of(_assemble(spec.name, source, path))
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
        return _standin_file(spec)
    if source != "real":
        raise unknown("source", source, SOURCES)
    path = data_dir / spec.filename
    if not path.exists():
        raise UserError(
            f"{spec.title} is not prepared: no {spec.filename} in {data_dir} "
            f"(--data-dir or PFL_BENCH_DATA); get it with `{spec.command} --data-dir {data_dir}`"
        )
    return path


def _standin_file(spec: DatasetSpec) -> Path:
    if spec.standin is None:
        raise UserError(f"{spec.title} has no stand-in: use the real data")
    key = hashlib.sha256(spec.standin_key.encode()).hexdigest()[:16]
    path = cache_dir() / "standins" / f"{spec.name}-{key}.npz"
    if not path.exists():
        _render(spec, path)
    return path


def _render(spec: DatasetSpec, path: Path) -> None:
    assert spec.standin is not None
    log.info("Drawing the stand-in of %s, once.", spec.title)
    x, y, vocabulary = spec.standin()
    arrays = {"x": x, "y": y}
    if vocabulary is not None:
        arrays["vocabulary"] = np.array(vocabulary)
    try:
        convert.write_arrays(path, **arrays)
    except OSError as error:
        raise UserError(
            f"cannot keep the stand-in in {path.parent} ({error.strerror}); "
            "set PFL_BENCH_CACHE to a folder that can be written"
        ) from error


def _assemble(name: str, source: str, path: Path) -> Dataset:
    """Read a file, and remember its card for the next time."""
    before = _stamp(path)
    vocabulary, owners = None, None
    if source == "standin":
        x, y, vocabulary = _read_standin(name, path)
    elif path.suffix == ".csv":
        x, y, vocabulary, owners = _read_text(path)
    else:
        x, y, owners = convert.read_owned_images(path)
    classes = int(y.max()) + 1
    content = content_fingerprint(x, y, classes, vocabulary, owners)
    dataset = Dataset(name, source, x, y, classes, vocabulary, content, owners=owners)
    _remember(path, before, Card.of(dataset))
    return dataset


def _read_standin(name: str, path: Path) -> Arrays:
    """The cached rendering; a damaged one is drawn again."""
    try:
        return _standin_arrays(path)
    except (UserError, KeyError):
        _render(specs()[name], path)
        return _standin_arrays(path)


def _standin_arrays(path: Path) -> Arrays:
    arrays = convert.read_arrays(path)
    vocabulary = arrays.get("vocabulary")
    return arrays["x"], arrays["y"], None if vocabulary is None else int(vocabulary)


def _read_text(path: Path) -> Owned:
    """Tokenising takes seconds, so its outcome is kept under the checksum of the file."""
    try:
        with open_regular(path, text.LARGEST_BYTES) as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    cached = cache_dir() / "tokens" / f"{checksum}-{text.VERSION}.npz"
    with contextlib.suppress(UserError, KeyError):
        kept = convert.read_arrays(cached)
        x = text.pad(kept["tokens"], kept["lengths"])
        return x, kept["y"], int(kept["vocabulary"]), kept.get("owners")
    log.info("Tokenising %s, once.", path)
    table = text.read_table(path)
    y = text.number_classes(table.labels, path)
    owners = None if table.clients is None else text.numbered(table.clients)
    encoded = text.encode(table.texts)
    with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
        convert.write_arrays(
            cached,
            tokens=encoded.tokens,
            lengths=encoded.lengths,
            y=y,
            vocabulary=np.array(encoded.vocabulary),
            **({} if owners is None else {"owners": owners}),
        )
    return text.pad(encoded.tokens, encoded.lengths), y, encoded.vocabulary, owners


def _stamp(path: Path) -> dict[str, str | int]:
    """What changes when a file changes. Copying may bring the modification time of another machine
    along, or of another version; the time of the last change on this disk tells them apart."""
    status = path.stat()
    return {
        "path": str(path.resolve()),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
    }


def _sidecar(stamp: dict[str, str | int]) -> Path:
    place = hashlib.sha256(str(stamp["path"]).encode()).hexdigest()[:32]
    return cache_dir() / "fingerprints" / f"{place}.json"


def _remember(path: Path, stamp: dict[str, str | int], card: Card) -> None:
    if _stamp(path) != stamp:
        return  # the file changed while it was read
    content = {"stamp": stamp, "version": text.VERSION, "card": dataclasses.asdict(card)}
    with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
        write_atomically(_sidecar(stamp), json.dumps(content))


def _recall(path: Path) -> Card | None:
    stamp = _stamp(path)
    try:
        content = json.loads(_sidecar(stamp).read_text())
        if content["stamp"] != stamp or content["version"] != text.VERSION:
            return None
        shape = content["card"].pop("shape")
        return Card(**content["card"], shape=tuple(shape) if shape else None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
