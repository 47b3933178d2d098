"""The attack on a run: which images, from what the server sees, and what it recovers of them.

The server is semi-honest: it follows the protocol and looks. What it sees is in `server_view`, how
it gets from a gradient to images in `attack`, the choices in `threat`.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pfl_bench.base import UserError, seeds
from pfl_bench.config import RunConfig, as_dict
from pfl_bench.engine import Simulator, in_order
from pfl_bench.execution import Execution, Observer, prepare, trained_simulator
from pfl_bench.models import model_spec
from pfl_bench.privacy.attack import Recovered, deep_leakage, inverting_gradients
from pfl_bench.privacy.server_view import Observed, OneBatch, Public, leaves, observe
from pfl_bench.privacy.similarity import SIMILARITIES, matched, unit_range
from pfl_bench.privacy.stand_in import StandIn, telling
from pfl_bench.privacy.threat import Threat, with_attack
from pfl_bench.store import Store, StoredRun, current_provenance


def check_attackable(config: RunConfig, where: str) -> None:
    """Refuse what the attack cannot work on, before anything trains."""
    if model_spec(config.model).kind != "image":
        raise UserError(
            f"{where} cannot be attacked: the attack recovers images, and the model "
            f"{config.model!r} reads texts"
        )


def attacked(
    config: RunConfig,
    store: Store,
    options: Execution,
    threat: Threat,
    observer: Observer | None = None,
) -> StoredRun:
    """The run with what the attack finds in its summary: stored, or trained and attacked now.

    What was found so far is stored after every victim, so that an attack cut off continues. The run
    is locked meanwhile: of two attackers, the one that is behind would undo the other's work."""
    simulator = trained_simulator(config, store, options, observer)
    with store.open(config) as writer:
        run = writer.answer  # the run may have gone on since
        assert run is not None
        if (known := with_attack(run, threat)) is not None:
            return known
        if threat.model == "initial":
            simulator, _ = prepare(config, options)
        plan = victims(simulator, threat)
        found = threat.begun(run)
        for result in _results(simulator, threat, plan[len(found) :]):
            found.append(result)
            document = {"attack": as_dict(threat), "planned": len(plan), "victims": found}
            run.attach(threat.name, {**document, "provenance": current_provenance()})
        whole = with_attack(run, threat)
        assert whole is not None
        return whole


@dataclass(frozen=True)
class Attack:
    """One or more attacks as what follows on a run."""

    threats: tuple[Threat, ...]

    def result(self, run: StoredRun) -> StoredRun | None:
        found = [with_attack(run, threat) for threat in self.threats]
        return None if None in found else found[0]

    def compute(
        self, config: RunConfig, store: Store, options: Execution, observer: Observer
    ) -> StoredRun:
        found = [attacked(config, store, options, threat, observer) for threat in self.threats]
        return found[0]


@dataclass(frozen=True)
class Victim:
    """A batch of a client's training images, by their positions, and its number on that client."""

    client: int
    number: int
    positions: tuple[int, ...]

    def seed(self, root: int, *purpose: str | int) -> int:
        """The attacker's own, the same whatever the method."""
        return seeds.derive(root, "attack", *purpose, self.client, self.number)

    def generator(self, root: int, *purpose: str | int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed(root, *purpose))


