"""What every algorithm must hold, found by discovery: a new one is tested without an edit here.

And the other way round: an algorithm that breaks a rule fails the test of that rule.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent, indent

import pytest

from pfl_bench.plugins.conformance import AlgorithmConformance, assert_same, differences
from pfl_bench.plugins.registry import algorithm_names, load_plugin
from pfl_bench.plugins.testing import toy_config, toy_run
from pfl_bench.store.records import RoundRecord


class TestEveryAlgorithm(AlgorithmConformance):
    @pytest.fixture(params=algorithm_names())
    def algo(self, request: pytest.FixtureRequest) -> str:
        return request.param


class TestFedCPWithNoise(AlgorithmConformance):
    name = "fedcp"
    hyper = {"gumbel": True, "score": "after"}


CONFORMANCE = AlgorithmConformance()


def plugin(folder: Path, name: str, body: str) -> str:
    """An algorithm that differs from FedAvg by the lines of `body`."""
    lines = """
        import numpy, random, torch
        from pfl_bench.engine.algorithm import Algorithm

        class Rogue(Algorithm):
            title = summary = citation = "Rogue"
        """
    path = folder / f"{name}.py"
    path.write_text(dedent(lines) + indent(dedent(body), "    "))
    return load_plugin(path)


@pytest.mark.parametrize(
    ("library", "draw"),
    [("torch", "torch.rand(())"), ("numpy", "numpy.random.rand()"), ("random", "random.random()")],
)
def test_randomness_from_a_global_generator_is_noticed(
    tmp_path: Path, library: str, draw: str
) -> None:
    algo = plugin(
        tmp_path,
        f"rogue_{library}",
        f"""
        def loss(self, client, batch):
            return super().loss(client, batch) * {draw}
        """,
    )
    with pytest.raises(AssertionError, match=f"was used of: {library}$"):
        CONFORMANCE.test_global_random_state_is_left_alone(algo)
    with pytest.raises(AssertionError, match="differs"):
        CONFORMANCE.test_global_random_state_has_no_influence(algo)


def test_state_that_no_checkpoint_holds_is_noticed(tmp_path: Path) -> None:
    algo = plugin(
        tmp_path,
        "rogue_counter",
        """
        calls = 0

        def aggregate(self, server, uploads):
            self.calls += 1
            return super().aggregate(server, uploads)

        def loss(self, client, batch):
            return super().loss(client, batch) / (1 + self.calls)
        """,
    )
    reference = toy_run(CONFORMANCE._partly_joined(algo))
    told = r"differs in .*train_loss \(.*the usual cause: something that is remembered between"
    with pytest.raises(AssertionError, match=told):
        CONFORMANCE.test_resuming_from_any_round_changes_no_bit(algo, reference)


def test_training_on_what_is_held_back_is_noticed(tmp_path: Path) -> None:
    algo = plugin(
        tmp_path,
        "rogue_peeping",
        """
        def loss(self, client, batch):
            held = client.shard.pool.y[client.shard.validation]
            return super().loss(client, batch) * (1 + held.sum())
        """,
    )
    with pytest.raises(AssertionError, match="differs"):
        CONFORMANCE.test_samples_held_back_decide_nothing_but_their_own_score(algo)


def test_learning_from_clients_that_never_join_is_noticed(tmp_path: Path) -> None:
    algo = plugin(
        tmp_path,
        "rogue_host",
        """
        met = 0.0

        def train(self, client, received):
            super().train(client, received)
            if client.index >= self.task.clients:
                self.met += len(list(client.batches()))

        def loss(self, client, batch):
            return super().loss(client, batch) / (1 + self.met)
        """,
    )
    with pytest.raises(AssertionError, match="differs"):
        CONFORMANCE.test_new_clients_are_scored_and_leave_no_trace(algo)


def test_a_failure_names_the_fields_that_differ_and_the_first_client() -> None:
    left = RoundRecord(1, [0, 1], [5, 6], [9, 9], [0.5, 0.25], 1.5, bytes_up=7)
    right = replace(left, correct=[5, 8], train_loss=2.5, seconds={"total": 3.0})
    said = "correct[1] (6 against 8), train_loss (1.5 against 2.5)"
    assert differences(left, right) == said
    assert differences(left, replace(left, seconds={"total": 9.0})) == ""
    with pytest.raises(AssertionError, match=r"round 1 differs in correct\[1\] .*: because"):
        assert_same([left], [right], usual_cause="because")


def test_looking_at_the_planned_rounds_in_secret_is_noticed(tmp_path: Path) -> None:
    algo = plugin(
        tmp_path,
        "rogue_plan",
        """
        def loss(self, client, batch):
            return super().loss(client, batch) * client.round / self.task.config.rounds
        """,
    )
    reference = toy_run(CONFORMANCE._partly_joined(algo))
    with pytest.raises(AssertionError, match=r"differs in .*say plans_rounds = True"):
        CONFORMANCE.test_a_longer_plan_changes_no_round_unless_the_method_says_that_it_looks(
            algo, reference
        )


def test_reading_what_another_client_left_in_the_workspace_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algo = plugin(tmp_path, "rogue_workspace", 'shared = ("extractor",)')
    reference = toy_run(CONFORMANCE._partly_joined(algo))
    with pytest.raises(AssertionError, match=r"differs|rounds against"):
        CONFORMANCE.test_declared_client_state_is_all_that_survives(algo, reference, monkeypatch)


def test_changing_the_servers_state_in_place_is_noticed(tmp_path: Path) -> None:
    algo = plugin(
        tmp_path,
        "rogue_in_place",
        """
        def aggregate(self, server, uploads):
            for name, value in super().aggregate(server, uploads).items():
                server.state[name].copy_(value)
            return server.state
        """,
    )
    with pytest.raises(AssertionError, match="changed in place"):
        CONFORMANCE.test_messages_and_states_are_never_changed_in_place(algo)


def test_keeping_a_model_per_client_in_secret_is_noticed(tmp_path: Path) -> None:
    algo = plugin(
        tmp_path,
        "rogue_hoard",
        """
        def upload(self, client):
            hoard = self.__dict__.setdefault("hoard", {})
            hoard[client.index] = super().upload(client)
            return hoard[client.index]
        """,
    )
    with pytest.raises(AssertionError, match="bytes are held"):
        CONFORMANCE.test_memory_holds_a_model_per_client_only_if_the_method_keeps_one(algo)


def test_scoring_that_leaves_a_trace_in_training_is_noticed(tmp_path: Path) -> None:
    algo = plugin(
        tmp_path,
        "rogue_scoring",
        """
        def scored(self, client, received):
            super().scored(client, received)
            client.memo["scored"] = True

        def loss(self, client, batch):
            return super().loss(client, batch) * (0.5 if "scored" in client.memo else 1.0)
        """,
    )
    reference = toy_run(CONFORMANCE._partly_joined(algo))
    with pytest.raises(AssertionError, match="differs"):
        CONFORMANCE.test_recording_the_convergence_changes_nothing_else(algo, reference)


@pytest.mark.parametrize(
    "question",
    ["loss.item()", "float(loss)", "bool(loss > 0)", "batch.y.tolist()", "loss.cpu()",
     "batch.x[batch.y > 0]", "loss + torch.ones(3)"],
)  # fmt: skip
def test_asking_the_device_for_a_value_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    algo = plugin(
        tmp_path,
        "rogue_asking",
        f"""
        def loss(self, client, batch):
            loss = super().loss(client, batch)
            {question}
            return loss
        """,
    )
    with pytest.raises(pytest.fail.Exception, match="the usual cause: a value of a tensor"):
        CONFORMANCE.test_no_client_waits_for_a_value_of_the_device(algo, "cnn_small", monkeypatch)


def test_waiting_without_saying_why_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algo = plugin(
        tmp_path,
        "rogue_waiting",
        """
        def loss(self, client, batch):
            loss = super().loss(client, batch)
            client.wait_for(loss)
            return loss
        """,
    )
    with pytest.raises(AssertionError, match="a client waits; say why"):
        CONFORMANCE.test_no_client_waits_for_a_value_of_the_device(algo, "cnn_small", monkeypatch)


def test_a_default_that_switches_the_method_off_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rogue_default.py"
    path.write_text(
        dedent(
            """
            from dataclasses import dataclass
            from pfl_bench.engine.algorithm import Algorithm
            from pfl_bench.config.hyper import knob

            @dataclass(frozen=True)
            class Switches:
                mu: float = knob(0.0, "weight", source="test", off=0.0, high=-1)

            class Rogue(Algorithm):
                title = summary = citation = "Rogue"
                Hyper = Switches
            """
        )
    )
    algo = load_plugin(path)
    with pytest.raises(AssertionError, match="mu does"):
        CONFORMANCE.test_no_default_switches_the_method_off(algo)
    with pytest.raises((AssertionError, ValueError)):
        CONFORMANCE.test_every_default_is_a_value_that_a_user_may_give(algo)


def test_a_variant_is_tested_with_its_own_hyper_parameters() -> None:
    assert TestFedCPWithNoise()._config("fedcp") == toy_config(
        "fedcp", {"gumbel": True, "score": "after"}
    )
