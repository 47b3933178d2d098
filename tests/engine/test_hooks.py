"""What a plugin can ask of the engine beyond FedAvg: each hook on a method made up for it."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import toy_algorithm, toy_client, toy_config, toy_dataset, toy_partition, toy_simulator

from pfl_bench.algorithms.fedavg import FedAvg
from pfl_bench.base.errors import UserError
from pfl_bench.config.hyper import NoKnobs
from pfl_bench.config.run_config import RunConfig
from pfl_bench.engine.algorithm import Algorithm, Start, Upload, build_network, weighted_mean
from pfl_bench.engine.client import Client, Message
from pfl_bench.engine.server import Server, ServerState
from pfl_bench.engine.simulator import Simulator, sample_clients
from pfl_bench.models.backbones import Model
from pfl_bench.store import checkpoint
from pfl_bench.store.records import same_result


def simulator_of(
    kind: type[Algorithm], config: RunConfig | None = None, workers: int = 1
) -> Simulator:
    config, dataset = config or toy_config(rounds=2), toy_dataset()
    partition = toy_partition(config, dataset)
    simulator = Simulator(kind, config, dataset, partition, workers=workers)
    simulator.prepare()
    return simulator


# --- the server -----------------------------------------------------------------------------------


def test_the_server_counts_the_whole_rounds_behind_its_state() -> None:
    seen: list[tuple[str, int]] = []

    class Counts(FedAvg):
        def download(self, server: Server, client: int) -> Message:
            seen.append(("sends", server.round))
            return super().download(server, client)

        def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
            state = super().aggregate(server, uploads)
            seen.append(("receives", server.round))
            return state

    list(simulator_of(Counts, toy_config(clients=1, setting="iid")).rounds())
    trained_then_scored = (
        (("sends", t), ("receives", t), ("sends", t + 1))  # to train, and to score
        for t in range(3)
    )
    assert seen == list(itertools.chain(*trained_then_scored))


def test_the_servers_random_numbers_follow_seed_purpose_round_and_client() -> None:
    def draw(seed: int = 0, purpose: str = "p", round: int = 0, client: int = 1) -> float:
        simulator = simulator_of(FedAvg, toy_config(seed=seed))
        server = simulator.server()
        server.round = round
        return float(torch.rand(1, generator=server.generator(purpose, client)))

    draws = [draw(), draw(seed=1), draw(purpose="q"), draw(round=1), draw(client=2)]
    assert len(set(draws)) == 5 and draw() == draws[0]


class Looks(FedAvg):
    """Uses the server's network while its only worker is still training."""

    recordable = {"norm": "the length of the averaged model", "number": "the client's number"}

    def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
        first = next(uploads)
        with server.workspace() as net:
            assert math.isnan(float(net.trainable.sum())), "a workspace holds nothing at first"
            net.load(first.message)
            assert torch.equal(net["head"], first.message["head"])
        state = dict(weighted_mean([first, *uploads]))
        with server.workspace() as net:
            net.load(state)
            server.record("norm", net.trainable.norm())
        return state

    def record(self, client: Client, series: str) -> Any:
        assert series == "number"
        return client.index


def test_the_server_has_a_network_of_its_own() -> None:
    plain, looking = (list(simulator_of(kind).rounds()) for kind in (FedAvg, Looks))
    assert all(map(same_result, plain, looking))


def test_a_series_of_the_server_is_recorded_where_it_is_asked_for() -> None:
    config = toy_config(rounds=3, eval_every=3, record=("norm", "number"))
    simulator = simulator_of(Looks, config)
    records = list(simulator.rounds())
    lengths = [record.extras["norm"] for record in records]
    model = torch.cat([simulator.snapshot.server[part] for part in ("extractor", "head")])
    assert len(set(lengths)) == 3 and lengths[-1] == pytest.approx(float(model.norm()))
    assert [record.extras.get("number") for record in records] == [None, None, [0, 1, 2, 3]]
    assert not next(simulator_of(Looks).rounds()).extras


