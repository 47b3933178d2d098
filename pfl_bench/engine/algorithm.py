"""What an algorithm is: hooks with good defaults.

The defaults describe FedAvg, generalised by two declarations: the parts of the network that are
`shared` (sent both ways and averaged) and those that are `personal` (kept on the client). An
algorithm overrides only what its paper changes.

Tensors in messages and states are values: an algorithm never changes one in place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_bench.base import UserError, seeds, unknown
from pfl_bench.config import NoKnobs
from pfl_bench.engine.batches import Batch
from pfl_bench.engine.client import Client, Message, Task
from pfl_bench.engine.server import Server, ServerState
from pfl_bench.engine.trees import Tree
from pfl_bench.models import Model, Network, seeded
from pfl_bench.store import Metric


@dataclass(frozen=True)
class Start:
    """The initial values, the same for every algorithm under one seed."""

    parts: Mapping[str, Tensor]
    model: Tensor
    """All trainable parts as one vector."""
    drawn: Callable[[int], Mapping[str, Tensor]]
    """The parts of the k-th of several initial models; that of number 0 is `parts`."""


@dataclass(frozen=True)
class Upload:
    """What one client sent, and its share of the joined clients' training samples."""

    client: int
    weight: float
    message: Message


class Algorithm:
    """The base of every algorithm; see the module's docstring."""

    title: ClassVar[str]
    """The name as in the paper."""
    summary: ClassVar[str]
    """What the method does, in a sentence or two."""
    citation: ClassVar[str]
    group: ClassVar[str] = "further"
    """"paper" for what the tables of the paper compare; lists show it first."""
    scored_model: ClassVar[str] = "the global model as received"
    """Which model's test accuracy counts, in words."""
    more_work: ClassVar[str] = ""
    """What a client computes beyond the local epochs that all methods have, after the title, with
    hyper-parameters in braces; a footnote of tables where it matters for their accuracy."""

    Hyper: ClassVar[type] = NoKnobs
    shared: tuple[str, ...] = ("extractor", "head")
    """The parts that are sent both ways and averaged."""
    personal: tuple[str, ...] = ()
    """The parts that stay on the client."""
    frozen: tuple[str, ...] = ()
    """The parts that no gradient reaches."""
    steps_are_plain: ClassVar[bool] = False
    """Whether it takes steps outside `client.train`, for which momentum and weight decay have no
    meaning: a run with them is then skipped."""
    waits: ClassVar[str | None] = None
    """Why a client waits for a value of the device in the midst of its round (`client.wait_for`),
    where it does. On a card that costs more than it computes."""
    one_by_one: ClassVar[str] = ""
    """Why its clients are never trained in blocks, where it is known beforehand; else it is found
    out when they are."""
    plans_rounds: ClassVar[bool] = False
    """Whether its course depends on how many rounds are planned. Such a run is another run when
    it is longer; that of any other method is the same run, continued."""
    recordable: ClassVar[Mapping[str, str]] = {}
    """Series a user can ask for with --record, and what they mean."""
    metrics: ClassVar[Sequence[Metric]] = ()
    """What tables can show of its runs beside what they can show of all."""

    def __init__(self, hyper: Any, task: Task):
        self.hyper = hyper
        self.task = task

    # --- before the first round ---------------------------------------------------------------

    def impossible(self) -> str | None:
        """The reason why this run cannot take place, if there is one."""
        return None

    def trained_sizes(self) -> Sequence[int]:
        """How many samples each client trains on: all it has, unless the method holds some back."""
        return self.task.train_sizes

    def parts(self, model: Model) -> dict[str, nn.Module]:
        """The modules of a workspace, by name, around a freshly initialised model."""
        return {"extractor": model.extractor, "head": model.head}

    def server_state(self, start: Start) -> ServerState:
        """What the server keeps between rounds: a tree of tensors by name."""
        return {part: start.parts[part] for part in self.shared}

    def client_state(self, start: Start) -> Message:
        """What a client keeps between rounds, by name, with the values before its first one."""
        return {part: start.parts[part] for part in self.personal}

    def introduction(self, client: Client, received: Message) -> Message:
        """What every client tells the server before the first round; by default nobody is asked."""
        return {}

    def begin(self, server: Server, told: Iterator[Upload]) -> ServerState:
        """The server's state with which the first round starts, given all introductions."""
        return server.state

    def misfit(self, kept: ServerState, net: Network) -> str | None:
        """Why a server's state out of a checkpoint is none of this run, if so, for a state of which
        a part begins empty: what first values tell of names, types and shapes has been compared."""
        return None

    # --- one round ----------------------------------------------------------------------------

    def joining(self, server: Server, drawn: Sequence[int]) -> Sequence[int]:
        """Who joins the round to come; `drawn` are as many as the joining ratio asks for, drawn
        alike for every method."""
        return drawn

    def download(self, server: Server, client: int) -> Message:
        """What the server sends to a client."""
        return {part: server.state[part] for part in self.shared}

    def local_update(self, client: Client, received: Message) -> Message:
        """One client's round: load, train, keep what is personal, return what is sent."""
        self.load(client, received)
        self.train(client, received)
        client.state.update(client.net.copy(self.personal))
        return self.upload(client)

    def load(self, client: Client, received: Message) -> None:
        """Fill the workspace with what was received and what the client keeps."""
        client.net.load({part: received[part] for part in self.shared})
        client.net.load({part: client.state[part] for part in self.personal})

    def train(self, client: Client, received: Message) -> None:
        client.train(lambda batch: self.loss(client, batch))

    def loss(self, client: Client, batch: Batch) -> Tensor:
        return F.cross_entropy(self.predict(client, batch.x), batch.y)

    def predict(self, client: Client, x: Tensor) -> Tensor:
        """Logits of the model in the workspace."""
        net = client.net
        return net.module("head")(net.module("extractor")(x))

    def upload(self, client: Client) -> Message:
        return client.net.copy(self.shared)

    def aggregate(self, server: Server, uploads: Iterator[Upload]) -> ServerState:
        """The server's next state. Uploads arrive one by one, in the order of the clients."""
        return {**server.state, **weighted_mean(uploads)}

    # --- clients that never join --------------------------------------------------------------

    def newcomer(self) -> str | None:
        """Why the method has nothing for a client that never joined, if so."""
        return None

    def welcome(self, server: Server, client: int) -> Message:
        """What the server sends to a client that never joined; its number is none that it knows."""
        return self.download(server, client)

    def newcomer_state(self, kept: Message, received: Message) -> Message:
        """What such a client has before it adapts: what all `kept` before the first round, with
        what is received in the place of parts of the same name."""
        return {**kept, **{part: received[part] for part in self.personal if part in received}}

    # --- what a curious server makes of it ----------------------------------------------------

    def inferred(self, net: Network, received: Message, sent: Message) -> Message:
        """What a client keeps after a round, where that follows from the round's messages. `net` is
        there for its layout alone."""
        return {}

    def replay(self, client: Client, received: Message, sent: Message) -> Message:
        """The local update as a server repeats it on samples of its own, having seen what the real
        client sent. Overridden where the message tells which way the client went."""
        return self.local_update(client, received)

    # --- scoring ------------------------------------------------------------------------------

    @property
    def scores_after_training(self) -> bool:
        """Score joined clients on the workspace as local training leaves it."""
        return False

    def scored(self, client: Client, received: Message) -> None:
        """Put the model whose accuracy counts into the workspace."""
        self.load(client, received)

    def record(self, client: Client, series: str) -> Any:
        """One client's value of a recordable series, with its scored model in the workspace; asked
        for where `aggregate` has not recorded the series."""
        raise KeyError(f"{type(self).__name__} records no {series!r}")


