"""How a server plays the client whose messages it saw.

It runs the algorithm's own local update on samples of its own, from what the client received and
what follows from earlier messages, and looks at what it would have sent. What it cannot know, it
guesses. Everything comes from `Public` and `Observed`; no simulator, no client and no data is in
reach.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from pfl_bench.base import UserError, seeds
from pfl_bench.engine import (
    Batch,
    Client,
    ClientState,
    Message,
    Pool,
    build_network,
    initial_values,
)
from pfl_bench.models import UnrolledNetwork, seeded
from pfl_bench.privacy.server_view import Observed, OneBatch, Public, leaves, mapped

_INITIALISING = threading.Lock()
"""Layers draw from torch's global generator, which threads cannot borrow at the same time."""


class StandIn:
    """A client as the server imagines it; another `seed` is another guess."""

    def __init__(self, public: Public, observed: Observed, seed: int, personal: str):
        task = replace(public.task, config=replace(public.task.config, seed=seed))
        self._public, self._observed, self._seed = public, observed, seed
        self._task = task
        self.algorithm = public.kind(public.hyper, task)
        with _INITIALISING:
            net = seeded(seed, lambda: build_network(self.algorithm))
        net = net.to(public.device)
        self._guess = self.algorithm.client_state(initial_values(self.algorithm, net))
        self._known: Message = {}
        if personal == "known":
            self._known = observed.kept or {}
        elif personal != "guessed":
            before = observed.before
            self._known = self.algorithm.inferred(net, before.received, before.sent)
        self._net = UnrolledNetwork(net)

    @property
    def unknown(self) -> list[Tensor]:
        """What the client keeps and the server had to guess: tensors that can be fitted."""
        return [leaf for name in self._unknown for leaf in leaves(self._guess[name]).values()]

    @property
    def _unknown(self) -> list[str]:
        return [name for name in self._guess if name not in self._known]

    def fit_unknown(self) -> list[Tensor]:
        """The unknown as variables of a search; integers stay."""
        fitted = mapped(self._guess, lambda leaf: leaf.detach().clone())
        self._guess = fitted
        return [leaf.requires_grad_() for leaf in self.unknown if leaf.is_floating_point()]

    def scramble(self) -> None:
        """Put noise in the place of what is unknown."""
        generator = seeds.torch_generator(self._seed, "scramble")

        def noise(leaf: Tensor) -> Tensor:
            if not leaf.is_floating_point():
                return leaf
            return torch.randn(leaf.shape, generator=generator).to(leaf)

        guess = {name: mapped(self._guess[name], noise) for name in self._unknown}
        self._guess = {**self._guess, **guess}

    def message(self, x: Tensor, y: Tensor, *, is_still: bool = False) -> dict[str, Tensor]:
        """What it would send after a local update on `x` and `y` (classes, or probabilities of
        them), by leaf and differentiable; `is_still` counts every gradient as zero."""
        net, now = self._net, self._observed.now
        net.restart()
        net.is_still = is_still
        samples = self._task.train_sizes[self._observed.client]
        client = _Played(
            self._observed.client,
            self._observed.round,
            self._task,
            _Imagined(x, y, samples, self._task.classes),
            ClientState(self._guess, self._known),
            cast(Any, net),
        )
        with net.remembering(), torch.enable_grad():
            return leaves(self.algorithm.replay(client, now.received, now.sent))


class _Played(Client):
    """A client that nobody is, so that what it computes of its images can be differentiated."""

    def frozen_features(self, part: str) -> Callable[[Batch], Tensor]:
        return lambda batch: self.net.module(part)(batch.x)


class _Imagined(OneBatch):
    """The server's images in the place of a client's data, repeated to as many as it has. Their
    classes are not known to be rarer or commoner than others."""

    def __init__(self, x: Tensor, y: Tensor, samples: int, classes: int):
        self.pool = cast(Pool, _Images(x, y))
        self.train = self.test = self.validation = torch.arange(samples, device=x.device) % len(x)
        self.on_host = dict.fromkeys(("train", "test", "validation"), self.train.cpu())
        self.classes = classes
        index = torch.arange(len(x), device=x.device)
        self.batch = Batch(self.pool, index, index)

    @cached_property
    def class_counts(self) -> Tensor:
        return torch.full((self.classes,), self.samples / self.classes, device=self.train.device)


class _Images:
    """Images and labels as they are, in the place of a dataset."""

    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = x, y

    @property
    def labels(self) -> Tensor:
        return self.y.cpu()

    def inputs(self, rows: Tensor, host_rows: Tensor | None = None) -> Tensor:
        return self.x[rows]


def telling(public: Public, observed: Observed, personal: str) -> list[str]:
    """The leaves of what was sent that tell how a gradient moved them.

    Two stand-ins with nothing in common but what the server knows agree on such a leaf as long as
    no gradient moves it, and a gradient does move it. UserError where there is none.
    """
    sent = {name for name, leaf in leaves(observed.now.sent).items() if leaf.is_floating_point()}
    if not sent:
        raise UserError(f"{_algo(public)} cannot be attacked: it sends no values")
    (still, moved), (other, _) = (_probe(public, observed, personal, seed) for seed in (1, 2))
    told = [name for name in still if name in sent and name in other
            and torch.equal(still[name], other[name])
            and not torch.equal(still[name], moved[name])]  # fmt: skip
    if not told:
        raise UserError(
            f"{_algo(public)} cannot be attacked: what it sends ({', '.join(sorted(sent))}) "
            "depends on more than two rounds tell the server and does not determine a gradient"
        )
    return told


def _probe(
    public: Public, observed: Observed, personal: str, seed: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a stand-in would send without and with a gradient, of random images and classes."""
    seed = seeds.derive(seed, "probe")
    stand_in = StandIn(public, observed, seed, personal)
    stand_in.scramble()
    x, y = random_batch(public, observed, seed)
    return stand_in.message(x, y, is_still=True), stand_in.message(x, y)


def random_batch(public: Public, observed: Observed, seed: int) -> tuple[Tensor, Tensor]:
    """As many images as were attacked, their pixels uniform, and a class for each."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand((observed.images, *public.image), generator=generator) - 1
    y = torch.randint(public.task.classes, (observed.images,), generator=generator)
    return x.to(public.device), y.to(public.device)


def _algo(public: Public) -> str:
    return public.task.config.algo