def test_only_the_aggregation_records() -> None:
    class Chatty(FedAvg):
        def download(self, server: Server, client: int) -> Message:
            server.record("norm", 1.0)
            return super().download(server, client)

    with pytest.raises(RuntimeError, match="'norm' can only be recorded while uploads"):
        next(simulator_of(Chatty).rounds())


def test_work_is_spread_in_order() -> None:
    class Spreads(FedAvg):
        def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
            everyone = list(uploads)
            scaled = server.spread(lambda u: Upload(u.client, u.weight, u.message), everyone)
            return dict(weighted_mean(scaled))

    plain, spread = (list(simulator_of(kind, workers=2).rounds()) for kind in (FedAvg, Spreads))
    assert all(map(same_result, plain, spread))


def test_what_the_aggregation_does_not_renew_stays_in_the_servers_state() -> None:
    class Keeps(FedAvg):
        def server_state(self, start: Start) -> ServerState:
            return {**super().server_state(start), "birthday": torch.tensor([18.0])}

    simulator = simulator_of(Keeps)
    list(simulator.rounds())
    assert simulator.snapshot.server["birthday"].tolist() == [18.0]


# --- trees ----------------------------------------------------------------------------------------


class Branches(FedAvg):
    """States and messages of every form: lists, dictionaries by name and by label, empty ones."""

    def server_state(self, start: Start) -> ServerState:
        return {**super().server_state(start), "past": [], "labels": {}, "deep": {"m": [{}]}}

    def client_state(self, start: Start) -> Message:
        return {"seen": {}}

    def download(self, server: Server, client: int) -> Message:
        return {**super().download(server, client), "labels": server.state["labels"]}

    def train(self, client: Client, received: Message) -> None:
        super().train(client, received)
        known = {label: value + 1 for label, value in received["labels"].items()}
        client.state["seen"] = client.state["seen"] | known

    def upload(self, client: Client) -> Message:
        counts = client.shard.class_counts.double()
        held = {label: counts[label] for label in range(len(counts)) if counts[label]}
        return {"model": super().upload(client), "held": held, "twice": [torch.ones(3)] * 2}

    def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
        mean = weighted_mean(uploads)
        past = [*server.state["past"], mean["twice"][0]]
        return {**server.state, **mean["model"], "past": past, "labels": mean["held"]}


def test_bytes_and_parameters_are_counted_over_all_leaves() -> None:
    simulator = simulator_of(Branches)
    first, second = simulator.rounds()
    model = simulator.algorithm.task.build_model().size
    labels = [int((shard.class_counts > 0).sum()) for shard in simulator.shards]
    assert first.parameters_up == sum(model + held + 6 for held in labels)
    assert first.bytes_up == sum(4 * model + 8 * held + 24 for held in labels)
    assert first.parameters_down == 4 * model
    assert second.parameters_down == 4 * (model + len(simulator.snapshot.server["labels"]))


def test_a_leaf_that_is_not_finite_is_a_divergence() -> None:
    class Breaks(Branches):
        def upload(self, client: Client) -> Message:
            return {**super().upload(client), "twice": [torch.ones(1), torch.tensor([math.inf])]}

    simulator = simulator_of(Breaks)
    list(simulator.rounds())
    assert "the upload of client 0 holds values that are not finite" in str(simulator.diverged)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_tree_survives_a_checkpoint_on_disk(tmp_path: Path, cut: int) -> None:
    config = toy_config(rounds=4)
    whole = list(simulator_of(Branches, config).rounds())
    first, second = simulator_of(Branches, config), simulator_of(Branches, config)
    rounds = first.rounds()
    begun = [next(rounds) for _ in range(cut)]
    checkpoint.write(tmp_path / "checkpoint", first.snapshot.tensors(), {"round": cut})
    stored, _ = checkpoint.read(tmp_path / "checkpoint")
    second.resume(cut, stored)
    assert all(map(same_result, whole, [*begun, *second.rounds()]))
    assert len(second.snapshot.server["past"]) == 4
    assert second.snapshot.server["deep"] == {"m": [{}]}


# --- local steps ----------------------------------------------------------------------------------


