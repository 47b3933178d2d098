"""fluke: its FedAVG with its own loaders, clients one after the other."""

from __future__ import annotations

import torch
from common import problem, serve
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from torch_model import Plain, correct


class Dealt:
    """The problem's partition in the place of fluke's splitter."""

    def __init__(self) -> None:
        self.problem = problem()

    def assign(self, clients: int, batch_size: int):
        def loader(rows, size, shuffle):
            x, y = map(torch.from_numpy, self.problem.of(rows))
            return FastDataLoader(x, y, num_labels=10, batch_size=size, shuffle=shuffle)

        train = [loader(rows, batch_size, True) for rows in self.problem.train]
        test = [loader(rows, 50, False) for rows in self.problem.test]
        return (train, test), None


def main() -> None:
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_inmemory(True)
    dealt = Dealt()
    given = dealt.problem
    hyper = DDict(
        client=DDict(
            batch_size=given.batch_size,
            local_epochs=1,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=given.lr),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        ),
        server=DDict(weighted=True),
        model=Plain(given),
    )
    run = FedAVG(len(given.clients), dealt, hyper)
    sets = [tuple(map(torch.from_numpy, given.of(rows))) for rows in given.test]
    total = sum(len(y) for _, y in sets)

    def lap() -> float:
        run.server.fit(n_rounds=1, eligible_perc=1.0, finalize=False)
        return sum(correct(run.server.model, x, y) for x, y in sets) / total

    serve(lap)


main()
