"""IFCA: which model a client takes, how each becomes an average, and FedAvg with one of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from by_hand import MODEL, finished, plain_model
from toy import toy_algorithm, toy_client, toy_config, toy_server

from pfl_bench.engine.algorithm import Upload


def test_a_client_takes_the_model_with_the_lowest_training_loss() -> None:
    algorithm = toy_algorithm(toy_config("ifca", {"k": 4}))
    for index in range(4):
        client, start = toy_client(algorithm, index=index)
        received = algorithm.download(toy_server(algorithm, start), index)
        pool, rows = client.shard.pool, client.shard.train
        losses = []
        for values in received["models"]:
            model = plain_model(client, values)
            with torch.no_grad():
                losses.append(float(F.cross_entropy(model(pool.inputs(rows)), pool.y[rows])))
        best = losses.index(min(losses))
        algorithm.scored(client, received)
        assert torch.equal(client.net["head"], received["models"][best]["head"])
        sent = algorithm.local_update(client, received)
        assert int(sent["cluster"]) == best
        change = {k: float((sent["head"] - received["models"][k]["head"]).norm()) for k in range(4)}
        assert min(change, key=change.__getitem__) == best


def test_each_model_becomes_the_average_of_its_own_clients() -> None:
    algorithm = toy_algorithm(toy_config("ifca", {"k": 3}))
    _, start = toy_client(algorithm)
    server = toy_server(algorithm, start)
    weights, clusters = [0.1, 0.2, 0.3, 0.4], [0, 2, 0, 2]
    sent = [{part: torch.full_like(start.parts[part], i + 1.0) for part in MODEL} for i in range(4)]
    uploads = [
        Upload(i, weights[i], {**sent[i], "cluster": torch.tensor(clusters[i])}) for i in range(4)
    ]
    after = algorithm.aggregate(server, iter(uploads))["models"]
    means = {0: (0.1 * 1 + 0.3 * 3) / 0.4, 2: (0.2 * 2 + 0.4 * 4) / 0.6}
    for part in MODEL:
        for k, mean in means.items():
            torch.testing.assert_close(after[k][part], torch.full_like(after[k][part], mean))
        assert torch.equal(after[1][part], server.state["models"][1][part])


def test_with_one_model_it_is_fedavg() -> None:
    (_, ours), (_, fedavg) = finished(toy_config("ifca", {"k": 1})), finished(toy_config("fedavg"))
    for a, b in zip(ours, fedavg, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-4)


def test_all_models_come_down_and_one_goes_up() -> None:
    simulator, records = finished(toy_config("ifca", {"k": 3}, rounds=1))
    model = simulator.task.build_model().size
    assert records[0].parameters_down == 4 * 3 * model
    assert records[0].parameters_up == 4 * model
    assert records[0].bytes_up == 4 * (4 * model + 8)


def test_the_models_differ_from_the_start() -> None:
    algorithm = toy_algorithm(toy_config("ifca"))
    _, start = toy_client(algorithm)
    first, second = algorithm.server_state(start)["models"]
    assert torch.equal(first["head"], start.parts["head"])
    assert not torch.equal(first["head"], second["head"])
