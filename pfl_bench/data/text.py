"""Text to numbers: the CSV table, the tokenizer, the vocabulary, sequences of one length.

The tokenizer behaves like torchtext's `basic_english`, which cannot be imported beside a current
torch. Where files lie and what is cached is the business of `pfl_bench.data.registry`.
"""

from __future__ import annotations

import csv
import io
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfl_bench.base import UserError, meant, open_regular, unknown

LENGTH = 200
"""Every sequence is cut or padded to this many positions."""

PADDING = 0
"""The token of an empty position, and of a word that the vocabulary does not hold."""

VERSION = 2
"""Part of the key of cached tokens: raise it when the same CSV would give other numbers."""

LARGEST_BYTES = 2**30
"""Of a CSV file, thirty times AG News; a larger one is refused before it is read."""
LONGEST_LABEL = 10_000
MOST_DOCUMENTS = 2_000_000
"""Fifteen times AG News. However short they are, in memory they are padded to `LENGTH`."""
MOST_CELLS = 10 * MOST_DOCUMENTS
LONGEST_ROW = 2**22
"""In letters."""
MOST_WORDS = 5_000_000
"""Different ones, fifty times AG News; in memory each takes thirty times its letters."""

_SET_OFF = {mark: f" {mark} " for mark in "'.,()!?"}
_BLANKED = dict.fromkeys(";:", " ")
_PUNCTUATION = str.maketrans(_SET_OFF | _BLANKED)
_LONGEST_INTEGER = 18
_HEADERS = frozenset({"class", "label", "category", "target"})

WITH_CLIENTS = ("class", "client", "text")
"""The header of a prepared file whose documents belong to somebody."""


def tokenize(text: str) -> list[str]:
    """Lower-case words; ' . , ( ) ! ? are tokens of their own; double quotes, ; and : vanish."""
    # Quotes go before the line breaks: removing one may complete a <br />.
    return text.lower().replace('"', "").replace("<br />", " ").translate(_PUNCTUATION).split()


@dataclass(frozen=True)
class Table:
    """The documents of a CSV file: the class of each as it is written there, and its text."""

    labels: list[str]
    texts: list[str]
    clients: list[str] | None = None
    """To whom each document belongs, where the file says so."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a CSV file with a header are what, by their names in any spelling."""

    label: str | None = None
    """By default the first that is nothing else."""
    texts: tuple[str, ...] = ()
    """By default all that are nothing else."""
    client: str | None = None

    @property
    def are_named(self) -> bool:
        return bool(self.label or self.texts or self.client)

    def places(self, header: list[str], path: Path) -> tuple[int, list[int], int | None]:
        """The numbers of the class's column, the text's and the client's."""
        names = [name.strip() for name in header]

        def place(name: str) -> int:
            if (found := meant(name, names)) not in names:
                raise UserError(f"{path}: {unknown('column', name, names)}")
            return names.index(found)

        client = None if self.client is None else place(self.client)
        texts = [place(name) for name in self.texts]
        free = [k for k in range(len(names)) if k not in (*texts, client)]
        if self.label is None and not free:
            raise UserError(f"{path}: no column is left for the class; name it with --label-column")
        label = free[0] if self.label is None else place(self.label)
        texts = texts or [k for k in free if k != label]
        taken = [label, *texts] if client is None else [label, client, *texts]
        if not texts or len(set(taken)) < len(taken):
            raise UserError(f"{path}: class, client and text need columns of their own")
        return label, texts, client


UNNAMED = Columns()


def read_table(path: Path, columns: Columns = UNNAMED) -> Table:
    """The class is the first column; the other columns, joined by a blank, are the text.

    The first row is a header when its first cell says class, label, category or target, or when
    it is the only first cell that is not an integer; and always where columns are named. A header
    of class, client, text says to whom each document belongs.
    """
    rows = _rows(path)
    if rows and not columns.are_named and tuple(c.strip() for c in rows[0]) == WITH_CLIENTS:
        columns = Columns(*WITH_CLIENTS[:1], WITH_CLIENTS[2:], WITH_CLIENTS[1])
    if rows and columns.are_named:
        label, texts, client = columns.places(rows[0], path)
        last = max(label, client or 0, *texts)
        for number, row in enumerate(rows[1:], start=1):
            if len(row) <= last:
                raise UserError(f"{path}: document {number} has {len(row)} of {last + 1} columns")
        owners = None if client is None else [row[client].strip() for row in rows[1:]]
        rows = [[row[label], *(row[k] for k in texts)] for row in rows[1:]]
    else:
        owners = None
        if rows and _is_header(rows):
            del rows[0]
    _check_rows(rows, path)
    if owners is not None and not all(owners):
        raise UserError(f"{path}: document {owners.index('') + 1} names no client")
    return Table([row[0].strip() for row in rows], [" ".join(row[1:]) for row in rows], owners)