def test_a_correction_is_added_to_the_gradient_of_every_step() -> None:
    """The same as a loss with the term ⟨c, θ⟩, which autograd differentiates."""
    algorithm = toy_algorithm(toy_config())
    client, start = toy_client(algorithm)
    generator = torch.Generator().manual_seed(1)
    correction = {
        part: torch.randn(len(value), generator=generator) for part, value in start.parts.items()
    }

    def with_term(batch: Any) -> Tensor:
        flat = torch.cat([_in_memory_order(p) for p in client.net.parameters()])
        return algorithm.loss(client, batch) + flat @ torch.cat(list(correction.values()))

    client.train(with_term)
    expected = client.net.trainable.clone()
    client.net.load(start.parts)
    client.train(lambda batch: algorithm.loss(client, batch), correction=correction)
    torch.testing.assert_close(client.net.trainable, expected, rtol=1e-4, atol=1e-5)
    assert not torch.equal(expected, start.model)


def _in_memory_order(parameter: Tensor) -> Tensor:
    """Kernels lie channels-last in the vector."""
    return (parameter.permute(0, 2, 3, 1) if parameter.dim() == 4 else parameter).reshape(-1)


@pytest.mark.parametrize(
    "options",
    [{"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.2}],
)
@pytest.mark.parametrize("parts", [None, ("head",)])
def test_momentum_and_weight_decay_are_those_of_torch(
    options: dict[str, float], parts: tuple[str, ...] | None
) -> None:
    algorithm = toy_algorithm(toy_config(local_epochs=3, **options))
    client, _ = toy_client(algorithm)
    plain = copy.deepcopy([client.net.module(part) for part in ("extractor", "head")])
    model = nn.Sequential(*plain)
    trained = model if parts is None else model[1]
    optimiser = torch.optim.SGD(trained.parameters(), lr=client.lr, **options)
    for batch in client.batches():
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch.x), batch.y).backward()
        optimiser.step()
    client.train(lambda batch: algorithm.loss(client, batch), parts=parts)
    for part, module in zip(("extractor", "head"), plain, strict=True):
        pairs = zip(client.net.module(part).parameters(), module.parameters(), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=3e-5)


def test_weight_decay_beside_a_tie_and_a_correction_is_the_sum_of_their_gradients() -> None:
    """A step from θ on ½‖θ‖² with all three: θ − η(θ + s(θ − w) + c + dθ)."""
    algorithm = toy_algorithm(toy_config(weight_decay=0.3))
    client, start = toy_client(algorithm)
    theta, w, c = start.parts["head"], start.parts["head"] + 1, torch.full((), 2.0)
    client.train(
        lambda batch: 0.5 * sum((p**2).sum() for p in client.net.parameters(("head",))),
        batches=[next(client.batches())],
        parts=("head",),
        lr=0.1,
        toward={"head": w},
        strength=0.5,
        correction={"head": c.expand_as(w)},
    )
    expected = theta - 0.1 * (theta + 0.5 * (theta - w) + c + 0.3 * theta)
    torch.testing.assert_close(client.net["head"], expected)


def test_the_learning_rate_decays_from_round_to_round() -> None:
    algorithm = toy_algorithm(toy_config(lr=0.5, lr_decay=0.9))
    rates = [toy_client(algorithm, round=t)[0].lr for t in (1, 2, 4)]
    assert rates == pytest.approx([0.5, 0.45, 0.5 * 0.9**3])


@pytest.mark.parametrize("option", [{"momentum": 0.9}, {"weight_decay": 0.1}])
def test_a_method_whose_steps_are_its_own_refuses_options_that_it_would_ignore(
    option: dict[str, float],
) -> None:
    reason = toy_simulator(toy_config("perfedavg", batch_size=2, **option)).impossible
    assert reason == "Per-FedAvg takes plain steps: no momentum, no weight decay"


