"""Samples held back: not trained on, scored with the model that counts, and what goes by them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pfl_bench.plugins import (
    toy_algorithm,
    toy_client,
    toy_config,
    toy_dataset,
    toy_run,
    toy_simulator,
)
from pfl_bench.plugins.testing import toy_partition, toy_roles
from pfl_bench.store.records import (
    VALIDATION,
    Ending,
    RoundRecord,
    best_round,
    ends_after,
    summarise,
)


def test_the_validation_score_is_that_of_the_scored_model_on_the_samples_held_back() -> None:
    """FedAvg's scored model is the server's: predicted here in plain torch, sample by sample."""
    config = toy_config(rounds=1, validation=0.3)
    simulator = toy_simulator(config)
    (record,) = simulator.rounds()
    dataset = toy_dataset()
    client, _ = toy_client(toy_algorithm(config))
    client.net.load(simulator.snapshot.server)
    client.net.train(False)
    model = torch.nn.Sequential(client.net.module("extractor"), client.net.module("head"))
    held = toy_roles(config, dataset).validation
    x = torch.from_numpy(dataset.x).float().permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        right = model(x).argmax(1).numpy() == dataset.y
    assert record.extras[VALIDATION]["correct"] == [int(right[rows].sum()) for rows in held]
    assert record.extras[VALIDATION]["total"] == list(map(len, held))


def test_nothing_held_back_is_trained_on() -> None:
    """Other labels on the samples held back leave training and test as they are."""
    config, dataset = toy_config(rounds=2, validation=0.3), toy_dataset()
    held = torch.cat([torch.from_numpy(v) for v in toy_roles(config, dataset).validation]).numpy()
    y = dataset.y.copy()
    y[held] = (y[held] + 1) % dataset.classes
    # Dealt before the labels are changed: the partition follows them.
    partition = toy_partition(config, dataset)
    left, right = (
        toy_run(config, data, partition=partition) for data in (dataset, replace(dataset, y=y))
    )
    for a, b in zip(left, right, strict=True):
        assert (a.correct, a.loss, a.train_loss) == (b.correct, b.loss, b.train_loss)
        assert a.extras[VALIDATION] != b.extras[VALIDATION]


def test_averages_are_weighted_by_what_is_trained_on() -> None:
    config = toy_config(rounds=1, validation=0.4)
    simulator = toy_simulator(config)
    sizes = [len(train) for train in toy_roles(config, toy_dataset()).clients.train]
    assert list(simulator.task.train_sizes) == sizes
    whole = toy_simulator(replace(config, validation=0.0)).task.train_sizes
    assert all(some < all_of_it for some, all_of_it in zip(sizes, whole, strict=True))


def test_a_model_scored_after_training_is_validated_there_too() -> None:
    config = toy_config("fedcp", {"score": "after"}, rounds=3, validation=0.3)
    *_, record = toy_simulator(config).rounds()
    *_, before = toy_simulator(toy_config("fedcp", rounds=3, validation=0.3)).rounds()
    assert record.extras[VALIDATION]["total"] == before.extras[VALIDATION]["total"]
    assert record.extras[VALIDATION]["correct"] != before.extras[VALIDATION]["correct"]


def test_fedfomo_holds_back_of_what_is_left() -> None:
    config = toy_config("fedfomo", validation=0.5)
    algorithm = toy_algorithm(config)
    for left, trained in zip(algorithm.task.train_sizes, algorithm.trained_sizes(), strict=True):
        assert trained == left - min(max(1, round(0.2 * left)), left - 1)


def test_per_fedavg_refuses_where_the_rest_has_no_two_batches() -> None:
    smallest = min(toy_simulator(toy_config()).task.train_sizes)
    size = smallest // 2
    assert toy_algorithm(toy_config("perfedavg", batch_size=size)).impossible() is None
    held = toy_algorithm(toy_config("perfedavg", batch_size=size, validation=0.3))
    assert "needs two batches" in (held.impossible() or "")


# --- what goes by them ----------------------------------------------------------------------------


def record(number: int, test: int, validation: int | None) -> RoundRecord:
    """So many of ten right."""
    held = {} if validation is None else {VALIDATION: {"correct": [validation], "total": [10]}}
    return RoundRecord(number, [0], [test], [10], [0.5], extras=held)


def test_the_best_round_is_the_earliest_with_the_best_validation() -> None:
    run = [record(1, 9, 2), record(2, 4, 6), record(3, 5, 6), record(4, 8, 5)]
    assert best_round(run) == run[1]
    summary = summarise(run)
    assert summary["best"]["round"] == 2 and summary["best"]["accuracy"] == 0.4
    assert summary["last"]["accuracy"] == 0.8


def test_without_validation_the_best_round_is_that_of_the_test() -> None:
    run = [record(1, 3, None), record(2, 9, None), record(3, 4, None)]
    assert summarise(run)["best"]["round"] == 2


def test_patience_looks_at_validation_alone() -> None:
    tests = [1, 2, 3, 4, 5, 6, 7, 8]
    flat = [record(k + 1, test, 5 if k else 4) for k, test in enumerate(tests)]
    assert ends_after(flat, Ending(100, 3)) == 5
    unjudged = [record(k + 1, t, None) for k, t in enumerate(tests)]
    assert ends_after(unjudged, Ending(100, 3)) is None


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        [],
        3,
        {"total": [1]},
        {"correct": ["a"], "total": [1]},
        {"correct": [1, 1], "total": [2]},
        {"correct": [3], "total": [2]},
        {"correct": [], "total": []},
    ],
)
def test_nonsense_in_a_record_is_no_accuracy(nonsense: object) -> None:
    damaged = RoundRecord(1, [0], [1], [2], [0.5], extras={VALIDATION: nonsense})
    assert damaged.judged is None
    assert summarise([damaged])["best"] is None
    assert not Ending(2, 1).add(damaged)