class PersonalModelBeside(Algorithm):
    """A base for methods that keep a whole personal model on each client beside the global one.

    The personal model starts as a copy of the global one and is what predicts.
    """

    personal = ("personal_extractor", "personal_head")

    def parts(self, model: Model) -> dict[str, nn.Module]:
        own = copy.deepcopy((model.extractor, model.head))
        return super().parts(model) | dict(zip(self.personal, own, strict=True))

    def newcomer_state(self, kept: Message, received: Message) -> Message:
        """The personal model starts as a copy of the global one, as it is now."""
        pairs = zip(self.personal, self.shared, strict=True)
        return {**kept, **{mine: received[w] for mine, w in pairs}}

    def both(self, client: Client) -> tuple[Tensor, Tensor]:
        """The global and the personal model in the workspace, as vectors."""
        half = len(client.net.vector) // 2
        return client.net.vector[:half], client.net.vector[half:]

    def global_loss(self, client: Client, batch: Batch) -> Tensor:
        extractor, head = (client.net.module(part) for part in self.shared)
        return F.cross_entropy(head(extractor(batch.x)), batch.y)

    def predict(self, client: Client, x: Tensor) -> Tensor:
        extractor, head = (client.net.module(part) for part in self.personal)
        return head(extractor(x))


class FineTuned(Algorithm):
    """A base for methods whose clients train what they receive for some epochs more before they are
    scored, and keep nothing of it. Its `Hyper` has `epochs`."""

    scored_model = "the global model, fine-tuned on the client's training data"

    def scored(self, client: Client, received: Message) -> None:
        super().scored(client, received)
        batches = client.batches(self.hyper.epochs, purpose="fine-tuning")
        client.fine_tune(lambda batch: self.loss(client, batch), batches)


