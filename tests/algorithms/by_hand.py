"""The other side of the algorithms' tests: plain torch, closed forms, and a client to try them on.

Nothing here uses the engine's training loop, its proximal step or its averaging.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy import toy_algorithm, toy_client, toy_config, toy_simulator

from pfl_bench.config.run_config import RunConfig
from pfl_bench.data.dataset import Dataset
from pfl_bench.engine.algorithm import Algorithm
from pfl_bench.engine.batches import Batch
from pfl_bench.engine.client import Client, Message
from pfl_bench.engine.simulator import Simulator
from pfl_bench.store.records import RoundRecord

MODEL = ("extractor", "head")
PERSONAL_MODEL = ("personal_extractor", "personal_head")


# --- a client, a run ------------------------------------------------------------------------------


def meet(
    algo: str,
    hyper: Mapping[str, Any] | None = None,
    dataset: Dataset | None = None,
    **changes: Any,
) -> tuple[Algorithm, Client, Message]:
    """An algorithm, a client and what the client receives.

    Received values, kept values and initial values all differ, so that taking one for another
    shows.
    """
    algorithm = toy_algorithm(toy_config(algo, hyper, **changes), dataset)
    client, start = toy_client(algorithm, dataset)
    generator = torch.Generator().manual_seed(7)
    received = {part: _jittered(start.parts[part], generator) for part in algorithm.shared}
    client.state.update({name: _jittered(v, generator) for name, v in client.state.items()})
    return algorithm, client, received


def _jittered(value: Any, generator: torch.Generator) -> Any:
    if isinstance(value, dict):
        return {name: _jittered(inner, generator) for name, inner in value.items()}
    return value + 0.02 * torch.randn(value.shape, generator=generator)


def finished(config: RunConfig) -> tuple[Simulator, list[RoundRecord]]:
    """A run's simulator after its last round, and the records of all rounds."""
    simulator = toy_simulator(config)
    return simulator, list(simulator.rounds())


def recorded_batches(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """A list that fills with the batches the client draws, in their order."""
    drawn: list[Batch] = []
    original = client.batches

    def recording(*args: Any, **kwargs: Any) -> Iterator[Batch]:
        for batch in original(*args, **kwargs):
            drawn.append(batch)
            yield batch

    monkeypatch.setattr(client, "batches", recording)
    return drawn


# --- plain torch ----------------------------------------------------------------------------------


def plain_model(
    client: Client, values: Mapping[str, Tensor], parts: Sequence[str] = MODEL
) -> nn.Sequential:
    """Free-standing modules that hold `values`; the client's workspace is overwritten with them."""
    client.net.load(values)
    return nn.Sequential(*(copy.deepcopy(client.net.module(part)) for part in parts))


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch.x), batch.y)


def flat_gradient(module: nn.Module) -> Tensor:
    """The gradients that a module holds as one vector, in the engine's order: kernels lie
    channels-last."""
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    return torch.cat([(g.permute(0, 2, 3, 1) if g.dim() == 4 else g).reshape(-1) for g in grads])


def sgd(
    model: nn.Module,
    batches: Iterable[Batch],
    lr: float,
    *,
    only: nn.Module | None = None,
    extra_loss: Callable[[], Tensor] | None = None,
) -> None:
    """torch's own optimiser on cross-entropy; `only` names the module that is trained."""
    optimiser = torch.optim.SGD((only or model).parameters(), lr=lr)
    for batch in batches:
        loss = cross_entropy(model, batch)
        if extra_loss is not None:
            loss = loss + extra_loss()
        model.zero_grad()
        loss.backward()
        optimiser.step()


def proximal_term(model: nn.Module, anchor: nn.Module, strength: float) -> Callable[[], Tensor]:
    """(strength/2)‖θ − w‖² as a loss, for autograd to differentiate."""

    def term() -> Tensor:
        pairs = zip(model.parameters(), anchor.parameters(), strict=True)
        squares = [((theta - w.detach()) ** 2).sum() for theta, w in pairs]
        return strength / 2 * torch.stack(squares).sum()

    return term


def assert_holds(client: Client, values: Mapping[str, Tensor], expected: nn.Sequential) -> None:
    """`values`, by part in the order of `expected`, are the parameters of `expected`."""
    client.net.load(values)
    for part, module in zip(values, expected, strict=True):
        pairs = zip(client.net.module(part).parameters(), module.parameters(), strict=True)
        for ours, theirs in pairs:
            # Rounding differs from step to step, and steps carry it on.
            torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-3, atol=3e-5)


def correct_predictions(simulator: Simulator, index: int, values: Mapping[str, Tensor]) -> int:
    """Hits of the model made of `values` on a client's test set, counted in plain torch."""
    client, _ = toy_client(simulator.algorithm, index=index)
    model = plain_model(client, values, tuple(values)).eval()
    pool, rows = client.shard.pool, client.shard.test
    with torch.no_grad():
        return int((model(pool.inputs(rows)).argmax(1) == pool.y[rows]).sum())


# --- a quadratic ----------------------------------------------------------------------------------


def quadratic(
    client: Client, centre: Callable[[Batch], float], parts: Sequence[str] | None = None
) -> Callable[[Client, Batch], Tensor]:
    """½‖θ − c‖² in the place of an algorithm's loss; its gradient is θ − c."""

    def loss(_: Client, batch: Batch) -> Tensor:
        c = centre(batch)
        return 0.5 * torch.stack([((p - c) ** 2).sum() for p in client.net.parameters(parts)]).sum()

    return loss


def proximal_descent(
    start: Tensor, tie: Tensor, c: float, strength: float, lr: float, steps: int
) -> Tensor:
    """Where `steps` of gradient descent on ½‖θ − c‖² + (strength/2)‖θ − tie‖² lead, in closed form.

    The minimum is (c + strength·tie)/(1 + strength), and each step shrinks the distance to it by
    the factor 1 − lr(1 + strength).
    """
    minimum = (c + strength * tie.double()) / (1 + strength)
    return minimum + (1 - lr * (1 + strength)) ** steps * (start.double() - minimum)


def assert_vectors(ours: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(ours[name].double(), value.double(), rtol=1e-5, atol=1e-6)
