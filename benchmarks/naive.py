"""The usual simulator, written plainly: what pfl-bench is measured against.

A deep-copied model per client, a DataLoader over Python tuples per client and round, NCHW,
torch.optim.SGD, and in every round test accuracy and training loss of every client in batches of
ten. It starts from the same parameters and draws the same batches as pfl-bench, so that what it
computes can be compared and not only how long it takes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from pfl_bench.base import seeds
from pfl_bench.engine import Shard, Simulator, build_network
from pfl_bench.models import Network, mmd, seeded

LAMBDA = 5.0
MU = 1.0
HEAD_EPOCHS = 5

Samples = list[tuple[Tensor, int]]
Predict = Callable[[Tensor], Tensor]


class Backbone(nn.Module):
    def __init__(self, extractor: nn.Module, head: nn.Linear):
        super().__init__()
        self.extractor, self.head = extractor, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.extractor(x))


class ConvExtractor(nn.Module):
    def __init__(self, like: nn.Module):
        super().__init__()
        self.conv1, self.conv2, self.fc = like.conv1, like.conv2, like.fc

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return F.relu(F.linear(x.flatten(1), self.fc.weight, self.fc.bias))


class TextExtractor(nn.Module):
    def __init__(self, like: nn.Module):
        super().__init__()
        rows, width = like.embedding.weight.shape
        self.embedding = nn.Embedding(rows, width, padding_idx=0)
        self.embedding.weight.data.copy_(like.embedding.weight)
        self.fc = like.fc

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.embedding(tokens).mean(1))


class Client:
    def __init__(self, index: int, model: Backbone, policy: nn.Module | None, shard: Shard):
        self.index = index
        self.model, self.personal = copy.deepcopy(model), copy.deepcopy(model)
        self.policy = copy.deepcopy(policy)
        self.train, self.test = (_samples(shard, which) for which in ("train", "test"))


class NaiveSimulator:
    """The same run as a prepared simulator of ours, the usual way."""

    def __init__(self, ours: Simulator):
        self.config = ours.config
        self.model, self.policy = _modules_of(ours)
        self.clients = [
            Client(i, self.model, self.policy, shard) for i, shard in enumerate(ours.shards)
        ]
        self.round = 0

    def run_round(self) -> float:
        """One round of everybody; the accuracy over all test samples."""
        self.round += 1
        update: Callable[[Client], None] = getattr(self, f"_{self.config.algo}")
        for client in self.clients:
            update(client)
        self._average()
        return self._evaluate()

    # --- local updates ------------------------------------------------------------------------

    def _fedavg(self, client: Client) -> None:
        _copy(self.model, client.model)
        self._sgd(client, client.model.parameters(), client.model)

    def _ditto(self, client: Client) -> None:
        self._fedavg(client)
        pairs = list(zip(client.personal.parameters(), self.model.parameters(), strict=True))

        def tie() -> None:
            for parameter, w in pairs:
                assert parameter.grad is not None
                parameter.grad.add_(MU * (parameter.data - w.data))

        parameters = client.personal.parameters()
        self._sgd(client, parameters, client.personal, "personal batches", before_step=tie)

    def _fedrep(self, client: Client) -> None:
        _copy(self.model.extractor, client.model.extractor)
        head, extractor = client.model.head, client.model.extractor
        extractor.requires_grad_(False)
        self._sgd(client, head.parameters(), client.model, "head batches", HEAD_EPOCHS)
        extractor.requires_grad_(True)
        head.requires_grad_(False)
        self._sgd(client, extractor.parameters(), client.model)
        head.requires_grad_(True)

    def _fedcp(self, client: Client) -> None:
        policy = client.policy
        assert policy is not None and self.policy is not None
        _copy(self.model.extractor, client.model.extractor)
        _copy(self.policy, policy)
        frozen = copy.deepcopy(self.model).requires_grad_(False)
        v = _client_vector(client)
        parameters = [*client.model.parameters(), *policy.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=self.config.lr)
        for x, y in self._loader(client):
            h = client.model.extractor(x)
            logits = _separated(client.model.head, frozen.head, policy, v, h)
            loss = F.cross_entropy(logits, y) + LAMBDA * mmd(h, frozen.extractor(x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def _sgd(
        self,
        client: Client,
        parameters: Iterable[nn.Parameter],
        predict: Predict,
        purpose: str = "batches",
        epochs: int = 1,
        before_step: Callable[[], None] = lambda: None,
    ) -> None:
        optimizer = torch.optim.SGD(parameters, lr=self.config.lr)
        for x, y in self._loader(client, purpose, epochs):
            optimizer.zero_grad()
            F.cross_entropy(predict(x), y).backward()
            before_step()
            optimizer.step()

    def _loader(
        self, client: Client, purpose: str = "batches", epochs: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        generator = seeds.torch_generator(self.config.seed, purpose, self.round, client.index)
        size = min(self.config.batch_size, len(client.train))
        for _ in range(epochs):
            order = torch.randperm(len(client.train), generator=generator).tolist()
            yield from DataLoader(_dataset(client.train), size, sampler=order, drop_last=True)

    # --- server -------------------------------------------------------------------------------

    def _average(self) -> None:
        total = sum(len(client.train) for client in self.clients)
        weights = [len(client.train) / total for client in self.clients]
        models: list[tuple[nn.Module, list[nn.Module]]] = [
            (self.model.extractor, [client.model.extractor for client in self.clients])
        ]
        if self.config.algo in ("fedavg", "ditto"):
            models.append((self.model.head, [client.model.head for client in self.clients]))
        if self.config.algo == "fedcp":
            assert self.policy is not None
            models.append((self.policy, [cast(nn.Module, c.policy) for c in self.clients]))
            old = copy.deepcopy(self.model.head)
            models.append((self.model.head, [_mean(old, c.model.head) for c in self.clients]))
        for target, sources in models:
            for parameter in target.parameters():
                parameter.data.zero_()
            for weight, source in zip(weights, sources, strict=True):
                for parameter, value in zip(target.parameters(), source.parameters(), strict=True):
                    parameter.data += weight * value.data

    @torch.no_grad()
    def _evaluate(self) -> float:
        """Test accuracy; the training loss is what such a loop prints beside it."""
        correct = total = 0
        for client in self.clients:
            predict = self._scored(client)
            for x, y in DataLoader(_dataset(client.test), self.config.batch_size):
                correct += int((predict(x).argmax(1) == y).sum())
                total += len(y)
            for x, y in DataLoader(_dataset(client.train), self.config.batch_size):
                F.cross_entropy(predict(x), y).item()
        return correct / total

    def _scored(self, client: Client) -> Predict:
        match self.config.algo:
            case "ditto":
                return client.personal
            case "fedrep":
                return lambda x: client.model.head(self.model.extractor(x))
            case "fedcp":
                policy, v = cast(nn.Module, self.policy), _client_vector(client)
                return lambda x: _separated(
                    client.model.head, self.model.head, policy, v, self.model.extractor(x)
                )
            case _:
                return self.model


def _client_vector(client: Client) -> Tensor:
    return F.normalize(client.model.head.weight.detach().sum(0), dim=0)


def _separated(
    head: nn.Module, global_head: nn.Module, policy: nn.Module, v: Tensor, h: Tensor
) -> Tensor:
    r, s = torch.softmax(policy(v * h).view(len(h), 2, -1), 1).unbind(1)
    return global_head(r * h) + head(s * h)


def _mean(a: nn.Module, b: nn.Module) -> nn.Module:
    mean = copy.deepcopy(a)
    for target, value in zip(mean.parameters(), b.parameters(), strict=True):
        target.data = (target.data + value.data) / 2
    return mean


def _copy(source: nn.Module, target: nn.Module) -> None:
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.data = new.data.clone()


def _modules_of(ours: Simulator) -> tuple[Backbone, nn.Module | None]:
    """Plain modules with the initial parameters of a simulator of ours."""
    net = cast(Network, seeded(ours.config.seed, lambda: build_network(ours.algorithm)))
    like = net.module("extractor")
    extractor = (TextExtractor if hasattr(like, "embedding") else ConvExtractor)(like)
    modules = nn.ModuleList([Backbone(extractor, net.module("head"))])
    if "cpn" in net:
        modules.append(net.module("cpn"))
    for parameter in modules.parameters():
        parameter.data = parameter.data.contiguous().clone()
    return cast(Backbone, modules[0]), modules[1] if len(modules) > 1 else None


def _samples(shard: Shard, which: str) -> Samples:
    rows = shard.part(which)
    pool = shard.pool
    x, y = (pool.x[rows] if pool.is_text else pool.inputs(rows).contiguous()), pool.y[rows]
    return [(x[i], int(y[i])) for i in range(len(rows))]


def _dataset(samples: Samples) -> torch.utils.data.Dataset[tuple[Tensor, int]]:
    """A list has all that a DataLoader asks of a dataset."""
    return cast("torch.utils.data.Dataset[tuple[Tensor, int]]", samples)