def victims(simulator: Simulator, threat: Threat) -> list[Victim]:
    """The attacked batches: the same for every method under one seed and partition."""
    seed, shards = simulator.config.seed, simulator.shards
    drawn = seeds.numpy_generator(seed, "attack", "clients").permutation(len(shards))
    chosen = []
    for client in sorted(drawn[: threat.victims].tolist()):
        generator = seeds.numpy_generator(seed, "attack", "images", client)
        order = generator.permutation(shards[client].samples).tolist()
        size = min(threat.batch_size, len(order))
        for number in range(min(threat.batches, len(order) // size)):
            positions = tuple(order[number * size : (number + 1) * size])
            chosen.append(Victim(client, number, positions))
    return chosen


def _results(
    simulator: Simulator, threat: Threat, plan: Sequence[Victim]
) -> Iterator[dict[str, Any]]:
    """What the attack on each victim finds, in their order, on as many threads as clients train."""
    pool = ThreadPoolExecutor(simulator.workers, thread_name_prefix="attack")

    def job(k: int) -> dict[str, Any]:
        return _attack(simulator, threat, plan[k])

    try:
        yield from in_order(pool, job, range(len(plan)), cost=lambda k: 0)
    finally:
        simulator.cancelled.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _attack(simulator: Simulator, threat: Threat, victim: Victim) -> dict[str, Any]:
    """One victim: what was seen of it, what was recovered, and how close that is."""
    began = time.perf_counter()
    public = Public.of(simulator)
    observed = observe(
        simulator,
        victim.client,
        victim.positions,
        is_whole=threat.target == "update",
        is_told=threat.personal == "known",
    )
    seen = telling(public, observed, threat.personal)

    def attempt(start: int) -> Recovered:
        seed = victim.seed(simulator.config.seed, "start", start)
        return _attempt(public, observed, threat, seen, seed, simulator.check_cancelled)

    # The server can tell which start did best: it is where the messages agree.
    found = min(map(attempt, range(threat.restarts)), key=lambda attempt: attempt.mismatch)
    batch = OneBatch(simulator.shards[victim.client], victim.positions).batch
    images, labels = unit_range(batch.x), batch.y.cpu()
    recovered = unit_range(found.x)
    order = matched(images, recovered)
    return {
        "client": victim.client,
        "positions": list(victim.positions),
        "seen": seen,
        **_scores(images, recovered[order]),
        **_floors(simulator, victim, images),
        "mismatch": found.mismatch,
        "labels_found": int((found.labels.argmax(1).cpu()[order] == labels).sum()),
        "seconds": time.perf_counter() - began,
        "shape": list(images.shape),
        "original": _packed(images),
        "recovered": _packed(recovered[order]),
    }


def _attempt(
    public: Public,
    observed: Observed,
    threat: Threat,
    seen: Sequence[str],
    seed: int,
    check_cancelled: Callable[[], None],
) -> Recovered:
    """The attack from one random start, on a stand-in for the client."""
    stand_in = StandIn(public, observed, seeds.derive(seed, "guess"), threat.personal)
    generator = torch.Generator().manual_seed(seed)
    shape = (observed.images, *public.image)
    x = (2 * torch.rand(shape, generator=generator) - 1).to(public.device)
    logits = torch.randn(shape[0], public.task.classes, generator=generator).to(public.device)
    still = {n: v.detach() for n, v in stand_in.message(x, logits.argmax(1), is_still=True).items()}
    sent = leaves(observed.now.sent)
    moved = [(sent[name] - still[name]) / observed.batches for name in seen]
    if not any(bool(part.any()) for part in moved):
        return Recovered(x, logits.softmax(1), 1.0)  # too small a step for 32 bits to tell

    def move(x: Tensor, labels: Tensor) -> list[Tensor]:
        check_cancelled()
        message = stand_in.message(x, labels)
        return [message[name] - still[name] for name in seen]

    fitted = stand_in.fit_unknown() if threat.personal == "fitted" else []
    if threat.method == "dlg":
        return deep_leakage(move, moved, x, logits, iterations=threat.iterations, unknown=fitted)
    return inverting_gradients(
        move,
        moved,
        x,
        logits,
        iterations=threat.iterations,
        variation=threat.variation,
        unknown=fitted,
    )


def _scores(images: Tensor, others: Tensor, suffix: str = "") -> dict[str, list[float]]:
    """How close each of the images is to its counterpart, by every measure."""
    return {
        f"{name}{suffix}": [measure(a, b) for a, b in zip(images, others, strict=True)]
        for name, measure in SIMILARITIES.items()
    }


def _floors(simulator: Simulator, victim: Victim, images: Tensor) -> dict[str, list[float]]:
    """What images that know nothing of the victim reach: random ones, and the mean of the data."""
    noise = torch.rand(images.shape, generator=victim.generator(simulator.config.seed, "floor"))
    noise = noise[matched(images, noise)]
    mean = mean_image(simulator).expand_as(images)
    return _scores(images, noise, "_noise") | _scores(images, mean, "_mean")


def mean_image(simulator: Simulator) -> Tensor:
    """The mean of all clients' training images, in [0, 1]."""
    total, count = torch.zeros(()), 0
    for shard in simulator.shards:
        for batch in shard.evaluation_batches("train"):
            total = total + unit_range(batch.x).double().sum(0)
            count += len(batch.y)
    return (total / count).float()


def _packed(images: Tensor) -> str:
    """Images in [0, 1] as bytes, in base 64."""
    data = (255 * images).round().to(torch.uint8).contiguous().numpy().tobytes()
    return base64.b64encode(data).decode("ascii")