class _Lines:
    """The lines of a file, for a reader that forms rows of them and would not say that a row takes
    too many."""

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._file = file
        self.letters = 0
        """Of the row that is being read."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(LONGEST_ROW + 1)
        self.letters += len(line)
        if self.letters > LONGEST_ROW:
            raise csv.Error(f"a row has more than {LONGEST_ROW:,} letters")
        if not line:
            raise StopIteration
        return line


def _rows(path: Path) -> list[list[str]]:
    """Refused before they fill the memory, of which they take many times the file's size."""
    rows: list[list[str]] = []
    cells = 0
    try:
        with (
            open_regular(path, LARGEST_BYTES) as file,
            io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text,
        ):
            lines = _Lines(text)
            for row in csv.reader(lines):
                lines.letters = 0
                if row:
                    rows.append(row)
                    cells += len(row)
                if len(rows) > MOST_DOCUMENTS:
                    raise UserError(f"{path} has more than {MOST_DOCUMENTS:,} rows")
                if cells > MOST_CELLS:
                    raise UserError(f"{path} has more than {MOST_CELLS:,} cells")
            return rows
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV table: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _check_rows(rows: list[list[str]], path: Path) -> None:
    if not rows:
        raise UserError(f"{path} has no rows")
    for number, row in enumerate(rows, start=1):
        if len(row) < 2 or not row[0].strip():
            raise UserError(f"{path}: document {number} needs a class and a text column")
        if len(row[0]) > LONGEST_LABEL:
            raise UserError(
                f"{path}: the class of document {number} has {len(row[0]):,} letters; "
                f"allowed: {LONGEST_LABEL:,}"
            )
        if any("\0" in cell for cell in row):
            raise UserError(f"{path}: document {number} holds a NUL character, which no text does")


def _is_header(rows: list[list[str]]) -> bool:
    first, *others = (row[0].strip() for row in rows)
    if first.lower() in _HEADERS:
        return True
    return bool(others) and not _is_integer(first) and all(map(_is_integer, others))


def _is_integer(cell: str) -> bool:
    digits = cell.removeprefix("-")
    return digits.isdecimal() and len(digits) <= _LONGEST_INTEGER


def number_classes(labels: list[str], origin: Path) -> np.ndarray:
    """Classes numbered from 0 in their order."""
    y = numbered(labels)
    classes = int(y.max()) + 1
    if classes < 2 or classes > len(labels) // 2:
        raise UserError(
            f"{origin}: the first column should be the class, "
            f"but it has {classes} values in {len(labels)} documents"
        )
    return y


def numbered(names: list[str]) -> np.ndarray:
    """The number of each name in their order: that of integers if all are, else alphabetical."""
    read: Callable[[str], Any] = int if all(map(_is_integer, names)) else str
    values = {name: read(name) for name in set(names)}
    places = {value: number for number, value in enumerate(sorted(set(values.values())))}
    return np.array([places[values[name]] for name in names], np.int64)


@dataclass(frozen=True)
class Encoded:
    """Documents as word indices, one after the other, each cut to `LENGTH`."""

    tokens: np.ndarray
    lengths: np.ndarray
    words: list[str]
    """The whole vocabulary; the word at position i has the index i + 1."""

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding: the words and the padding."""
        return len(self.words) + 1


def encode(texts: Iterable[str], origin: Path) -> Encoded:
    """The whole vocabulary counts, ordered by frequency and, where equal, alphabetically."""
    first_seen: defaultdict[str, int] = defaultdict()
    first_seen.default_factory = first_seen.__len__
    flat, lengths = array("i"), array("i")
    for text in texts:
        document = tokenize(text)
        flat.extend(map(first_seen.__getitem__, document))
        lengths.append(len(document))
        if len(first_seen) > MOST_WORDS:
            raise UserError(f"{origin} has more than {MOST_WORDS:,} different words")
    seen, counts = list(first_seen), np.bincount(np.asarray(flat), minlength=len(first_seen))
    order = sorted(range(len(seen)), key=lambda word: (-counts[word], seen[word]))
    index = np.empty(len(seen), np.int32)
    index[order] = np.arange(1, len(seen) + 1)
    tokens, kept = _cut(index[np.asarray(flat)], np.asarray(lengths))
    return Encoded(tokens, kept, [seen[word] for word in order])


def _cut(tokens: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop what lies beyond `LENGTH` in each document."""
    return tokens[_positions(lengths) < LENGTH], np.minimum(lengths, LENGTH)


def pad(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """One row of `LENGTH` indices per document, filled up with padding."""
    rows = np.full((len(lengths), LENGTH), PADDING, np.int32)
    rows[np.repeat(np.arange(len(lengths)), lengths), _positions(lengths)] = tokens
    return rows


def _positions(lengths: np.ndarray) -> np.ndarray:
    """0, 1, 2, … anew in each document."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) - np.repeat(starts, lengths)