class PersonalModelSent(Algorithm):
    """A base for methods whose clients keep a whole personal model and send it to the server.

    Nothing received is loaded. One tensor serves client and server, which both keep it.
    """

    personal = ("extractor", "head")

    def local_update(self, client: Client, received: Message) -> Message:
        self.load(client, received)
        self.train(client, received)
        message = self.upload(client)
        client.state.update(client.net.split(message["model"]))
        return message

    def load(self, client: Client, received: Message) -> None:
        client.net.load(client.state)

    def upload(self, client: Client) -> Message:
        return {"model": client.net.trainable.clone()}

    def inferred(self, net: Network, received: Message, sent: Message) -> Message:
        """The model that is sent is the one that is kept."""
        return net.split(sent["model"])


@torch.no_grad()
def weighted_mean(uploads: Iterable[Upload]) -> Message:
    """The average of the uploads by training samples, leaf by leaf, summed in the order of the
    clients."""
    mean: Message = {}
    for upload in uploads:
        mean = _added(mean, upload.message, upload.weight)
    return mean


def _added(total: Tree, value: Tree, weight: float) -> Tree:
    """`total` + weight·`value`, in the place of `total`, which is None where there is none yet."""
    if isinstance(value, Tensor):
        return (torch.zeros_like(value) if total is None else total).add_(value, alpha=weight)
    if isinstance(value, Mapping):
        total = {} if total is None else total
        return total | {k: _added(total.get(k), value[k], weight) for k in value}
    total = [None] * len(value) if total is None else total
    return [_added(t, v, weight) for t, v in zip(total, value, strict=True)]


def build_network(algorithm: Algorithm) -> Network:
    """A workspace for `algorithm`; deterministic when called inside `models.seeded`."""
    parts = algorithm.parts(algorithm.task.build_model())
    for attribute in ("shared", "personal", "frozen"):
        _check_parts(type(algorithm).__name__, attribute, getattr(algorithm, attribute), parts)
    _check_overlap(algorithm)
    return Network(parts, algorithm.frozen)


def initial_values(algorithm: Algorithm, net: Network) -> Start:
    """The start of a run, given a workspace as it was built."""
    parts, seed = net.copy(net.parts), algorithm.task.config.seed

    def drawn(k: int) -> Mapping[str, Tensor]:
        if k == 0:
            return parts
        other = seeded(seeds.derive(seed, "initial model", k), lambda: build_network(algorithm))
        other = other.to(net.vector.device)
        return other.copy(other.parts)

    return Start(parts, net.trainable.clone(), drawn)


def _check_parts(
    owner: str, attribute: str, named: Sequence[str], parts: Mapping[str, nn.Module]
) -> None:
    """Refuse a plugin that names a part which it does not have."""
    if isinstance(named, str):
        raise UserError(
            f"{owner}.{attribute} is the text {named!r}; it must be a tuple of parts, as "
            f"({named!r},)"
        )
    for name in named:
        if name not in parts:
            raise unknown(f"part in {owner}.{attribute}", name, parts)


def _check_overlap(algorithm: Algorithm) -> None:
    """Refuse parts that are both received and kept, unless the method itself says which is used."""
    kind = type(algorithm)
    both = [part for part in algorithm.shared if part in algorithm.personal]
    is_usual = kind.load is Algorithm.load and kind.local_update is Algorithm.local_update
    if both and is_usual:
        raise UserError(
            f"{kind.__name__}.shared and {kind.__name__}.personal both name {both[0]!r}: what is "
            "kept would overwrite what is received; a method that means it has a load of its own"
        )
