"""Tokens, vocabulary and CSV tables, against outputs worked out by hand."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.base.errors import UserError
from pfl_bench.data import text

ORIGIN = Path("set.csv")


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("You can now install it using pip!", "you can now install it using pip !"),
        ("Don't panic.", "don ' t panic ."),
        ('He said "Hello, World"', "he said hello , world"),
        ('5"disk', "5disk"),
        ("Wall St. (Reuters) - Short-sellers", "wall st . ( reuters ) - short-sellers"),
        ("a;b:c", "a b c"),
        ("one<br />two<BR />three", "one two three"),
        ("one<br/>two", "one<br/>two"),
        ('<br" />x', "x"),
        ("tabs\tand\n lines  collapse ", "tabs and lines collapse"),
        ("What?! Really...", "what ? ! really . . ."),
        ("$3.50 & 7% #39;s", "$3 . 50 & 7% #39 s"),
        ("new\\york", "new\\york"),
        ("ÉCOLE", "école"),
        (' ;:" ', ""),
    ],
)
def test_tokens_are_those_of_basic_english(line: str, tokens: str) -> None:
    assert text.tokenize(line) == tokens.split()


@given(st.text())
def test_tokenizing_the_joined_tokens_again_changes_nothing(line: str) -> None:
    once = text.tokenize(line)
    assert text.tokenize(" ".join(once)) == [token.lower() for token in once]


def test_vocabulary_is_ordered_by_frequency_then_alphabet() -> None:
    encoded = text.encode(["b b c", "a c d"], ORIGIN)
    assert encoded.words == ["b", "c", "a", "d"]


def test_every_index_stands_for_the_word_that_was_written() -> None:
    lines = ["the cat sat.", "", "the dog (a dog) ran!"]
    encoded = text.encode(lines, ORIGIN)
    rows = text.pad(encoded.tokens, encoded.lengths)
    back = [[encoded.words[index - 1] for index in row if index] for row in rows]
    assert back == [text.tokenize(line) for line in lines]


def test_vocabulary_counts_words_beyond_the_cut_and_the_padding() -> None:
    line = " ".join(f"w{number}" for number in range(text.LENGTH + 7))
    assert text.encode([line], ORIGIN).vocabulary == text.LENGTH + 7 + 1


@given(st.lists(st.integers(0, 3 * text.LENGTH), min_size=1, max_size=5))
def test_rows_hold_the_first_two_hundred_tokens_then_padding(lengths: list[int]) -> None:
    encoded = text.encode([" ".join(["word"] * length) for length in lengths], ORIGIN)
    rows = text.pad(encoded.tokens, encoded.lengths)
    assert rows.shape == (len(lengths), 200)
    assert rows.dtype == np.int32
    for row, length in zip(rows, lengths, strict=True):
        expected = np.arange(200) < length
        np.testing.assert_array_equal(row, expected)


def _table(folder: Path, content: str | bytes) -> text.Table:
    path = folder / "set.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return text.read_table(path)


def test_text_columns_are_joined_by_a_blank(tmp_path: Path) -> None:
    table = _table(tmp_path, '3,"Title, with comma","He said ""no"""\n')
    assert table == text.Table(["3"], ['Title, with comma He said "no"'])


@pytest.mark.parametrize("header", ["Class Index,Title", "label,text", "Category,text"])
def test_a_header_before_integer_classes_is_no_document(tmp_path: Path, header: str) -> None:
    assert _table(tmp_path, f"{header}\n1,a\n2,b\n").labels == ["1", "2"]


def test_a_header_before_named_classes_is_known_by_its_word(tmp_path: Path) -> None:
    assert _table(tmp_path, "Label,text\nsport,a\nworld,b\n").labels == ["sport", "world"]


def test_a_first_document_with_a_named_class_is_kept(tmp_path: Path) -> None:
    assert _table(tmp_path, "sport,a\nworld,b\n").labels == ["sport", "world"]


def test_a_byte_order_mark_is_no_part_of_the_class(tmp_path: Path) -> None:
    assert _table(tmp_path, b"\xef\xbb\xbf1,a\n2,b\n").labels == ["1", "2"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "no rows"),
        ("label,text\n", "no rows"),
        ("1,a\n2\n", "document 2"),
        ("1,a\n ,b\n", "document 2"),
        (b"1,\xff\xfe\n", "UTF-8"),
        ("1," + "x" * 200_000 + "\n", "not a CSV table"),
    ],
)
def test_a_bad_table_is_one_sentence_with_its_file(
    tmp_path: Path, content: str | bytes, complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint) as caught:
        _table(tmp_path, content)
    assert "set.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        (["10", "9", "10", "9"], [1, 0, 1, 0]),
        (["-1", "1", "-1", "1"], [0, 1, 0, 1]),
        (["world", "sport", "sport", "world"], [1, 0, 0, 1]),
        (["10", "9", "b", "10", "9", "b"], [0, 1, 2, 0, 1, 2]),
    ],
)
def test_classes_are_numbered_in_their_order(labels: list[str], numbers: list[int]) -> None:
    assert text.number_classes(labels, Path("set.csv")).tolist() == numbers


@pytest.mark.parametrize("labels", [["1", "1"], ["a", "b", "c"]])
def test_a_first_column_that_cannot_be_a_class_is_refused(labels: list[str]) -> None:
    with pytest.raises(UserError, match=r"set\.csv: the first column should be the class"):
        text.number_classes(labels, Path("set.csv"))


def test_the_size_of_ag_news_is_encoded_in_well_under_fifteen_seconds() -> None:
    generator = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(50_000)])
    part = [" ".join(words[generator.integers(0, 50_000, 43)]) for _ in range(12_760)]
    start = time.perf_counter()
    encoded = text.encode(part, ORIGIN)
    assert 10 * (time.perf_counter() - start) < 15
    counts = Counter(word for line in part for word in line.split())
    assert encoded.vocabulary == len(counts) + 1