def test_fine_tuning_is_sgd_on_the_named_parts_and_counts_as_no_training() -> None:
    algorithm = toy_algorithm(toy_config())
    client, start = toy_client(algorithm)
    client.fine_tune(
        lambda batch: algorithm.loss(client, batch), client.batches(2), parts=("head",), lr=0.1
    )
    tuned = client.net.copy(client.net.parts)
    assert client.train_loss is None
    assert torch.equal(tuned["extractor"], start.parts["extractor"])
    client.net.load(start.parts)
    client.train(
        lambda batch: algorithm.loss(client, batch),
        batches=client.batches(2),
        parts=("head",),
        lr=0.1,
    )
    torch.testing.assert_close(tuned["head"], client.net["head"], rtol=1e-5, atol=1e-6)


# --- parts ----------------------------------------------------------------------------------------


class KeepsBiases(FedAvg):
    """Shares everything but the biases: parameters picked out of both modules."""

    personal = ("biases",)

    def parts(self, model: Model) -> dict[str, nn.Module]:
        named = [*model.extractor.named_parameters(), *model.head.named_parameters()]
        biases = nn.ParameterList([p for name, p in named if name.endswith("bias")])
        return {**super().parts(model), "biases": biases}


def test_single_parameters_stay_on_the_client() -> None:
    simulator = simulator_of(KeepsBiases, toy_config(rounds=1))
    rounds = simulator.rounds()
    record = next(rounds)
    with simulator.client(0, 2) as client:
        biases = [p for n, p in client.net.module("extractor").named_parameters() if "bias" in n]
        count = sum(p.numel() for p in biases) + client.net.module("head").bias.numel()
        own = client.state["biases"]
        assert own.numel() == count > 0
        client.net.load({"biases": torch.arange(float(count))})
        assert torch.equal(torch.cat([p.detach() for p in biases]), torch.arange(count - 4.0))
    assert record.parameters_up == 4 * (simulator.task.build_model().size - count)
    kept = [state["biases"] for state in simulator.snapshot.clients.values()]
    assert len(kept) == 4 and not torch.equal(kept[0], kept[1])


def test_with_one_client_keeping_parameters_is_plain_training() -> None:
    """All parameters move as in FedAvg, wherever they lie."""
    config = toy_config(clients=1, setting="iid", rounds=2)
    plain, picked = (list(simulator_of(kind, config).rounds()) for kind in (FedAvg, KeepsBiases))
    assert [r.loss for r in plain] == [r.loss for r in picked]


def refused(**declared: Any) -> str:
    kind = type("Mine", (Algorithm,), {"title": "Mine", **declared})
    with pytest.raises(UserError) as caught:
        build_network(kind(NoKnobs(), toy_algorithm(toy_config()).task))
    return str(caught.value)


def test_one_module_under_two_names_is_refused() -> None:
    def parts(self: Algorithm, model: Model) -> dict[str, nn.Module]:
        return {"extractor": model.extractor, "head": model.head, "twin": model.head}

    assert "the parts 'head' and 'twin' hold the same parameter (weight)" in refused(parts=parts)


def test_a_module_inside_another_is_refused() -> None:
    def parts(self: Algorithm, model: Model) -> dict[str, nn.Module]:
        both = nn.Sequential(model.extractor, model.head)
        return {"extractor": model.extractor, "head": both}

    assert "'extractor' and 'head' hold the same parameter" in refused(parts=parts)


def test_a_part_that_is_received_and_kept_is_refused() -> None:
    sentence = refused(personal=("head",))
    assert sentence.startswith("Mine.shared and Mine.personal both name 'head': what is kept would")


def test_a_method_that_loads_its_parts_itself_may_receive_and_keep_one() -> None:
    class Mine(Algorithm):
        personal = ("head",)

        def load(self, client: Client, received: Message) -> None:
            client.net.load(received)

    build_network(Mine(NoKnobs(), toy_algorithm(toy_config()).task))


# --- the start ------------------------------------------------------------------------------------


def test_several_initial_models_are_drawn_by_the_seed() -> None:
    def start(seed: int) -> Start:
        return toy_client(toy_algorithm(toy_config(seed=seed)))[1]

    one, again, other = start(0), start(0), start(1)
    assert torch.equal(one.drawn(0)["head"], one.parts["head"])
    heads = [start.drawn(k)["head"] for start in (one, other) for k in (0, 1, 2)]
    assert not any(torch.equal(a, b) for i, a in enumerate(heads) for b in heads[:i])
    assert torch.equal(again.drawn(2)["extractor"], one.drawn(2)["extractor"])


