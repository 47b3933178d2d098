"""Partitions: nothing lost, nothing twice, everybody has enough, and always the same."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pfl_bench.base.errors import UserError
from pfl_bench.data import partition as partition_module
from pfl_bench.data.partition import SETTINGS, Partition, make_partition, minimum_samples, subset


def balanced(samples: int, classes: int) -> np.ndarray:
    return np.arange(samples) % classes


def held(partition: Partition) -> list[np.ndarray]:
    return [np.concatenate(parts) for parts in zip(partition.train, partition.test, strict=True)]


@st.composite
def possible_inputs(draw: st.DrawFn) -> dict[str, Any]:
    """Inputs of `make_partition` that every setting can satisfy: labels of any proportions."""
    classes = draw(st.integers(1, 12))
    clients = draw(st.integers(1, 40))
    samples = draw(st.integers(max(2 * clients, classes), 3000))
    weights = draw(st.lists(st.integers(1, 50), min_size=classes, max_size=classes))
    order = np.random.default_rng(draw(st.integers(0, 9)))
    y = order.choice(classes, size=samples, p=np.array(weights) / sum(weights))
    return {
        "y": y,
        "classes": classes,
        "clients": clients,
        "beta": draw(st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 1e6])),
        "classes_per_client": len(np.unique(y)),
        "setting": draw(st.sampled_from(SETTINGS)),
        "seed": draw(st.integers(0, 5)),
    }


@given(possible_inputs())
@settings(deadline=None, max_examples=150)
def test_every_sample_belongs_to_exactly_one_client(inputs: dict[str, Any]) -> None:
    indices = np.concatenate(held(make_partition(**inputs)))
    assert sorted(indices) == list(range(len(inputs["y"])))


@given(possible_inputs())
@settings(deadline=None, max_examples=100)
def test_every_client_holds_the_minimum(inputs: dict[str, Any]) -> None:
    sizes = [len(indices) for indices in held(make_partition(**inputs))]
    fair = len(inputs["y"]) / inputs["clients"]
    assert min(sizes) >= max(2, int(min(40, fair / 2)))


@given(possible_inputs())
@settings(deadline=None, max_examples=60)
def test_three_quarters_of_each_client_are_for_training_and_some_for_testing(
    inputs: dict[str, Any],
) -> None:
    partition = make_partition(**inputs)
    for train, test in zip(partition.train, partition.test, strict=True):
        assert len(test) >= 1
        assert len(train) == max(1, (len(train) + len(test)) * 3 // 4)


@given(possible_inputs())
@settings(deadline=None, max_examples=60)
def test_the_same_inputs_give_the_same_partition_whatever_the_global_random_state(
    inputs: dict[str, Any],
) -> None:
    np.random.seed(1)
    first = make_partition(**inputs)
    np.random.seed(2)
    second = make_partition(**inputs)
    assert first.fingerprint == second.fingerprint
    assert all(map(np.array_equal, first.train + first.test, second.train + second.test))


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_global_random_state_is_left_alone(setting: str) -> None:
    np.random.seed(1)
    expected = np.random.random()
    np.random.seed(1)
    make_partition(balanced(1000, 10), 10, setting=setting, clients=10, classes_per_client=2)
    assert np.random.random() == expected


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_seed_changes_the_partition(setting: str) -> None:
    y = balanced(1000, 10)
    made = {
        make_partition(
            y, 10, setting=setting, clients=10, classes_per_client=2, seed=seed
        ).fingerprint
        for seed in range(5)
    }
    assert len(made) == 5


def test_the_order_of_indices_and_the_bounds_between_clients_are_in_the_fingerprint() -> None:
    def fingerprint(train: list[list[int]], test: list[list[int]]) -> str:
        return Partition(
            tuple(np.array(part, dtype=np.int64) for part in train),
            tuple(np.array(part, dtype=np.int64) for part in test),
        ).fingerprint

    variants = [
        fingerprint([[0, 1], [2]], [[3], [4]]),
        fingerprint([[1, 0], [2]], [[3], [4]]),
        fingerprint([[0], [1, 2]], [[3], [4]]),
        fingerprint([[0, 1], [2, 3]], [[], [4]]),
        fingerprint([[0, 1, 2]], [[3, 4]]),
    ]
    assert len(set(variants)) == len(variants)
    assert all(len(value) == 16 and int(value, 16) >= 0 for value in variants)


def test_the_histogram_counts_train_and_test_labels_of_each_client() -> None:
    y = np.array([0, 0, 1, 2, 2, 2])
    partition = Partition((np.array([0, 3]), np.array([1, 4])), (np.array([2]), np.array([5])))
    assert partition.histogram(y, 4).tolist() == [[1, 1, 1, 0], [1, 0, 2, 0]]


def test_the_majority_is_that_of_the_training_samples_counted_on_the_test_samples() -> None:
    y = np.array([0, 0, 1, 1, 1, 2, 2, 0])
    train = (np.array([0, 1, 2]), np.array([5, 6]))  # mostly 0, mostly 2
    test = (np.array([3, 4, 7]), np.array([5]))  # one of three, one of one
    assert Partition(train, test).majority_accuracy(y) == 0.5


@pytest.mark.parametrize(
    ("total", "clients", "expected"), [(60_000, 20, 40), (60_000, 1000, 30), (50, 20, 2)]
)
def test_the_minimum_is_forty_or_half_the_fair_share_but_at_least_two(
    total: int, clients: int, expected: int
) -> None:
    assert minimum_samples(total, clients) == expected


# Practical


@pytest.mark.parametrize(("samples", "classes"), [(60_000, 10), (60_000, 100), (4_000, 10)])
def test_a_tiny_beta_with_500_clients_ends_soon_and_gives_all_the_minimum(
    samples: int, classes: int
) -> None:
    def dealt(beta: float) -> tuple[Partition, float]:
        start = time.perf_counter()
        partition = make_partition(
            balanced(samples, classes), classes, setting="practical", clients=500, beta=beta
        )
        return partition, time.perf_counter() - start

    _, easy = dealt(10.0)
    partition, hard = dealt(0.001)
    # Up to 20 times as long; to draw anew until all have the minimum would never end.
    assert hard < 100 * easy
    sizes = [len(indices) for indices in held(partition)]
    assert sum(sizes) == samples
    assert min(sizes) >= minimum_samples(samples, 500)


def test_two_thousand_clients_are_possible() -> None:
    partition = make_partition(
        balanced(20_000, 100), 100, setting="practical", clients=2000, beta=0.1
    )
    assert min(map(len, held(partition))) >= 5
    assert sum(map(len, held(partition))) == 20_000


def test_as_many_clients_as_pairs_of_samples_get_two_samples_each() -> None:
    partition = make_partition(balanced(100, 10), 10, setting="practical", clients=50, beta=0.1)
    assert [len(indices) for indices in held(partition)] == [2] * 50


def test_a_smaller_beta_concentrates_classes() -> None:
    y = balanced(20_000, 10)

    def mean_share_of_largest_class(beta: float) -> float:
        made = make_partition(y, 10, setting="practical", clients=20, beta=beta)
        histogram = made.histogram(y, 10)
        return float((histogram.max(axis=1) / histogram.sum(axis=1)).mean())

    shares = [mean_share_of_largest_class(beta) for beta in (0.01, 0.1, 1.0, 100.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.8
    assert shares[-1] < 0.2


def test_shares_of_the_first_class_have_the_variance_of_a_dirichlet_distribution() -> None:
    """No client is passed over while the first class is dealt, so its shares are plain Dir(β)."""
    clients, beta, samples = 20, 0.5, 100_000
    rng = np.random.default_rng(0)
    available = np.array([samples, samples])
    shares = np.concatenate(
        [
            partition_module._dirichlet_counts(available, clients, beta, rng)[:, 0] / samples
            for _ in range(400)
        ]
    )
    mean = 1 / clients
    variance = mean * (1 - mean) / (clients * beta + 1)
    assert shares.mean() == pytest.approx(mean, rel=1e-6)
    assert shares.var() == pytest.approx(variance, rel=0.1)


def test_a_client_above_the_fair_share_gets_nothing_of_later_classes() -> None:
    rng = np.random.default_rng(0)
    available = np.full(10, 1000)
    for _ in range(50):
        counts = partition_module._dirichlet_counts(available, 8, 0.1, rng)
        before = np.cumsum(counts, axis=1) - counts
        assert not counts[before > available.sum() / 8].any()


def test_a_draw_that_gives_everybody_enough_is_left_as_drawn() -> None:
    y = balanced(10_000, 10)
    rng = np.random.default_rng(3)
    drawn = partition_module._dirichlet_counts(np.full(10, 1000), 5, 10.0, np.random.default_rng(3))
    assert (drawn.sum(axis=1) > 40).all()
    assert np.array_equal(partition_module._practical_counts(y, 10, 5, 10.0, 40, rng), drawn)


def test_the_repair_takes_from_the_largest_client_of_its_largest_class() -> None:
    counts = np.array([[1, 0, 0], [5, 90, 5], [0, 0, 50]])
    repaired = partition_module._top_up(counts, 10, np.ones((3, 3), dtype=bool))
    assert repaired.tolist() == [[1, 9, 0], [5, 81, 5], [0, 0, 50]]


# Pathological


@pytest.mark.parametrize(
    ("clients", "classes", "per_client"),
    [(20, 10, 2), (20, 100, 10), (50, 10, 2), (500, 10, 2), (7, 10, 2), (20, 10, 3), (13, 7, 7)],
)
def test_every_client_holds_exactly_its_number_of_classes_and_every_class_a_client(
    clients: int, classes: int, per_client: int
) -> None:
    y = balanced(60_000, classes)
    made = make_partition(
        y, classes, setting="pathological", clients=clients, classes_per_client=per_client
    )
    holds = made.histogram(y, classes) > 0
    assert set(holds.sum(axis=1)) == {per_client}
    assert holds.any(axis=0).all()


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30))
@settings(deadline=None, max_examples=200)
def test_groups_use_all_room_and_miss_no_class(clients: int, classes: int, each: int) -> None:
    assume(each <= classes <= clients * each)
    groups = partition_module._class_groups(clients, classes, each)
    assert (groups.sum(axis=1) == each).all()
    assert groups.any(axis=0).all()


def test_neighbouring_clients_form_groups_with_the_same_labels() -> None:
    y = balanced(6000, 10)
    made = make_partition(y, 10, setting="pathological", clients=20, classes_per_client=2)
    held_labels = [np.flatnonzero(row).tolist() for row in made.histogram(y, 10)]
    assert held_labels == [[2 * (i // 4), 2 * (i // 4) + 1] for i in range(20)]


def test_amounts_lie_between_a_tenth_of_the_fair_share_and_the_fair_share_but_for_the_last() -> (
    None
):
    y = balanced(60_000, 10)
    made = make_partition(y, 10, setting="pathological", clients=20, classes_per_client=2)
    fair = 6000 / 4
    by_class = [column[column > 0] for column in made.histogram(y, 10).T]
    others = np.concatenate([amounts[:-1] for amounts in by_class])
    assert others.min() >= fair / 10
    assert others.max() <= fair
    assert others.std() > fair / 10
    assert all(amounts[-1] >= fair for amounts in by_class)


def test_a_client_topped_up_gets_only_classes_it_holds_and_no_giver_loses_a_class() -> None:
    counts = np.array([[1, 1, 0, 0], [60, 1, 0, 0], [0, 0, 200, 200]])
    repaired = partition_module._top_up(counts, 20, counts > 0)
    assert repaired.tolist() == [[19, 1, 0, 0], [42, 1, 0, 0], [0, 0, 200, 200]]


def test_a_giver_parts_with_a_whole_class_only_where_the_minimum_cannot_be_had_otherwise() -> None:
    counts = np.array([[1, 1, 1], [0, 0, 1]])
    repaired = partition_module._top_up(counts, 2, np.ones((2, 3), dtype=bool))
    assert repaired.tolist() == [[0, 1, 1], [1, 0, 1]]


def test_a_class_smaller_than_its_group_loses_no_sample() -> None:
    y = np.array([0] * 3 + [1] * 1000)
    made = make_partition(y, 2, setting="pathological", clients=10, classes_per_client=2)
    assert made.histogram(y, 2).sum(axis=0).tolist() == [3, 1000]


def test_classes_too_small_for_the_minimum_are_an_error_that_says_so() -> None:
    y = np.array([0] * 4 + [1] * 1000)
    with pytest.raises(UserError, match=r"client 0 gets only \d+ samples where at least 40"):
        make_partition(y, 2, setting="pathological", clients=10, classes_per_client=1)


# IID


def test_iid_clients_differ_by_at_most_one_sample() -> None:
    made = make_partition(balanced(1003, 10), 10, setting="iid", clients=20)
    assert {len(indices) for indices in held(made)} == {50, 51}


def test_iid_clients_hold_the_classes_in_equal_proportions() -> None:
    y = balanced(60_000, 10)
    histogram = make_partition(y, 10, setting="iid", clients=10).histogram(y, 10)
    assert np.abs(histogram - 600).max() < 5 * np.sqrt(600)


# N|M


def test_n_of_m_keeps_clients_of_the_larger_partition_unchanged_and_in_order() -> None:
    y = balanced(5000, 10)
    whole = make_partition(y, 10, setting="practical", clients=50)
    part = make_partition(y, 10, setting="practical", clients=10, sampled_from=50)

    def contents(partition: Partition) -> list[tuple[bytes, bytes]]:
        clients = zip(partition.train, partition.test, strict=True)
        return [(train.tobytes(), test.tobytes()) for train, test in clients]

    kept = [contents(whole).index(client) for client in contents(part)]
    assert len(kept) == 10
    assert kept == sorted(set(kept))


def test_ten_of_fifty_are_among_thirty_of_fifty() -> None:
    y = balanced(5000, 10)
    ten, thirty = (
        make_partition(y, 10, setting="practical", clients=n, sampled_from=50) for n in (10, 30)
    )
    assert {part.tobytes() for part in ten.train} < {part.tobytes() for part in thirty.train}


def test_the_choice_of_clients_depends_on_the_seed() -> None:
    chosen = {tuple(partition_module._kept(10, 50, seed)) for seed in range(5)}
    assert len(chosen) == 5


# A fraction of the data


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=300),
    st.floats(0.001, 1.0),
    st.integers(0, 3),
)
@settings(deadline=None, max_examples=100)
def test_a_subset_keeps_the_fraction_of_every_class_and_at_least_one(
    labels: list[int], fraction: float, seed: int
) -> None:
    y = np.array(labels)
    chosen = subset(y, fraction, seed)
    assert (np.diff(chosen) > 0).all()
    for label in set(labels):
        expected = fraction * labels.count(label)
        kept = int((y[chosen] == label).sum())
        assert kept >= 1
        assert abs(kept - max(1, expected)) <= 0.5


def test_the_whole_fraction_is_everything() -> None:
    assert subset(balanced(100, 7), 1.0, 0).tolist() == list(range(100))


def test_a_smaller_subset_is_part_of_a_larger_one() -> None:
    y = balanced(1000, 10)
    assert set(subset(y, 0.1, 0)) < set(subset(y, 0.3, 0))


def test_the_seed_changes_the_subset() -> None:
    y = balanced(1000, 10)
    assert subset(y, 0.1, 0).tolist() != subset(y, 0.1, 1).tolist()


# Impossible requests


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"setting": "practicl"}, "unknown setting 'practicl'; did you mean 'practical'"),
        ({"clients": 0}, "clients 0 is not possible; allowed: 1 or more"),
        ({"clients": 501}, "1000 samples are too few for 501 clients.*at most 500 clients"),
        ({"beta": 0.0}, "beta 0.0 is not possible; allowed: above 0"),
        ({"beta": float("nan")}, "beta nan is not possible"),
        ({"beta": float("inf")}, "beta inf is not possible"),
        ({"sampled_from": 5}, "10 clients cannot be kept of 5"),
        ({"classes": 9}, "labels run from 0 to 9; allowed with 9 classes: 0 to 8"),
        ({"setting": "pathological"}, "needs a number of classes per client; allowed: 1 to 10"),
        (
            {"setting": "pathological", "classes_per_client": 11},
            "classes per client 11 is not possible; allowed: 1 to 10",
        ),
        (
            {"setting": "pathological", "classes_per_client": 2, "clients": 4},
            "4 clients with 2 classes each cannot hold all 10 classes.*at least 3 classes per "
            "client or 5 clients",
        ),
    ],
)
def test_an_impossible_request_is_an_error_that_names_it(
    change: dict[str, Any], message: str
) -> None:
    inputs: dict[str, Any] = {"classes": 10, "setting": "practical", "clients": 10}
    with pytest.raises(UserError, match=message):
        make_partition(balanced(1000, 10), **(inputs | change))


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_an_impossible_fraction_is_an_error_that_names_it(fraction: float) -> None:
    with pytest.raises(UserError, match=f"fraction {fraction} is not possible"):
        subset(balanced(10, 2), fraction, 0)
