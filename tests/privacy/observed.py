"""A run to be looked at by a server, for the tests of what it sees."""

from __future__ import annotations

from typing import Any

from toy import toy_config, toy_simulator

from pfl_bench.engine.simulator import Simulator


def after_rounds(algo: str, rounds: int = 2, **changes: Any) -> Simulator:
    """As a trained model gives it: the state after the last round, and no round under way."""
    config = toy_config(algo, rounds=rounds, **changes)
    trained = toy_simulator(config)
    for _ in trained.rounds():
        pass
    simulator = toy_simulator(config)
    simulator.snapshot = trained.snapshot
    return simulator
