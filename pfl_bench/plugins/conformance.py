"""What every algorithm must hold, as tests that pytest collects.

A plugin's test file subclasses `AlgorithmConformance` and names its algorithm:

    class TestMyAlgo(AlgorithmConformance):
        name = load_plugin(Path(__file__).with_name("my_algo.py"))

That a method does what its paper says is not tested here: no general test can know.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from pfl_bench.base import UserError, shown
from pfl_bench.config import Knob, RunConfig, knobs, resolve
from pfl_bench.engine import CONVERGENCE, Algorithm, Client, Message, Server, leaves
from pfl_bench.plugins.registry import load_algorithm
from pfl_bench.plugins.testing import (
    toy_algorithm,
    toy_client,
    toy_config,
    toy_dataset,
    toy_partition,
    toy_roles,
    toy_run,
    toy_simulator,
    toy_text,
)
from pfl_bench.store import NEWCOMERS, VALIDATION, RoundRecord, same_result, to_json

_BLOCK_SIZE = 3
"""Less than the clients of a toy problem, so that there are two blocks of different sizes."""

_references: dict[str, list[RoundRecord]] = {}
"""By configuration: several properties compare with one run, which is computed once."""


# What usually breaks a property, for the message of its test.
_ORDER = (
    "a value kept on self, or a tensor of a message or state changed in place, which other clients "
    "see in an order that depends on the workers"
)
_UNDECLARED = (
    "something that is remembered between rounds and is neither in server_state nor in "
    "client_state, such as an attribute of self"
)
_RANDOM = "a draw without a generator; use client.generator(purpose)"
_PLANNED = "task.config.rounds is looked at; then say plans_rounds = True"
_OBSERVED = "a hook that recording also calls changes a state or draws random numbers"
_WAITS = (
    "a value of a tensor is asked for (.item(), float(), bool(), .tolist(), a mask as an index) or "
    "a tensor was made on the processor; make it with put() or of another one, and say with "
    "client.wait_for() and `waits` where it cannot stay there"
)
_WORKSPACE = "client.net is read before what was received is loaded into it"


class AlgorithmConformance:
    """The properties, each on a small problem; see the module's docstring."""

    name: ClassVar[str]
    """The algorithm under test."""
    hyper: ClassVar[Mapping[str, Any]] = {}
    """Hyper-parameters that differ from the defaults, to test a variant."""

    @pytest.fixture
    def algo(self) -> str:
        return self.name

    @pytest.fixture
    def reference(self, algo: str) -> list[RoundRecord]:
        """The records of the run of `_partly_joined`, on one worker and without a break."""
        config = self._partly_joined(algo)
        if config.request not in _references:
            _references[config.request] = toy_run(config)
        return _references[config.request]

    def _config(self, algo: str, **changes: Any) -> RunConfig:
        return toy_config(algo, self.hyper, **changes)

    def _partly_joined(self, algo: str) -> RunConfig:
        return self._config(algo, rounds=4, joining_ratio=(0.5, 1.0))

    # --- a run is a pure function of its configuration ----------------------------------------

    @pytest.mark.parametrize("workers", [2, 3])
    def test_worker_count_changes_no_bit(
        self, algo: str, reference: list[RoundRecord], workers: int
    ) -> None:
        assert_same(
            reference, toy_run(self._partly_joined(algo), workers=workers), usual_cause=_ORDER
        )

    def test_resuming_from_any_round_changes_no_bit(
        self, algo: str, reference: list[RoundRecord]
    ) -> None:
        config = self._partly_joined(algo)
        cut = random.Random(algo).randint(1, config.rounds - 1)
        first, second = toy_simulator(config), toy_simulator(config)
        before = list(islice(first.rounds(), cut))
        tensors = {name: value.clone() for name, value in first.snapshot.tensors().items()}
        second.resume(cut, tensors)
        assert_same(reference, [*before, *second.rounds()], usual_cause=_UNDECLARED)

    def test_a_longer_plan_changes_no_round_unless_the_method_says_that_it_looks(
        self, algo: str, reference: list[RoundRecord]
    ) -> None:
        """By this declaration a longer run continues a stored shorter one."""
        if load_algorithm(algo).plans_rounds:
            return
        longer = replace(self._partly_joined(algo), rounds=2 * len(reference))
        rounds = list(islice(toy_simulator(longer).rounds(), len(reference)))
        assert_same(reference, rounds, usual_cause=_PLANNED)

    def test_another_seed_gives_another_result(self, algo: str) -> None:
        left, right = (toy_run(self._config(algo, rounds=1, seed=seed)) for seed in (0, 1))
        assert left[0].train_loss != right[0].train_loss

    def test_global_random_state_is_left_alone(self, algo: str) -> None:
        before = _global_states()
        toy_run(self._config(algo, rounds=1))
        after = _global_states()
        used = [library for library in before if before[library] != after[library]]
        assert not used, f"the global generator was used of: {', '.join(used)}"

    def test_global_random_state_has_no_influence(self, algo: str) -> None:
        config = self._config(algo, rounds=1)
        with _global_seed(1):
            left = toy_run(config)
        with _global_seed(2):
            right = toy_run(config)
        assert_same(left, right, usual_cause=_RANDOM)

    def test_recording_the_convergence_changes_nothing_else(
        self, algo: str, reference: list[RoundRecord]
    ) -> None:
        """Scoring a model before its training must leave no trace in the training."""
        recorded = toy_run(replace(self._partly_joined(algo), record=(CONVERGENCE,)))
        plain = [replace(record, extras={}) for record in recorded]
        assert_same(reference, plain, usual_cause=_OBSERVED)

    # --- a card is not waited for -------------------------------------------------------------

    @pytest.mark.parametrize("model", ["cnn_small", "fasttext"])
    def test_no_client_waits_for_a_value_of_the_device(
        self, algo: str, model: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On the meta device, which has shapes and no values, asking for one is an error, and so is
        computing with a tensor that is not there."""
        config = self._config(
            algo, model=model, rounds=3, joining_ratio=(0.5, 1.0), batch_size=4, validation=0.2,
            record=(CONVERGENCE, *load_algorithm(algo).recordable),
        )  # fmt: skip
        dataset = toy_text() if model == "fasttext" else toy_dataset()
        simulator = toy_simulator(config, dataset, device="meta")
        asked = _count_calls(monkeypatch, Client, "wait_for")
        settled = _count_calls(monkeypatch, Server, "wait_for")
        try:
            records = list(simulator.rounds())
        except (NotImplementedError, RuntimeError) as error:
            pytest.fail(f"{error}; the usual cause: {_WAITS}")
        assert len(records) == config.rounds
        assert not asked or simulator.algorithm.waits, (
            f"a client waits; say why in {algo}'s `waits`"
        )
        assert len(settled) <= config.rounds, "the server waits more than once a round"

    # --- clients in blocks --------------------------------------------------------------------

    def test_clients_in_blocks_train_as_they_do_one_by_one(self, algo: str) -> None:
        """To rounding, over rounds in which some join and clients take different numbers of
        steps; a method that cannot is trained one by one, to the bit."""
        config = self._partly_joined(algo)
        alone, together = (
            toy_simulator(replace(config, block_size=size)) for size in (1, _BLOCK_SIZE)
        )
        for one, other in zip(alone.rounds(), together.rounds(), strict=True):
            assert one.joined == other.joined and one.bytes_up == other.bytes_up
            left, right = alone.snapshot.tensors(), together.snapshot.tensors()
            assert left.keys() == right.keys()
            for name, value in left.items():
                near = torch.allclose(right[name], value, rtol=2e-3, atol=2e-4, equal_nan=True)
                assert near, f"{name} differs in round {one.round}"

    def test_neither_workers_nor_resuming_nor_the_workspace_change_a_bit_in_blocks(
        self, algo: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = replace(self._partly_joined(algo), block_size=_BLOCK_SIZE)
        plain = toy_run(config)
        assert_same(plain, toy_run(config, workers=2), usual_cause=_ORDER)
        first, second = toy_simulator(config), toy_simulator(config, workers=2)
        before = list(islice(first.rounds(), 2))
        tensors = {name: value.clone() for name, value in first.snapshot.tensors().items()}
        second.resume(2, tensors)
        _poison_workspaces(monkeypatch)
        assert_same(plain, [*before, *second.rounds()], usual_cause=f"{_UNDECLARED}; {_WORKSPACE}")

    # --- what is sent and kept ----------------------------------------------------------------

    def test_bytes_counted_are_the_tensors_sent(
        self, algo: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kind = load_algorithm(algo)
        sent = {"up": 0, "down": 0}

        def weigh(direction: str, message: Message) -> None:
            for tensor in leaves(message):
                sent[direction] += tensor.detach().contiguous().numpy().nbytes

        def spied(hook: str) -> None:
            original = getattr(kind, hook)

            def spying(self: Any, client: Client, received: Message) -> Message:
                weigh("down", received)
                upload = original(self, client, received)
                weigh("up", upload)
                return upload

            monkeypatch.setattr(kind, hook, spying)

        spied("local_update")
        if kind.introduction is not Algorithm.introduction:
            spied("introduction")
        records = toy_run(self._config(algo))
        assert sent["up"] == sum(record.bytes_up for record in records)
        assert sent["down"] == sum(record.bytes_down for record in records)

    def test_declared_client_state_is_all_that_survives(
        self, algo: str, reference: list[RoundRecord], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Filling the workspace with NaN before each job must not change a bit."""
        _poison_workspaces(monkeypatch)
        assert_same(reference, toy_run(self._partly_joined(algo)), usual_cause=_WORKSPACE)

    def test_undeclared_client_state_is_refused(self, algo: str) -> None:
        client, _ = toy_client(toy_algorithm(self._config(algo)))
        with pytest.raises(KeyError, match="not declared"):
            client.state["smuggled"] = torch.zeros(1)

    def test_messages_and_states_are_never_changed_in_place(self, algo: str) -> None:
        simulator = toy_simulator(self._config(algo, rounds=4))
        rounds = simulator.rounds()
        next(rounds), next(rounds)
        tensors = simulator.snapshot.tensors()
        copies = {name: value.clone() for name, value in tensors.items()}
        next(rounds)
        changed = [name for name in tensors if not torch.equal(tensors[name], copies[name])]
        assert not changed, f"changed in place: {changed}"

    def test_memory_holds_a_model_per_client_only_if_the_method_keeps_one(self, algo: str) -> None:
        clients = 12
        config = self._config(algo, clients=clients, rounds=2, batch_size=3, setting="iid")
        dataset = toy_dataset(samples=120)
        client, _ = toy_client(toy_algorithm(config, dataset), dataset)
        kept = _bytes(leaves(client.state))
        workspace = initial_values = _bytes([client.net.vector])
        del client
        with _earlier_objects_aside():
            simulator = toy_simulator(config, dataset)
            for _ in simulator.rounds():
                pass
            snapshot = simulator.snapshot.tensors()
            server = _bytes(value for name, value in snapshot.items() if name.startswith("server/"))
            del snapshot
            held = _bytes(_living_tensors())
        allowed = clients * kept + server + workspace + initial_values
        assert held <= allowed, f"{held:,} bytes are held where {allowed:,} are accounted for"

    # --- a fair comparison --------------------------------------------------------------------

    def test_samples_held_back_decide_nothing_but_their_own_score(self, algo: str) -> None:
        """With other labels on them, training and test stay the same to the bit."""
        config, dataset = self._config(algo, rounds=2, validation=0.25), toy_dataset()
        held = np.concatenate(toy_roles(config, dataset).validation)
        y = dataset.y.copy()
        y[held] = (y[held] + 1) % dataset.classes
        partition = toy_partition(config, dataset)
        left, right = (
            toy_run(config, data, partition=partition) for data in (dataset, replace(dataset, y=y))
        )
        for record in left:
            assert sum(record.extras[VALIDATION]["total"]) == len(held)
        assert_same(*([replace(r, extras={}) for r in records] for records in (left, right)))

    def test_new_clients_are_scored_and_leave_no_trace(self, algo: str) -> None:
        """Whatever they adapt for, and with any number of workers; or the method says why not."""
        config = self._config(algo, rounds=2, new_clients=1)
        if reason := toy_algorithm(config).newcomer():
            assert reason.strip()
            return
        one, two = toy_run(config), toy_run(config, workers=2)
        assert_same(one, two)
        for record in one:
            (total,) = record.extras[NEWCOMERS]["total"]
            (correct,) = record.extras[NEWCOMERS]["correct"]
            assert 0 <= correct <= total and total > 0
        others = toy_run(replace(config, adapt_epochs=2))
        assert_same(*([replace(r, extras={}) for r in records] for records in (one, others)))

    # --- learning -----------------------------------------------------------------------------

    def test_training_loss_goes_down(self, algo: str) -> None:
        first, *_, last = toy_run(self._config(algo, rounds=6))
        assert first.train_loss is not None and last.train_loss is not None, (
            "local training reports no loss: use client.train or client.report"
        )
        assert last.train_loss < first.train_loss, f"from {first.train_loss} to {last.train_loss}"

    # --- what the plugin says of itself -------------------------------------------------------

    def test_the_plugin_describes_itself(self, algo: str) -> None:
        kind = load_algorithm(algo)
        for text in (kind.title, kind.summary, kind.citation, kind.scored_model):
            assert text.strip()

    def test_every_knob_says_what_it_means_and_where_it_comes_from(self, algo: str) -> None:
        for knob in _knobs(algo):
            assert knob.meaning and knob.source, f"{knob.name} does not"

    def test_no_default_switches_the_method_off(self, algo: str) -> None:
        for knob in _knobs(algo):
            if knob.off is not None:
                assert knob.off not in _defaults(knob), f"{knob.name} does"

    def test_every_default_is_a_value_that_a_user_may_give(self, algo: str) -> None:
        for knob in _knobs(algo):
            for default in _defaults(knob):
                assert knob.convert(default) == default, f"{knob.name} has a default that is not"

    def test_every_value_that_tuning_may_try_is_allowed_and_leaves_the_method_on(
        self, algo: str
    ) -> None:
        for knob in _knobs(algo):
            if knob.search is not None:
                assert knob.searched, f"{knob.name} does not say where its range comes from"
                for share in (0.0, 0.25, 0.5, 0.75, 1 - 2**-53):
                    value = knob.drawn(share)
                    assert knob.convert(value) == value, f"{knob.name} cannot be {value}"
                    assert value != knob.off, f"{knob.name} is switched off by {value}"

    def test_an_unknown_hyper_parameter_is_refused_in_a_sentence_that_lists_the_valid_ones(
        self, algo: str
    ) -> None:
        message = _refusal(algo, "no_such_knob", 1)
        assert "'no_such_knob'" in message
        assert all(knob.name in message for knob in _knobs(algo))

    def test_an_impossible_value_is_refused_in_a_sentence_that_says_what_is_allowed(
        self, algo: str
    ) -> None:
        for knob in _knobs(algo):
            for value in _impossible_values(knob):
                message = _refusal(algo, knob.name, value)
                assert f"{knob.name}={value!r}" in message
                assert knob.allowed in message


def _poison_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a workspace is full of NaN before each job."""

    class OnPoisonedWorkspace(Client):
        def __init__(self, *facts: Any):
            super().__init__(*facts)
            self.net.vector.fill_(math.nan)

    monkeypatch.setattr("pfl_bench.engine.simulator.Client", OnPoisonedWorkspace)


def assert_same(
    left: Sequence[RoundRecord], right: Sequence[RoundRecord], *, usual_cause: str = ""
) -> None:
    """The two runs agree to the last bit in everything but time; a failure names what differs
    first, and the usual cause where one is known."""
    hint = f"; the usual cause: {usual_cause}" if usual_cause else ""
    assert len(left) == len(right), f"{len(left)} rounds against {len(right)}{hint}"
    for a, b in zip(left, right, strict=True):
        assert same_result(a, b), f"round {a.round} differs in {differences(a, b)}{hint}"


def differences(a: RoundRecord, b: RoundRecord) -> str:
    """The fields in which two records differ, each with the first values that do."""
    found = []
    for field in fields(RoundRecord):
        one, other = getattr(a, field.name), getattr(b, field.name)
        if field.name == "seconds" or to_json(one) == to_json(other):
            continue
        where = ""
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            alike = [to_json(x) == to_json(y) for x, y in zip(one, other, strict=True)]
            place = alike.index(False)
            one, other, where = one[place], other[place], f"[{place}]"
        found.append(f"{field.name}{where} ({shown(one)} against {shown(other)})")
    return ", ".join(found)


def _global_states() -> dict[str, Any]:
    """Where the global generators stand, by library, as values that can be compared."""
    numpy = np.random.get_state(legacy=False)
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": (numpy["state"]["key"].tolist(), numpy["state"]["pos"], numpy["has_gauss"]),
        "random": random.getstate(),
    }


def _count_calls(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> list[Any]:
    """What a method is called with from now on."""
    calls, original = [], getattr(kind, method)

    def counted(self: Any, value: Any) -> Any:
        calls.append(value)
        return original(self, value)

    monkeypatch.setattr(kind, method, counted)
    return calls


@contextlib.contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """Global generators set to `seed`, and afterwards to what they were."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    yield
    torch.set_rng_state(before[0])
    np.random.set_state(before[1])
    random.setstate(before[2])


@contextlib.contextmanager
def _earlier_objects_aside() -> Iterator[None]:
    """What lives now is not looked through meanwhile, which among a million objects takes long."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _living_tensors() -> list[Tensor]:
    """Every floating-point tensor that is in use."""
    gc.collect()
    return [x for x in gc.get_objects() if type(x) is Tensor and x.is_floating_point()]


def _bytes(tensors: Any) -> int:
    """The memory behind some tensors, what they share counted once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _knobs(algo: str) -> list[Knob]:
    return list(knobs(load_algorithm(algo).Hyper).values())


def _defaults(knob: Knob) -> list[Any]:
    return [knob.default, *knob.by_model.values()]


def _impossible_values(knob: Knob) -> list[Any]:
    """Values of the wrong type, and values beyond each end of the range."""
    if knob.choices is not None or knob.kind is bool:
        return ["neither"]
    if knob.kind is str:
        return []
    beyond = [knob.low - 1] if knob.low is not None else []
    beyond += [knob.high + 1] if knob.high is not None else []
    return ["much", True, "nan", *beyond]


def _refusal(algo: str, name: str, value: Any) -> str:
    with pytest.raises(UserError) as caught:
        resolve(load_algorithm(algo).Hyper, "cnn", {name: value}, algo)
    return str(caught.value)
