"""What the server sees of every method, and that it has nothing else."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from observed import after_rounds
from torch import Tensor
from toy import toy_dataset

from pfl_bench.base.errors import UserError
from pfl_bench.engine.algorithm import Algorithm
from pfl_bench.engine.client import Client, Message
from pfl_bench.engine.simulator import Simulator
from pfl_bench.models.backbones import Inputs, build_model
from pfl_bench.plugins.registry import algorithm_names
from pfl_bench.privacy.server_view import (
    Observed,
    OneBatch,
    Public,
    copied,
    leaves,
    mapped,
    observe,
)
from pfl_bench.privacy.stand_in import StandIn, random_batch, telling

CLIENT, POSITIONS = 1, (3,)
PAPER = ("fedavg", "fedprox", "perfedavg", "pfedme", "fedamp", "ditto", "fedper", "fedrep",
         "fedrod", "fedfomo", "fedphp", "fedcp")  # fmt: skip

every_method = pytest.mark.parametrize("algo", algorithm_names())


def seen(simulator: Simulator, *, is_whole: bool = False, is_told: bool = False) -> Observed:
    return observe(simulator, CLIENT, POSITIONS, is_whole=is_whole, is_told=is_told)


def is_refused(simulator: Simulator, observed: Observed, personal: str = "inferred") -> bool:
    try:
        telling(Public.of(simulator), observed, personal)
    except UserError as refusal:
        assert f"{simulator.config.algo} cannot be attacked: " in str(refusal)
        return True
    return False


def true_batch(simulator: Simulator) -> tuple[Tensor, Tensor]:
    batch = OneBatch(simulator.shards[CLIENT], POSITIONS).batch
    return batch.x, F.one_hot(batch.y, simulator.task.classes).float()


# --- the messages ---------------------------------------------------------------------------------


@every_method
def test_what_is_observed_are_the_messages_of_the_algorithm_s_own_local_update(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator = after_rounds(algo)
    spied: list[Any] = []
    original = type(simulator.algorithm).local_update

    def spying(self: Algorithm, client: Client, received: Message) -> Message:
        spied.append(copied(received))
        sent = original(self, client, received)
        spied.append(copied(sent))
        return sent

    monkeypatch.setattr(type(simulator.algorithm), "local_update", spying)
    observed = seen(simulator)
    told = [*vars(observed.before).values(), *vars(observed.now).values()]
    assert len(spied) == 4
    for ours, theirs in zip(map(leaves, told), map(leaves, spied), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@every_method
def test_the_attacked_round_is_that_of_one_batch_and_of_nothing_else(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator = after_rounds(algo)
    rows: set[int] = set()
    original = OneBatch.batches

    def spying(self: OneBatch, *arguments: Any, **options: Any) -> Iterator[Any]:
        for batch in original(self, *arguments, **options):
            rows.update(batch.rows.tolist())
            yield batch

    monkeypatch.setattr(OneBatch, "batches", spying)
    seen(simulator)
    assert rows == {int(simulator.shards[CLIENT].train[POSITIONS[0]])}


# --- nothing but the messages ---------------------------------------------------------------------


def reachable(thing: Any) -> list[Tensor]:
    """Every tensor that can be got at from an object, through whatever it holds."""
    found, seen_ids, waiting = [], set(), [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen_ids or isinstance(one, type | types.ModuleType | str | bytes):
            continue
        seen_ids.add(id(one))
        if isinstance(one, Tensor):
            found.append(one)
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif isinstance(one, types.FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or ()]
        elif isinstance(one, types.MethodType):
            waiting += [one.__self__, one.__func__]
        else:
            waiting += list(getattr(one, "__dict__", {}).values())
    return found


@every_method
def test_every_tensor_in_the_attacker_s_hands_was_in_a_message(algo: str) -> None:
    simulator = after_rounds(algo)
    observed = seen(simulator)
    exchanges = (*vars(observed.before).values(), *vars(observed.now).values())
    messages = [leaf for message in exchanges for leaf in leaves(message).values()]
    in_hand = reachable((Public.of(simulator), observed))
    assert {id(tensor) for tensor in in_hand} == {id(leaf) for leaf in messages}


@every_method
def test_the_attacker_computes_the_same_when_the_client_is_gone(algo: str) -> None:
    """Its data, its state, its random numbers and every workspace: none of them is used."""
    simulator = after_rounds(algo)
    observed, public = seen(simulator), Public.of(simulator)
    if is_refused(simulator, observed):
        return
    x, y = random_batch(public, observed, 7)

    def attacker() -> dict[str, Tensor]:
        return StandIn(public, observed, 5, "inferred").message(x, y)

    before = attacker()
    pool = simulator.shards[0].pool
    pool.x.zero_()
    pool.y.zero_()
    for tree in (simulator.snapshot.clients, simulator.snapshot.stats):
        mapped(tree, lambda leaf: leaf.zero_())
    with simulator.client(CLIENT, 1) as client:
        client.net.vector.zero_()
    assert public.task.config.seed == 0 and reachable(public) == []
    after = attacker()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_another_seed_of_the_run_gives_the_attacker_no_other_knowledge() -> None:
    """The seed, from which clients draw, is not public."""
    one, other = (Public.of(after_rounds("fedcp", seed=seed)) for seed in (0, 1))
    assert one.task.config == other.task.config


# --- what follows from them -----------------------------------------------------------------------


@every_method
def test_what_is_inferred_is_exactly_what_the_client_keeps(algo: str) -> None:
    simulator = after_rounds(algo)
    observed = seen(simulator, is_told=True)
    assert observed.kept is not None
    before = observed.before
    with simulator.client(CLIENT, 1) as client:
        inferred = simulator.algorithm.inferred(client.net, before.received, before.sent)
    ours = leaves(inferred)
    theirs = leaves({name: observed.kept[name] for name in inferred})
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("algo", "names"),
    [("fedcp", {"head"}), ("fedamp", {"extractor", "head"}), ("fedfomo", {"extractor", "head"}),
     ("fedper", set()), ("ditto", set())],
)  # fmt: skip
def test_what_can_be_inferred_of_each_method(algo: str, names: set[str]) -> None:
    simulator = after_rounds(algo)
    before = seen(simulator).before
    with simulator.client(CLIENT, 1) as client:
        assert names == set(simulator.algorithm.inferred(client.net, before.received, before.sent))


def test_the_server_has_the_client_vector_of_fedcp_too() -> None:
    simulator = after_rounds("fedcp")
    observed = seen(simulator, is_told=True)
    assert observed.kept is not None
    vectors = []
    sent, received = observed.before.sent["global_head"], observed.before.received["global_head"]
    for head in (observed.kept["head"], 2 * sent - received):
        with simulator.client(CLIENT, 3) as client:
            client.state["head"] = head
            simulator.algorithm.load(client, observed.now.received)
            vectors.append(client.memo["v"].clone())
    assert torch.allclose(*vectors, atol=1e-5)


@every_method
def test_told_the_image_and_what_is_kept_the_stand_in_sends_what_the_client_sent(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the stand-in is the algorithm itself; what an attack lacks are image and secrets."""
    simulator = after_rounds(algo)
    observed, public = seen(simulator, is_told=True), Public.of(simulator)
    if is_refused(simulator, observed, "known"):
        return
    # A secret that is no state: how often the client has each class.
    counts = simulator.shards[CLIENT].class_counts
    monkeypatch.setattr("pfl_bench.privacy.stand_in._Imagined.class_counts", counts)
    stand_in = StandIn(public, observed, 5, "known")
    x, y = true_batch(simulator)
    still, ours = stand_in.message(x, y, is_still=True), stand_in.message(x, y)
    sent = leaves(observed.now.sent)
    for name in telling(public, observed, "known"):
        moved, left = (sent[name] - still[name]).norm(), (sent[name] - ours[name]).norm()
        assert float(left.detach()) < 1e-3 * float(moved.detach())


