"""FedAdam against a loop over single numbers, and what travels."""

from __future__ import annotations

import math

import pytest
import torch
from by_hand import MODEL, finished
from toy import toy_algorithm, toy_client, toy_config, toy_server

from pfl_bench.engine.algorithm import Upload

HYPER = {"server_lr": 0.3, "beta1": 0.8, "beta2": 0.9, "tau": 0.05}


def test_three_rounds_equal_the_loop_over_single_numbers() -> None:
    algorithm = toy_algorithm(toy_config("fedadam", HYPER))
    _, start = toy_client(algorithm)
    state = algorithm.server_state(start)
    place = 7
    x = {part: float(start.parts[part][place]) for part in MODEL}
    m, v = dict.fromkeys(MODEL, 0.0), dict.fromkeys(MODEL, 0.05**2)
    for change in (0.5, -0.2, 0.01):
        uploads = [
            Upload(i, weight, {part: state[part] + change * factor for part in MODEL})
            for i, weight, factor in ((0, 0.25, 1.0), (1, 0.75, 3.0))
        ]
        state = algorithm.aggregate(toy_server(algorithm, state), iter(uploads))
        delta = 0.25 * change + 0.75 * 3 * change
        for part in MODEL:
            m[part] = 0.8 * m[part] + 0.2 * delta
            v[part] = 0.9 * v[part] + 0.1 * delta**2
            x[part] += 0.3 * m[part] / (math.sqrt(v[part]) + 0.05)
            assert float(state[part][place]) == pytest.approx(x[part], rel=1e-5)
            assert float(state["v"][part][place]) == pytest.approx(v[part], rel=1e-4)


def test_the_moments_survive_between_rounds_and_do_not_travel() -> None:
    simulator, (first, second) = finished(toy_config("fedadam", rounds=2))
    assert all(bool(simulator.snapshot.server["m"][part].any()) for part in MODEL)
    assert first.parameters_down == second.parameters_down == second.parameters_up
    assert second.parameters_up == 4 * simulator.task.build_model().size


def test_clients_train_as_in_fedavg() -> None:
    (_, ours), (_, fedavg) = finished(toy_config("fedadam")), finished(toy_config("fedavg"))
    assert ours[0].train_loss == fedavg[0].train_loss
    assert ours[0].loss != fedavg[0].loss


def test_with_a_server_rate_of_0_the_model_stays() -> None:
    simulator, _ = finished(toy_config("fedadam", {"server_lr": 0}))
    _, start = toy_client(simulator.algorithm)
    assert all(torch.equal(simulator.snapshot.server[p], start.parts[p]) for p in MODEL)
