"""The stand-in for AG News: documents of invented word indices from a small topic model.

A document mixes background words, which follow Zipf's law and say nothing of the class, with words
of its class's topic. Topics overlap with those of the neighbouring classes, and some documents say
little about their topic, so that counting words is right often but not always.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from pfl_bench.base import numpy_generator
from pfl_bench.data.text import pad

VERSION = 1
"""Raise it when the same topics would give other documents."""


@dataclass(frozen=True)
class Topics:
    """Everything that decides what the documents are like."""

    classes: int = 4
    samples: int = 4000
    words: int = 2500
    """the vocabulary without the padding"""
    topic_words: int = 40
    """words that a topic prefers"""
    shared: float = 0.6
    """share of a topic's words that also belong to the next topic"""
    length: tuple[int, int] = (20, 60)
    strength: tuple[float, float] = (1.2, 3.0)
    """parameters of the Beta distribution of a document's share of topic words"""


TOPICS = Topics()


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
    strength = generator.beta(*topics.strength, topics.samples)
    owner = np.repeat(np.arange(topics.samples), lengths)
    tokens = _zipf_words(topics.words, len(owner), generator)
    topical = generator.random(len(owner)) < strength[owner]
    choice = _zipf_words(topics.topic_words, int(topical.sum()), generator)
    tokens[topical] = _topic_words(topics, generator)[y[owner[topical]], choice]
    indices, vocabulary = _by_frequency(tokens)
    return pad(indices, lengths), y.astype(np.int64), vocabulary


def _zipf_words(words: int, n: int, generator: np.random.Generator) -> np.ndarray:
    """n words, the one of rank r drawn in proportion to 1/r."""
    cumulated = np.cumsum(1 / np.arange(1, words + 1))
    return np.searchsorted(cumulated, generator.random(n) * cumulated[-1])


def _topic_words(topics: Topics, generator: np.random.Generator) -> np.ndarray:
    """classes×topic_words: each topic's words in the order of its preference.

    Topics lie on a ring of words and overlap with their neighbours on it.
    """
    step = round(topics.topic_words * (1 - topics.shared))
    ring = generator.permutation(topics.words)[: step * topics.classes]
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
