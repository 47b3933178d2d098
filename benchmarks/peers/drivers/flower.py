"""Flower: its FedAvg strategy in its simulation engine, where Ray runs the clients."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from common import Laps, Problem, problem
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_model import Plain, correct

PATH, WORKERS = sys.argv[1], int(sys.argv[2])
HERE = str(Path(__file__).resolve().parent)


class OneClient(NumPyClient):
    def __init__(self, given: Problem, k: int):
        self.given, self.k = given, k
        self.model = Plain(given)

    def _load(self, values: list[np.ndarray]) -> None:
        named = zip(self.model.state_dict(), map(torch.from_numpy, values), strict=True)
        self.model.load_state_dict(dict(named))

    def fit(self, parameters, config):
        torch.set_num_threads(1)
        self._load(parameters)
        self.model.train()
        x, y = map(torch.from_numpy, self.given.of(self.given.train[self.k]))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.given.lr)
        size = self.given.batch_size
        for rows in torch.randperm(len(y))[: len(y) // size * size].split(size):
            optimizer.zero_grad()
            F.cross_entropy(self.model(x[rows]), y[rows]).backward()
            optimizer.step()
        return [v.numpy() for v in self.model.state_dict().values()], len(y), {}

    def evaluate(self, parameters, config):
        torch.set_num_threads(1)
        self._load(parameters)
        x, y = map(torch.from_numpy, self.given.of(self.given.test[self.k]))
        return 0.0, len(y), {"correct": correct(self.model, x, y)}


_known: list[Problem] = []


def client(context: Context):
    sys.path.insert(0, HERE)
    if not _known:
        _known.append(Problem(PATH))
    return OneClient(_known[0], int(context.node_config["partition-id"])).to_client()


class Turns(FedAvg):
    """Waits to be asked before each round."""

    laps: Laps

    def configure_fit(self, server_round, parameters, client_manager):
        if server_round == 1:
            client_manager.wait_for(self.min_available_clients)
            self.laps.ready()
        self.laps.wait()
        return super().configure_fit(server_round, parameters, client_manager)


def main() -> None:
    laps, given = Laps(), problem()

    def counted(results):
        laps.finish(sum(m["correct"] for _, m in results) / sum(n for n, _ in results))
        return {}

    def server(context: Context) -> ServerAppComponents:
        everyone = len(given.clients)
        first = [v.numpy() for v in Plain(given).state_dict().values()]
        strategy = Turns(
            fraction_fit=1.0,
            fraction_evaluate=1.0,
            min_fit_clients=everyone,
            min_evaluate_clients=everyone,
            min_available_clients=everyone,
            evaluate_metrics_aggregation_fn=counted,
            initial_parameters=ndarrays_to_parameters(first),
        )
        strategy.laps = laps
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=1_000_000))

    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(client_fn=client),
        num_supernodes=len(given.clients),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": WORKERS, "include_dashboard": False},
        },
    )


main()
