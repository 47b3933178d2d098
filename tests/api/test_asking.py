"""What follows from what a user says of a run."""

from __future__ import annotations

from typing import Any

import pytest

from pfl_bench.api import profile_for, table_profile
from pfl_bench.api.asking import gather
from pfl_bench.reporting.tables.reading import load_table

REAL = {"source": "real", "dataset": "mnist"}
EMBEDDED = {"dataset": "MNIST"}


@pytest.mark.parametrize(
    ("chosen", "data_dir", "expected"),
    [
        ({}, None, "quick"),
        (EMBEDDED, None, "quick"),
        ({"source": "standin"}, "data", "quick"),
        (EMBEDDED, "data", "lite"),
        (REAL, None, "lite"),
        ({"dataset": "birds"}, None, "lite"),
        ({"partition": "pfllib:birds"}, None, "lite"),
    ],
)
def test_without_a_name_the_profile_is_that_of_the_data(
    chosen: dict[str, Any], data_dir: str | None, expected: str
) -> None:
    assert gather(None, chosen, {}, data_dir, None).profile.name == expected
    assert gather(None, chosen, {}, data_dir, "paper").profile.name == "paper"


def test_one_stand_in_among_real_data_makes_it_the_profile_that_takes_both() -> None:
    assert profile_for(None, [REAL, REAL]).name == "lite"
    assert profile_for(None, [REAL, EMBEDDED]).name == "quick"


def test_a_table_on_real_data_gets_the_profile_for_them() -> None:
    main = load_table("main")
    assert table_profile(None, main).name == "quick"
    assert table_profile(None, main.on_real_data()).name == "lite"
    assert table_profile("quick", main.on_real_data()).name == "quick"
