"""Samples held back and clients kept from joining: who they are, and that nothing is lost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.base import UserError
from pfl_bench.data.partition import Partition
from pfl_bench.data.roles import roles_of


def partition(*sizes: int) -> Partition:
    """Clients with so many training samples and two to test on, all different."""
    numbers = iter(range(10**6))

    def some(count: int) -> np.ndarray:
        return np.array([next(numbers) for _ in range(count)])

    return Partition(tuple(map(some, sizes)), tuple(some(2) for _ in sizes))


@given(
    st.lists(st.integers(20, 60), min_size=2, max_size=8),
    st.floats(0.01, 0.5),
    st.integers(0, 10),
    st.data(),
)
def test_every_sample_and_client_has_one_role(
    sizes: list[int], share: float, seed: int, data: st.DataObject
) -> None:
    dealt = partition(*sizes)
    new = data.draw(st.integers(0, len(sizes) - 1))
    found = roles_of(dealt, validation=share, new_clients=new, batch_size=8, seed=seed)
    assert found.clients.clients == len(found.validation) == len(sizes) - new
    whole = {
        tuple(np.sort(train)): test for train, test in zip(dealt.train, dealt.test, strict=True)
    }
    parts = (found.clients.train, found.validation, found.clients.test)
    for train, held, test in zip(*parts, strict=True):
        together = tuple(np.sort(np.concatenate([train, held])))
        assert len(held) == max(1, round(share * len(together)))
        assert np.array_equal(whole.pop(together), test)
    assert len(whole) == new == (found.newcomers.clients if found.newcomers else 0)


def test_no_share_leaves_a_partition_as_it_is() -> None:
    dealt = partition(5, 1, 9)
    found = roles_of(dealt, batch_size=10)
    assert found.clients == dealt and found.newcomers is None
    assert [len(held) for held in found.validation] == [0, 0, 0]


def test_what_is_held_back_does_not_depend_on_who_joins() -> None:
    dealt = partition(30, 40, 50, 60)
    everybody = roles_of(dealt, validation=0.25, seed=3)
    some = roles_of(dealt, validation=0.25, new_clients=2, seed=3)
    assert {tuple(held) for held in some.validation} < {tuple(h) for h in everybody.validation}


def test_the_new_clients_of_a_smaller_number_are_among_those_of_a_larger() -> None:
    dealt = partition(*[20] * 9)
    chosen = [
        {tuple(train) for train in found.newcomers.train}
        for count in range(1, 9)
        if (found := roles_of(dealt, new_clients=count, seed=1)).newcomers
    ]
    assert all(few < more for few, more in pairwise(chosen))


def test_another_partition_seed_holds_back_others() -> None:
    left, right = (roles_of(partition(60), validation=0.5, seed=seed) for seed in (0, 1))
    assert not np.array_equal(left.validation[0], right.validation[0])


def test_a_client_with_less_than_a_batch_still_trains_on_what_it_has() -> None:
    assert len(roles_of(partition(6), validation=0.5, batch_size=10).clients.train[0]) == 3


@pytest.mark.parametrize(("samples", "share", "left"), [(12, 0.5, 6), (1, 0.2, 0), (10, 0.1, 9)])
def test_a_share_that_leaves_no_batch_is_refused(samples: int, share: float, left: int) -> None:
    with pytest.raises(UserError, match=rf"validation cannot be {share}: .*1 with {left} of"):
        roles_of(partition(40, samples), validation=share, batch_size=10)


@pytest.mark.parametrize("count", [3, 4])
def test_as_many_new_clients_as_there_are_is_refused(count: int) -> None:
    with pytest.raises(UserError, match=f"new_clients cannot be {count}.*allowed: 0 to 2"):
        roles_of(partition(20, 20, 20), new_clients=count)
