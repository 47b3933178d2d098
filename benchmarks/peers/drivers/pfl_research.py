"""pfl-research: its FederatedAveraging on its simulated backend, in one process."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Laps, problem
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch_model import Plain, correct


class Trainable(Plain):
    """With the methods by which pfl-research trains."""

    def loss(self, x, y, eval=False):
        self.train(not eval)
        return F.cross_entropy(self(x), y)

    def metrics(self, x, y, eval=False):
        return {}


class Turns(TrainingProcessCallback):
    """Scores every client after each round, and waits to be asked for the next one."""

    def __init__(self, laps: Laps, sets):
        self.laps, self.sets = laps, sets

    def on_train_begin(self, *, model):
        self.laps.ready()
        self.laps.wait()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        right = sum(correct(model.pytorch_model, x, y) for x, y in self.sets)
        self.laps.finish(right / sum(len(y) for _, y in self.sets))
        self.laps.wait()
        return False, Metrics()


def main() -> None:
    laps, given = Laps(), problem()

    def tensors(rows):
        return tuple(map(torch.from_numpy, given.of(rows)))

    users = {k: Dataset(raw_data=list(tensors(given.train[k]))) for k in given.clients}
    sampler = get_user_sampler("minimize_reuse", list(users))
    backend = SimulatedBackend(FederatedDataset(lambda user: users[user], sampler), None)
    model = Trainable(given)
    central = torch.optim.SGD(model.parameters(), lr=1.0)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=1_000_000,
            evaluation_frequency=1_000_000,
            train_cohort_size=len(users),
            val_cohort_size=None,
        ),
        backend=backend,
        model=PyTorchModel(model, torch.optim.SGD, central),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=given.lr, local_batch_size=given.batch_size
        ),
        callbacks=[Turns(laps, [tensors(rows) for rows in given.test])],
    )


main()