# --- who joins ------------------------------------------------------------------------------------


class HighestLoss(FedAvg):
    """Power of choice with the losses that clients last sent: of all, those with the highest."""

    def server_state(self, start: Start) -> ServerState:
        return {**super().server_state(start), "losses": torch.full((4,), math.inf)}

    def joining(self, server: Server, drawn: Sequence[int]) -> Sequence[int]:
        return server.state["losses"].argsort(descending=True, stable=True)[: len(drawn)].tolist()

    def upload(self, client: Client) -> Message:
        return {**super().upload(client), "loss": client.train_loss}

    def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
        losses, everyone = server.state["losses"].clone(), list(uploads)
        for upload in everyone:
            losses[upload.client] = upload.message["loss"]
        mean = weighted_mean(everyone)
        return {"extractor": mean["extractor"], "head": mean["head"], "losses": losses}


def test_a_method_may_choose_who_joins() -> None:
    config = toy_config(rounds=5, joining_ratio=(0.5, 0.5))
    simulator = simulator_of(HighestLoss, config)
    known = [math.inf] * 4
    for record in simulator.rounds():
        expected = sorted(range(4), key=lambda i: -known[i])[:2]
        assert record.joined == sorted(expected)
        known = simulator.snapshot.server["losses"].tolist()


def test_who_joins_is_drawn_where_a_method_does_not_choose() -> None:
    config = toy_config(rounds=4, joining_ratio=(0.5, 1.0))
    joined = [record.joined for record in simulator_of(FedAvg, config).rounds()]
    assert joined == [sample_clients(config, 4, t) for t in range(1, 5)]


@pytest.mark.parametrize("chosen", [[], [4], [-1, 0]])
def test_a_choice_of_nobody_or_of_strangers_is_refused(chosen: list[int]) -> None:
    class Wrong(FedAvg):
        def joining(self, server: Server, drawn: Sequence[int]) -> Sequence[int]:
            return chosen

    with pytest.raises(
        ValueError, match=r"Wrong.joining chose .*; allowed: one or more of the cli"
    ):
        next(simulator_of(Wrong).rounds())


# --- before the first round -----------------------------------------------------------------------


class Greets(FedAvg):
    """Every client tells its number of samples before the first round, whether it joins or not."""

    def server_state(self, start: Start) -> ServerState:
        return {**super().server_state(start), "mean size": torch.zeros(1)}

    def introduction(self, client: Client, received: Message) -> Message:
        self.load(client, received)
        self.train(client, received)
        return {"size": torch.tensor([float(client.samples)])}

    def begin(self, server: Server, told: Iterator[Upload]) -> ServerState:
        sizes = [upload.message["size"] for upload in told]
        return {**server.state, "mean size": torch.stack(sizes).mean(0)}


def test_every_client_introduces_itself_once_and_that_is_counted() -> None:
    config = toy_config(rounds=2, joining_ratio=(0.5, 0.5))
    greets, plain = simulator_of(Greets, config), simulator_of(FedAvg, config)
    first, second = greets.rounds()
    usual, usual_too = plain.rounds()
    sizes = greets.task.train_sizes
    assert greets.snapshot.server["mean size"].tolist() == [sum(sizes) / len(sizes)]
    assert first.parameters_up == usual.parameters_up + 4
    assert first.parameters_down == usual.parameters_down + 4 * greets.task.build_model().size
    assert first.loss == usual.loss and first.train_loss == usual.train_loss
    assert same_result(second, usual_too)


def test_an_introduction_that_is_not_finite_is_a_divergence() -> None:
    class Loud(Greets):
        def introduction(self, client: Client, received: Message) -> Message:
            return {"size": torch.tensor([math.nan])}

    simulator = simulator_of(Loud)
    list(simulator.rounds())
    assert "the introduction of client 0 is not finite" in str(simulator.diverged)
