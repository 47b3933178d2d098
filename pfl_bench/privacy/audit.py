"""The attack on a run: which images, from what the server sees, and what it recovers of them.

The server is semi-honest: it follows the protocol and looks. What it sees is in `server_view`, how
it gets from a gradient to images in `attack`, the choices in `threat`.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pfl_bench.base import UserError, seeds
from pfl_bench.config import RunConfig, as_dict
from pfl_bench.engine import Batch, Client, Interrupted, Simulator, in_order
from pfl_bench.execution import Options, Watcher, prepare, trained
from pfl_bench.models import Network, model_spec
from pfl_bench.privacy.attack import Recovered, recover
from pfl_bench.privacy.server_view import guess, sent_parts, soft_batch, update, watched
from pfl_bench.privacy.similarity import matched, psnr, unit_range
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
    options: Options,
    threat: Threat,
    watcher: Watcher | None = None,
) -> StoredRun:
    """The run with what the attack finds in its summary: stored, or trained and attacked now.

    What was found so far is stored after every victim, so that an attack cut off continues. The run
    is locked meanwhile: of two attackers, the one that is behind would undo the other's work."""
    simulator = trained(config, store, options, watcher)
    with store.open(config) as writer:
        run = writer.finished
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
class Victim:
    """A batch of a client's training images, by their positions, and its number on that client."""

    client: int
    number: int
    positions: tuple[int, ...]

    def batch(self, client: Client) -> Batch:
        index = torch.tensor(self.positions, device=client.shard.train.device)
        return Batch(client.shard.pool, client.shard.train[index], index)

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
    with watched(simulator, victim.client) as client:
        parts = _seen_parts(simulator, client.net, threat)
        batch = victim.batch(client)
        images, labels = unit_range(batch.x), batch.y.cpu()
        observed = client.gradient(parts, batch)
    if threat.target == "update":
        observed = update(simulator, victim.client, parts)
    attempts = (
        _attempt(simulator, threat, victim, parts, observed, images.shape, start)
        for start in range(threat.restarts)
    )
    # The server can tell which start did best: it is where the gradients agree.
    found = min(attempts, key=lambda attempt: attempt.mismatch)
    order, scores = matched(images, unit_range(found.x))
    noise = torch.rand(images.shape, generator=victim.generator(simulator.config.seed, "floor"))
    return {
        "client": victim.client,
        "positions": list(victim.positions),
        "psnr": scores,
        "floor": matched(images, noise)[1],
        "grey": [psnr(image, torch.full_like(image, 0.5)) for image in images],
        "mismatch": found.mismatch,
        "labels_found": int((found.labels.argmax(1).cpu()[order] == labels).sum()),
        "seconds": time.perf_counter() - began,
        "shape": list(images.shape),
        "original": _packed(images),
        "recovered": _packed(unit_range(found.x)[order]),
    }


def _seen_parts(simulator: Simulator, net: Network, threat: Threat) -> list[str]:
    """The parts whose gradient the attacker has: those that are sent, all if it knows the rest."""
    sent = sent_parts(simulator, net)
    return list(net.trainable_parts) if threat.personal == "known" else sent


def _attempt(
    simulator: Simulator,
    threat: Threat,
    victim: Victim,
    parts: Sequence[str],
    observed: Sequence[Tensor],
    shape: torch.Size,
    start: int,
) -> Recovered:
    """The attack from one random start, on a stand-in for the client."""
    root, device = simulator.config.seed, simulator.device
    generator = victim.generator(root, "start", start)
    x = 2 * torch.rand(shape, generator=generator) - 1
    logits = torch.randn(shape[0], simulator.task.classes, generator=generator)
    is_known = threat.personal == "known"
    state = None if is_known else guess(simulator, victim.seed(root, "guess", start))
    with watched(simulator, victim.client, state) as stand_in:
        net = stand_in.net
        unsent = [name for name in net.trainable_parts if name not in parts]
        fitted = net.parameters(unsent) if threat.personal == "fitted" else []

        def gradient(x: Tensor, labels: Tensor) -> Sequence[Tensor]:
            if simulator.cancelled.is_set():
                raise Interrupted
            return stand_in.gradient(parts, soft_batch(x, labels), differentiable=True)

        return recover(
            gradient,
            observed,
            x.to(device),
            logits.to(device),
            iterations=threat.iterations,
            unknown=fitted,
        )


def _packed(images: Tensor) -> str:
    """Images in [0, 1] as bytes, in base 64."""
    data = (255 * images).round().to(torch.uint8).contiguous().numpy().tobytes()
    return base64.b64encode(data).decode("ascii")
