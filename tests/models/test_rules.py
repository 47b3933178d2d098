"""Operations for several networks at once, beside the same done plainly."""

from __future__ import annotations

import torch

from pfl_bench.models.rules import add_rows


def test_rows_that_are_named_again_and_again_are_added_each_time_in_one_order() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 20, (500,), generator=generator)
    changes = torch.randn(500, 4, generator=generator)
    table = torch.randn(30, 4, generator=generator)
    expected = table.double()
    for row, change in zip(rows, changes, strict=True):
        expected[row] += change
    again = table.clone()
    add_rows(table, rows, changes)
    add_rows(again, rows, changes)
    torch.testing.assert_close(table, expected.float())
    assert torch.equal(table, again)
