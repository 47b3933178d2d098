"""Batches: which samples they hold, how often, in which scale."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from pfl_bench.engine.batches import EVALUATION_BATCH, Batch, Pool, Shard
from pfl_bench.plugins.testing import toy_algorithm, toy_client, toy_config

CPU = torch.device("cpu")


def shard(train: int, test: int = 5, classes: int = 4) -> Shard:
    """A client whose samples lie scattered in a pool twice as large; a pixel tells them apart."""
    total = 2 * (train + test)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (total, 4, 4, 3), dtype=np.uint8)
    rows = rng.permutation(total)
    y = rng.integers(0, classes, total)
    return Shard(Pool(x, y, CPU), rows[:train], rows[train : train + test], classes)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def positions(batches: list[Batch]) -> list[int]:
    return [i for batch in batches for i in batch.index.tolist()]


# --- training batches -----------------------------------------------------------------------------


def test_an_epoch_holds_every_sample_once() -> None:
    batches = list(shard(30).batches(10, 1, generator()))
    assert sorted(positions(batches)) == list(range(30))
    assert [len(batch.y) for batch in batches] == [10, 10, 10]


def test_every_epoch_holds_every_sample_once() -> None:
    batches = list(shard(20).batches(5, 3, generator()))
    assert Counter(positions(batches)) == dict.fromkeys(range(20), 3)
    assert sorted(positions(batches[:4])) == list(range(20))


def test_incomplete_last_batch_is_dropped() -> None:
    batches = list(shard(39).batches(10, 1, generator()))
    assert [len(batch.y) for batch in batches] == [10, 10, 10]
    assert len(set(positions(batches))) == 30


def test_what_an_epoch_drops_changes_from_epoch_to_epoch() -> None:
    batches = list(shard(19).batches(10, 20, generator()))
    assert set(positions(batches)) == set(range(19))


def test_client_smaller_than_a_batch_trains_on_all_it_has() -> None:
    batches = list(shard(7).batches(10, 2, generator()))
    assert [sorted(batch.index.tolist()) for batch in batches] == [list(range(7))] * 2


def test_epochs_are_shuffled_anew() -> None:
    first, second = shard(30).batches(30, 2, generator())
    assert first.index.tolist() != second.index.tolist()


def test_generator_alone_decides_the_batches() -> None:
    one, same, other = (positions(list(shard(30).batches(10, 1, generator(s)))) for s in (1, 1, 2))
    assert one == same
    assert one != other


def test_draw_can_be_restricted_to_some_samples() -> None:
    some = torch.tensor([1, 4, 6, 9])
    batches = list(shard(12).batches(2, 1, generator(), of=some))
    assert sorted(positions(batches)) == some.tolist()


@pytest.mark.parametrize(("samples", "expected"), [(40, 4), (50, 4), (59, 4), (20, 2), (19, 0)])
def test_batches_come_in_whole_groups_of_the_least_number(samples: int, expected: int) -> None:
    assert len(list(shard(samples).batches(10, 1, generator(), least=2))) == expected


def test_batch_gives_the_clients_own_samples_and_labels() -> None:
    client = shard(30)
    for batch in client.batches(10, 1, generator()):
        rows = client.train[batch.index]
        pixels = (client.pool.x[rows].double() / 255 - 0.5) / 0.5
        torch.testing.assert_close(batch.x.double(), pixels.permute(0, 3, 1, 2), atol=1e-6, rtol=0)
        assert torch.equal(batch.y, client.pool.y[rows])


# --- scaling --------------------------------------------------------------------------------------


def test_pixels_are_scaled_from_minus_one_to_one_exactly() -> None:
    x = np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1)
    pool = Pool(x, np.zeros(2, dtype=np.int64), CPU)
    assert pool.inputs(torch.arange(2)).flatten().tolist() == [-1.0, 1.0]


def test_images_that_are_scaled_already_stay_as_they_are() -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 2, 2, 3)
    pool = Pool(x, np.zeros(2, dtype=np.int64), CPU)
    assert np.array_equal(pool.inputs(torch.arange(2)).permute(0, 2, 3, 1).numpy(), x)


def test_images_are_channels_first_in_shape_and_last_in_memory() -> None:
    client = shard(10)
    x = client.pool.inputs(client.train)
    assert x.shape == (10, 3, 4, 4)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_tokens_are_given_up_to_the_end_of_the_longest_text() -> None:
    tokens = np.array([[5, 0, 7, 0, 0], [0, 0, 0, 0, 0], [2, 3, 0, 0, 0], [1, 2, 3, 4, 5]])
    pool = Pool(tokens.astype(np.int32), np.zeros(4, dtype=np.int64), CPU)

    def given(*rows: int) -> list[list[int]]:
        return pool.inputs(torch.tensor(rows)).tolist()

    assert given(2, 0) == [[2, 3, 0], [5, 0, 7]]
    assert given(3, 2) == tokens[[3, 2]].tolist()
    assert given(1) == [[0]]


def test_a_batch_does_not_depend_on_those_it_is_drawn_with() -> None:
    client = shard(1000)
    for batch in client.batches(7, 1, generator()):
        alone = Batch(client.pool, batch.rows, batch.index)
        assert len(batch.rows) == 7 and torch.equal(batch.rows, client.train[batch.index])
        assert torch.equal(batch.x, alone.x) and torch.equal(batch.y, alone.y)


def test_drawing_a_batch_leaves_the_data_as_it_was() -> None:
    client = shard(10)
    before = client.pool.x.clone()
    next(iter(client.batches(10, 1, generator()))).x.zero_()
    assert torch.equal(client.pool.x, before)


# --- evaluation and facts -------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["train", "test"])
def test_evaluation_covers_every_sample_once_and_in_order(which: str) -> None:
    client = shard(2 * EVALUATION_BATCH + 3, EVALUATION_BATCH + 1)
    batches = list(client.evaluation_batches(which))
    assert positions(batches) == list(range(len(client.part(which))))
    assert torch.equal(torch.cat([batch.rows for batch in batches]), client.part(which))


def test_evaluation_batches_are_bounded() -> None:
    batches = shard(2 * EVALUATION_BATCH + 3).evaluation_batches("train")
    assert [len(batch.y) for batch in batches] == [EVALUATION_BATCH, EVALUATION_BATCH, 3]


def test_evaluation_can_be_restricted_to_some_samples() -> None:
    some = torch.tensor([5, 0, 2])
    assert positions(list(shard(9).evaluation_batches("train", of=some))) == [5, 0, 2]


def test_class_counts_are_those_of_the_training_samples() -> None:
    client = shard(40, classes=6)
    labels = client.pool.y[client.train].tolist()
    assert client.class_counts.tolist() == [labels.count(label) for label in range(6)]
    assert client.samples == 40


def test_a_batch_unpacks_into_inputs_and_classes() -> None:
    client, _ = toy_client(toy_algorithm(toy_config()))
    drawn = [(x, y) for x, y in client.batches()]
    again = list(client.batches())
    assert len(drawn) == len(again) > 1
    for (x, y), batch in zip(drawn, again, strict=True):
        assert torch.equal(x, batch.x) and torch.equal(y, batch.y)
