"""The stand-in for AG News: documents of invented word indices from a small topic model.

A document mixes background words, which follow Zipf's law and say nothing of the class, with words
of its class's topic. A topic has so many words that the documents of one client show only some of
them, and those of the others the rest. Topics overlap with those of the neighbouring classes, and
some documents say little about their topic, so that counting words is right often but not always.

Everything is drawn in whole numbers, which all processors compute alike.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from pfl_bench.base import numpy_generator
from pfl_bench.data.text import pad

VERSION = 2
"""Raise it when the same topics would give other documents."""


@dataclass(frozen=True)
class Topics:
    """Everything that decides what the documents are like."""

    classes: int = 4
    samples: int = 1600
    words: int = 2500
    """the vocabulary without the padding"""
    subjects: int = 16
    """topics of a class, of which a document has one"""
    topic_words: int = 20
    """words that a topic prefers"""
    shared: float = 0.3
    """share of a topic's words that also belong to the next topic"""
    length: tuple[int, int] = (120, 200)
    weakness: int = 1
    """a document's share of topic words is the least of so many numbers between 0 and 1"""


TOPICS = Topics()

ONE = 1 << 32
"""What stands for 1 in shares."""


def key() -> str:
    """All that the rendering depends on."""
    return f"text {VERSION} numpy {version('numpy')} {dataclasses.asdict(TOPICS)}"


def render(topics: Topics = TOPICS) -> tuple[np.ndarray, np.ndarray, int]:
    """Token indices n×200 (1 is the most frequent word, 0 padding), labels, embedding rows."""
    generator = numpy_generator(0, "standin", "text")
    y = np.arange(topics.samples) % topics.classes
    generator.shuffle(y)
    low, high = topics.length
    lengths = generator.integers(low, high + 1, topics.samples)
    strength = generator.integers(0, ONE, (topics.weakness, topics.samples)).min(axis=0)
    owner = np.repeat(np.arange(topics.samples), lengths)
    tokens = _zipf_words(topics.words, len(owner), generator)
    topical = generator.integers(0, ONE, len(owner)) < strength[owner]
    choice = generator.integers(0, topics.topic_words, int(topical.sum()))
    subject = generator.integers(0, topics.subjects, topics.samples)
    topic = (subject * topics.classes + y)[owner[topical]]  # next to it lie those of other classes
    tokens[topical] = _topic_words(topics, generator)[topic, choice]
    indices, vocabulary = _by_frequency(tokens)
    return pad(indices, lengths), y.astype(np.int64), vocabulary


def _zipf_words(words: int, n: int, generator: np.random.Generator) -> np.ndarray:
    """n words, the one of rank r drawn in proportion to 1/r."""
    cumulated = np.cumsum(ONE // np.arange(1, words + 1))
    return np.searchsorted(cumulated, generator.integers(0, cumulated[-1], n), side="right")


def _topic_words(topics: Topics, generator: np.random.Generator) -> np.ndarray:
    """classes×topic_words: each topic's words in the order of its preference.

    Topics lie on a ring of words and overlap with their neighbours on it.
    """
    step = round(topics.topic_words * (1 - topics.shared))
    ring = generator.permutation(topics.words)[: step * topics.classes * topics.subjects]
    rows = [
        generator.permutation(np.take(ring, start + np.arange(topics.topic_words), mode="wrap"))
        for start in range(0, len(ring), step)
    ]
    return np.stack(rows)


def _by_frequency(tokens: np.ndarray) -> tuple[np.ndarray, int]:
    """Words numbered from 1 by falling frequency, as a real vocabulary is, and the rows needed."""
    words, positions, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    rank = np.empty(len(words), np.int32)
    rank[np.argsort(-counts, kind="stable")] = np.arange(1, len(words) + 1)
    return rank[positions], len(words) + 1