# --- which of them tell something -----------------------------------------------------------------


@pytest.mark.parametrize("algo", PAPER)
def test_every_method_of_the_paper_can_be_attacked(algo: str) -> None:
    simulator = after_rounds(algo)
    observed = seen(simulator)
    expected = {"fedper": {"extractor"}, "fedrep": {"extractor"}, "fedamp": {"model"},
                "fedfomo": {"model"}, "fedcp": {"extractor", "global_head", "cpn"}}  # fmt: skip
    told = telling(Public.of(simulator), observed, "inferred")
    assert set(told) == expected.get(algo, {"extractor", "head"})


def test_an_attacker_that_infers_nothing_cannot_read_the_head_of_fedcp() -> None:
    simulator = after_rounds("fedcp")
    assert set(telling(Public.of(simulator), seen(simulator), "guessed")) == {"extractor", "cpn"}


def test_a_method_that_sends_nothing_says_so() -> None:
    simulator = after_rounds("local")
    with pytest.raises(UserError, match="local cannot be attacked: it sends no values"):
        telling(Public.of(simulator), seen(simulator), "inferred")


class Prototypes(Algorithm):
    """Keeps the model and sends the mean features of each class, as FedProto does."""

    title = "Prototypes"
    shared = ()
    personal = ("extractor", "head")

    def upload(self, client: Client) -> Message:
        features = client.collect(client.net.module("extractor"))
        y = client.shard.pool.y[client.shard.train]
        return {"prototypes": {c: features[y == c].sum(0) for c in range(client.task.classes)}}


