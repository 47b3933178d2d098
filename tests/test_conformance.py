"""What every algorithm must hold, found by discovery: a new one is tested without an edit here."""

from __future__ import annotations

import gc
import random
from itertools import islice

import numpy as np
import pytest
import torch
from toy import toy_config, toy_dataset, toy_run, toy_simulator

from pfl_bench.client import ClientState
from pfl_bench.hyper import knobs
from pfl_bench.records import RoundRecord, same_result
from pfl_bench.registry import algorithm_names, load_algorithm
from pfl_bench.simulator import Simulator

ALGORITHMS = algorithm_names()


def assert_same(left: list[RoundRecord], right: list[RoundRecord]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert same_result(a, b), f"round {a.round} differs"


@pytest.fixture(params=ALGORITHMS)
def algo(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("workers", [2, 3])
def test_worker_count_changes_no_bit(algo: str, workers: int) -> None:
    config = toy_config(algo, joining_ratio=(0.5, 1.0))
    assert_same(toy_run(config, workers=1), toy_run(config, workers=workers))


def test_resuming_from_any_round_changes_no_bit(algo: str) -> None:
    config = toy_config(algo, rounds=4, joining_ratio=(0.5, 1.0))
    whole = toy_run(config)
    cut = random.Random(algo).randint(1, 3)
    first = toy_simulator(config)
    before = list(islice(first.rounds(), cut))
    tensors = {name: value.clone() for name, value in first.snapshot.tensors().items()}
    second = toy_simulator(config)
    second.resume(cut, tensors)
    assert_same(whole, [*before, *second.rounds()])


def test_another_seed_gives_another_result(algo: str) -> None:
    left, right = (toy_run(toy_config(algo, rounds=1, seed=seed)) for seed in (0, 1))
    assert left[0].train_loss != right[0].train_loss


def test_bytes_counted_are_the_tensors_sent(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = load_algorithm(algo)
    sent = {"up": 0, "down": 0}

    def weigh(direction: str, message: dict[str, torch.Tensor]) -> None:
        for tensor in message.values():
            sent[direction] += tensor.detach().contiguous().numpy().nbytes

    original = kind.local_update

    def spying(self: object, client: object, received: dict[str, torch.Tensor]) -> object:
        weigh("down", received)
        upload = original(self, client, received)  # type: ignore[arg-type]
        weigh("up", upload)
        return upload

    monkeypatch.setattr(kind, "local_update", spying)
    records = toy_run(toy_config(algo))
    assert sent["up"] == sum(record.bytes_up for record in records)
    assert sent["down"] == sum(record.bytes_down for record in records)


def test_declared_client_state_is_all_that_survives(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filling the workspace with NaN before each job must not change a bit."""
    config = toy_config(algo)
    clean = toy_run(config)
    original = Simulator._load_stats

    def poisoned(self: Simulator, net: object, index: int) -> None:
        net.vector.fill_(float("nan"))  # type: ignore[attr-defined]
        original(self, net, index)  # type: ignore[arg-type]

    monkeypatch.setattr(Simulator, "_load_stats", poisoned)
    assert_same(clean, toy_run(config))


def test_undeclared_client_state_is_refused(algo: str) -> None:
    simulator = toy_simulator(toy_config(algo))
    state = ClientState(simulator._fresh_state, {})
    with pytest.raises(KeyError, match="not declared"):
        state["smuggled"] = torch.zeros(1)


def test_training_loss_goes_down(algo: str) -> None:
    records = toy_run(toy_config(algo, rounds=6))
    assert records[-1].train_loss < records[0].train_loss


def test_global_random_state_is_left_alone(algo: str) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    toy_run(toy_config(algo, rounds=1))
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    assert before[2] == random.getstate()


def test_global_random_state_has_no_influence(algo: str) -> None:
    config = toy_config(algo, rounds=1)
    torch.manual_seed(1)
    left = toy_run(config)
    torch.manual_seed(2)
    assert_same(left, toy_run(config))


def test_messages_and_states_are_never_changed_in_place(algo: str) -> None:
    simulator = toy_simulator(toy_config(algo, rounds=4))
    rounds = simulator.rounds()
    next(rounds), next(rounds)
    tensors = simulator.snapshot.tensors()
    copies = {name: value.clone() for name, value in tensors.items()}
    next(rounds)
    assert all(torch.equal(tensors[name], copies[name]) for name in tensors)


def test_memory_holds_a_model_per_client_only_if_the_method_keeps_one(algo: str) -> None:
    clients = 12
    config = toy_config(algo, clients=clients, rounds=2, batch_size=2, beta=1.0)
    simulator = toy_simulator(config, toy_dataset(samples=240))
    for _ in simulator.rounds():
        pass
    kept = sum(value.numel() for value in simulator._fresh_state.values())
    server = {
        tensor.data_ptr(): tensor.numel()
        for name, tensor in simulator.snapshot.tensors().items()
        if name.startswith("server/")
    }
    workspace = len(simulator._workspaces.get().vector)
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) is torch.Tensor and thing.dtype == torch.float32:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes() // 4
    initial_values = workspace
    allowed = clients * kept + sum(server.values()) + workspace + initial_values
    assert sum(storages.values()) <= allowed


def test_no_default_switches_the_method_off(algo: str) -> None:
    for knob in knobs(load_algorithm(algo).Hyper).values():
        if knob.off is not None:
            assert knob.default != knob.off
            assert knob.off not in knob.by_model.values()


def test_every_knob_says_what_it_means_and_where_it_comes_from(algo: str) -> None:
    for knob in knobs(load_algorithm(algo).Hyper).values():
        assert knob.meaning and knob.source


def test_the_plugin_describes_itself(algo: str) -> None:
    kind = load_algorithm(algo)
    for text in (kind.title, kind.summary, kind.citation, kind.scored_model):
        assert text.strip()
