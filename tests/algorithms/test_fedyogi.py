"""FedYogi: its second moment against the loop over single numbers, and FedAdam beside it."""

from __future__ import annotations

import math

import pytest
import torch
from by_hand import finished
from toy import toy_algorithm, toy_client, toy_config, toy_server

from pfl_bench.engine.algorithm import Upload


def test_rounds_equal_the_loop_over_single_numbers() -> None:
    """A large change and then small ones, so that the sign of v − Δ² takes both values."""
    algorithm = toy_algorithm(toy_config("fedyogi", {"server_lr": 0.1, "beta2": 0.7}))
    _, start = toy_client(algorithm)
    state = algorithm.server_state(start)
    x, m, v, signs = float(start.parts["head"][3]), 0.0, 1e-6, set()
    for delta in (0.9, 0.05, -0.02):
        sent = {part: state[part] + delta for part in ("extractor", "head")}
        state = algorithm.aggregate(toy_server(algorithm, state), iter([Upload(0, 1.0, sent)]))
        m = 0.9 * m + 0.1 * delta
        signs.add(v > delta**2)
        v = v - 0.3 * delta**2 if v > delta**2 else v + 0.3 * delta**2
        x += 0.1 * m / (math.sqrt(v) + 1e-3)
        assert float(state["head"][3]) == pytest.approx(x, rel=1e-4)
    assert signs == {True, False}


def test_it_forgets_a_large_change_more_slowly_than_adam() -> None:
    yogi, adam = (toy_algorithm(toy_config(name)) for name in ("fedyogi", "fedadam"))
    v, small = torch.tensor([4.0]), torch.tensor([0.01])
    assert float(yogi.second_moment(v, small)) > float(adam.second_moment(v, small))


def test_a_run_differs_from_fedadam_in_the_server_alone() -> None:
    (_, ours), (_, adam) = finished(toy_config("fedyogi")), finished(toy_config("fedadam"))
    assert ours[0].train_loss == adam[0].train_loss
    assert ours[0].parameters_up == adam[0].parameters_up
    assert ours[1].loss != adam[1].loss