def test_messages_that_determine_no_gradient_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pfl_bench.plugins.testing.load_algorithm", lambda _: Prototypes)
    simulator = after_rounds("fedavg")
    with pytest.raises(UserError, match=r"prototypes/0, .* does not determine a gradient"):
        telling(Public.of(simulator), seen(simulator), "inferred")


# --- what they tell -------------------------------------------------------------------------------


def test_one_batch_moves_the_message_by_its_gradient_times_the_rate() -> None:
    simulator = after_rounds("fedavg")
    observed, dataset = seen(simulator), toy_dataset()
    model = build_model("cnn", Inputs(dataset.classes, dataset.shape))
    with simulator.client(CLIENT, 1) as client:
        client.net.load(observed.now.received)
        for part, module in (("extractor", model.extractor), ("head", model.head)):
            module.load_state_dict(client.net.module(part).state_dict())
        x, y = true_batch(simulator)
        slopes = torch.autograd.grad(
            F.cross_entropy(model.head(model.extractor(x)), y), list(model.head.parameters())
        )
    moved = observed.now.sent["head"] - observed.now.received["head"]
    gradient = torch.cat([slope.flatten() for slope in slopes])
    assert torch.allclose(moved, -simulator.config.lr * gradient, atol=1e-7)


def test_a_round_of_all_data_moves_the_message_by_the_mean_gradient_of_its_batches() -> None:
    simulator = after_rounds("fedavg", lr=1e-3)
    observed = seen(simulator, is_whole=True)
    assert observed.batches == simulator.shards[CLIENT].samples // 8 > 1
    slopes = []
    with simulator.client(CLIENT, observed.round) as client:
        client.net.load(observed.now.received)
        for batch in client.batches():
            loss = simulator.algorithm.loss(client, batch)
            gradients = client.net.gradients(loss)
            slopes.append(torch.cat([g.flatten() for g in client.net.gradients(
                simulator.algorithm.loss(client, batch), ["head"])]))  # fmt: skip
            client.net.descend(gradients, 1e-3)
    moved = (observed.now.sent["head"] - observed.now.received["head"]) / observed.batches
    assert torch.allclose(moved / -1e-3, torch.stack(slopes).mean(0), atol=1e-4)
