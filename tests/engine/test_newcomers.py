"""Clients that never join: what they get, how they adapt, and that they leave no trace."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pfl_bench.base import UserError
from pfl_bench.config import RunConfig
from pfl_bench.data import Partition
from pfl_bench.engine import Algorithm, Message, Server, Simulator
from pfl_bench.plugins import (
    load_algorithm,
    toy_algorithm,
    toy_client,
    toy_config,
    toy_dataset,
    toy_simulator,
)
from pfl_bench.plugins.testing import toy_roles
from pfl_bench.store.records import NEWCOMERS, same_result

LR = 0.05


def config(algo: str = "fedavg", hyper: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
    return toy_config(algo, hyper or {}, **{"rounds": 2, "new_clients": 1, "lr": LR, **changes})


def images() -> tuple[Tensor, Tensor]:
    dataset = toy_dataset()
    x = torch.from_numpy(dataset.x).float().permute(0, 3, 1, 2) / 127.5 - 1
    return x, torch.from_numpy(dataset.y)


def newcomer(of: RunConfig) -> tuple[Tensor, Tensor]:
    """The rows that the one client that never joins trains and is tested on."""
    found = toy_roles(of, toy_dataset()).newcomers
    assert isinstance(found, Partition) and found.clients == 1
    return torch.from_numpy(found.train[0]), torch.from_numpy(found.test[0])


def correct(record: Any) -> int:
    (count,) = record.extras[NEWCOMERS]["correct"]
    return count


def test_a_new_client_of_fedavg_is_scored_on_the_global_model() -> None:
    asked = config(adapt_epochs=3)
    simulator = toy_simulator(asked)
    *_, last = simulator.rounds()
    server, (x, y), (_, test) = simulator.snapshot.server, images(), newcomer(asked)
    with torch.no_grad():
        right = model_of(server)(x[test]).argmax(1) == y[test]
    assert correct(last) == int(right.sum())
    assert last.extras[NEWCOMERS]["total"] == [len(test)]


def model_of(parts: Any) -> torch.nn.Sequential:
    """A plain model with these values."""
    client, _ = toy_client(toy_algorithm(toy_config()))
    client.net.load({part: parts[part] for part in ("extractor", "head")})
    return copy.deepcopy(
        torch.nn.Sequential(client.net.module("extractor"), client.net.module("head"))
    )


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_a_new_client_of_fedper_trains_a_head_under_the_received_extractor(epochs: int) -> None:
    """By hand: the initial head, plain SGD on the client's batches, the received extractor."""
    asked = config("fedper", rounds=1, adapt_epochs=epochs)
    simulator = toy_simulator(asked)
    start = simulator._fresh_state
    (last,) = simulator.rounds()
    received = simulator.snapshot.server["extractor"]
    model = model_of({"extractor": received, "head": start["head"]})
    (x, y), (train, test) = images(), newcomer(asked)
    with toy_simulator(asked).client(simulator.task.clients, 1) as client:
        order = [batch.rows for batch in client.batches(epochs)]
    assert {int(row) for rows in order for row in rows} <= {int(row) for row in train}
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for rows in order:
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        frozen = model_of({"extractor": received, "head": start["head"]})[0]
        logits = model[1](frozen(x[test]))
    assert correct(last) == int((logits.argmax(1) == y[test]).sum())


def test_a_new_client_of_fedcp_takes_its_head_from_the_global_one() -> None:
    simulator = toy_simulator(config("fedcp"))
    list(simulator.rounds())
    received = simulator.algorithm.welcome(simulator.server(), simulator.task.clients)
    state = simulator.algorithm.newcomer_state(simulator._fresh_state, received)
    assert torch.equal(state["head"], simulator.snapshot.server["global_head"])
    assert not torch.equal(state["head"], simulator._fresh_state["head"])


def test_a_new_client_of_ditto_takes_its_model_from_the_global_one() -> None:
    simulator = toy_simulator(config("ditto"))
    list(simulator.rounds())
    received = simulator.algorithm.welcome(simulator.server(), simulator.task.clients)
    state = simulator.algorithm.newcomer_state(simulator._fresh_state, received)
    for mine, of_all in (("personal_extractor", "extractor"), ("personal_head", "head")):
        assert torch.equal(state[mine], simulator.snapshot.server[of_all])


def test_fedfomo_sends_a_new_client_models_of_those_who_joined() -> None:
    simulator = toy_simulator(config("fedfomo", {"M": 2}))
    list(simulator.rounds())
    sent = simulator.algorithm.welcome(simulator.server(), simulator.task.clients)
    assert len(sent["models"]) == 2
    assert set(sent["ids"].tolist()) <= set(range(simulator.task.clients))


def test_fedamp_says_why_it_has_nothing_for_a_new_client() -> None:
    dataset, asked = toy_dataset(), config("fedamp")
    whole = Partition(*two_halves(asked))
    simulator = Simulator(load_algorithm("fedamp"), asked, dataset, whole)
    assert simulator.impossible == (
        "FedAMP mixes for clients whose models it holds, and has none of a new client"
    )
    alone = Simulator(load_algorithm("fedamp"), replace(asked, new_clients=0), dataset, whole)
    assert alone.impossible is None


def two_halves(of: RunConfig) -> Any:
    found = toy_roles(replace(of, new_clients=0), toy_dataset()).clients
    return found.train, found.test


def test_training_is_that_of_a_federation_without_the_new_clients() -> None:
    """Run on a partition of which they are no part, everything else is the same to the bit."""
    asked, dataset = config(new_clients=2), toy_dataset()
    partition = toy_roles(asked, dataset).clients
    alone = replace(asked, new_clients=0, clients=2)
    simulator = Simulator(load_algorithm("fedavg"), alone, dataset, partition)
    simulator.prepare()
    for with_new, without in zip(toy_simulator(asked).rounds(), simulator.rounds(), strict=True):
        assert with_new.extras.keys() == {NEWCOMERS}
        assert same_result(replace(with_new, extras={}), without)


def test_they_are_scored_where_the_others_are() -> None:
    records = list(toy_simulator(config(rounds=4, eval_every=2)).rounds())
    assert [NEWCOMERS in record.extras for record in records] == [False, True, False, True]


def test_a_method_that_forgot_them_is_told_so_in_a_sentence() -> None:
    class ByClient(Algorithm):
        title, summary, citation = "ByClient", "Keeps a model for each.", "nowhere"

        def server_state(self, start: Any) -> Any:
            return {"models": [dict(start.parts)] * self.task.clients}

        def download(self, server: Server, client: int) -> Message:
            return server.state["models"][client]

        def aggregate(self, server: Server, uploads: Any) -> Any:
            return server.state

    asked = config()
    simulator = Simulator(ByClient, asked, toy_dataset(), Partition(*two_halves(asked)))
    simulator.prepare()
    with pytest.raises(UserError, match="ByClient does not say what a client gets that never"):
        list(simulator.rounds())
