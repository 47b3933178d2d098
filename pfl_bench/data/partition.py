"""How a dataset's samples are dealt to clients: practical(β), pathological, IID, N|M, or not at all
where the data say themselves to whom each sample belongs.

A partition is a pure function of its inputs and holds indices only; the samples themselves, and
whatever a model needs done to them, live elsewhere. Partitions made by PFLlib are in `pfllib`.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import numpy as np

from pfl_bench.base import UserError, numpy_generator, unknown
from pfl_bench.config import DEFAULT_BETA

SETTINGS = ("practical", "pathological", "iid")
NATURAL = "natural"
"""The data come with their clients and nothing is dealt."""
TRAIN_SHARE = 0.75
LEAST_TESTED = 10
"""The paper's batch; but data are dealt alike whatever batch they are trained in."""
REDRAWS = 50
# Beyond this the shares of Dir(β) are equal to six digits, and far beyond it they overflow.
LARGEST_BETA = 1e6


@dataclass(frozen=True)
class Partition:
    """Each client's train and test samples, as indices into the dataset.

    Two partitions are equal when their content is, which is what the fingerprint says.
    """

    train: tuple[np.ndarray, ...] = field(compare=False, repr=False)
    test: tuple[np.ndarray, ...] = field(compare=False, repr=False)
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", _fingerprint(self.train, self.test))

    @property
    def clients(self) -> int:
        return len(self.train)

    def histogram(self, y: np.ndarray, classes: int) -> np.ndarray:
        """Samples per client (row) and class (column), train and test together."""
        held = zip(self.train, self.test, strict=True)
        rows = [np.bincount(y[np.concatenate(parts)], minlength=classes) for parts in held]
        return np.stack(rows)

    def majority_correct(self, y: np.ndarray) -> list[int]:
        """Of each client's test samples, how many are of its most frequent training class."""
        held = zip(self.train, self.test, strict=True)
        return [int((y[test] == np.bincount(y[train]).argmax()).sum()) for train, test in held]

    def majority_accuracy(self, y: np.ndarray) -> float:
        """The score of learning nothing but each client's most frequent training class."""
        return sum(self.majority_correct(y)) / sum(map(len, self.test))


def minimum_samples(total: int, clients: int) -> int:
    """The fewest samples a client may hold: ten of test data or half the fair share.

    Never below two, so that there is something to train on and something to test on.
    """
    return max(2, int(min(LEAST_TESTED / (1 - TRAIN_SHARE), total / clients / 2)))


def make_partition(
    y: np.ndarray,
    classes: int,
    *,
    setting: str,
    clients: int,
    beta: float | None = None,
    classes_per_client: int | None = None,
    sampled_from: int | None = None,
    seed: int = 0,
) -> Partition:
    """Deal the samples labelled `y` to `clients`, each then split into 75 % train and 25 % test.

    `beta` matters to the practical setting only, `classes_per_client` to the pathological one.
    With `sampled_from` = M the samples are dealt to M clients, of which `clients` are kept.
    """
    if setting not in SETTINGS:
        raise unknown("setting", setting, SETTINGS)
    dealt = clients if sampled_from is None else sampled_from
    _check_labels(y, classes)
    _check_counts(clients, dealt)
    minimum = minimum_samples(len(y), dealt)
    if dealt * minimum > len(y):
        raise UserError(
            f"{len(y)} samples are too few for {dealt} clients with at least {minimum} samples "
            f"each; allowed: at most {len(y) // minimum} clients"
        )

    rng = numpy_generator(seed, "partition", setting)
    beta = DEFAULT_BETA if beta is None else beta
    if setting == "iid":
        owner = rng.permutation(np.arange(len(y)) % dealt)
    elif setting == "practical":
        owner = _owners(y, _practical_counts(y, classes, dealt, beta, minimum, rng), rng)
    else:
        counts = _pathological_counts(y, classes, dealt, classes_per_client, minimum, rng)
        owner = _owners(y, counts, rng)

    held = _by_client(owner, dealt)
    parts = [_split(held[client], client, seed) for client in _kept(clients, dealt, seed)]
    train, test = zip(*parts, strict=True)
    return Partition(train, test)


def natural_partition(owners: np.ndarray, total: int, clients: int, seed: int = 0) -> Partition:
    """Everybody keeps what is theirs, split into 75 % train and 25 % test; of the `total` owners
    `clients` are kept, drawn as in N|M."""
    _check_counts(clients, total)
    sizes = np.bincount(owners, minlength=total)
    if (small := int((sizes < 2).sum())) > 0:
        raise UserError(
            f"{small} of {total} natural clients hold fewer than two samples, one to train on and "
            f"one to test on; use a larger --fraction, or prepare the data with --min-samples"
        )
    held = _by_client(owners, total)
    parts = [_split(held[client], client, seed) for client in _kept(clients, total, seed)]
    train, test = zip(*parts, strict=True)
    return Partition(train, test)


def subset(y: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Sorted indices of a `fraction` of every class, at least one sample of each.

    A smaller fraction under the same seed is contained in a larger one.
    """
    if not 0 < fraction <= 1:
        raise UserError(f"fraction {fraction} is not possible; allowed: above 0 and at most 1")
    chosen = []
    for label in np.unique(y):
        rng = numpy_generator(seed, "subset", int(label))
        members = rng.permutation(np.flatnonzero(y == label))
        chosen.append(members[: max(1, round(fraction * len(members)))])
    return np.sort(np.concatenate(chosen))


def _practical_counts(
    y: np.ndarray,
    classes: int,
    clients: int,
    beta: float,
    minimum: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Dir(β) shares of every class, drawn until all clients reach the minimum.

    A small β with many clients would need more draws than anyone can wait for. After `REDRAWS` of
    them the one that lacks the fewest samples is repaired by `_top_up`.
    """
    if not 0 < beta <= LARGEST_BETA:
        raise UserError(f"beta {beta} is not possible; allowed: above 0, up to {LARGEST_BETA:g}")
    available = np.bincount(y, minlength=classes)
    fewest_missing = math.inf
    for _ in range(REDRAWS):
        counts = _dirichlet_counts(available, clients, beta, rng)
        missing = np.maximum(minimum - counts.sum(axis=1), 0).sum()
        if missing == 0:
            return counts
        if missing < fewest_missing:
            fewest_missing, best = missing, counts
    anything = np.ones((clients, classes), dtype=bool)
    return _top_up(best, minimum, anything)


def _dirichlet_counts(
    available: np.ndarray, clients: int, beta: float, rng: np.random.Generator
) -> np.ndarray:
    """One draw: class by class, passing over clients that already hold more than the fair share."""
    shares = rng.dirichlet(np.full(clients, beta), size=len(available))
    fair = available.sum() / clients
    counts = np.zeros((clients, len(available)), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    for label, samples in enumerate(available):
        open_to = held <= fair
        upto = np.cumsum(shares[label] * open_to)
        if upto[-1] == 0:
            # For β → 0 a class goes to a single client, any of them with the same probability.
            upto = np.cumsum(np.arange(clients) == rng.choice(np.flatnonzero(open_to)))
        # Divided by its own last entry, so that the rounding can neither lose a sample nor give
        # one to a client whose share is zero.
        edges = np.rint(upto / upto[-1] * samples).astype(np.int64)
        counts[:, label] = np.diff(edges, prepend=0)
        held += counts[:, label]
    return counts


def _pathological_counts(
    y: np.ndarray,
    classes: int,
    clients: int,
    per_client: int | None,
    minimum: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Few classes per client, in unbalanced amounts.

    Every client holds exactly `per_client` classes unless a class has too few samples for the
    clients that should share it. A client below the minimum gets more of the classes it has.
    """
    available = np.bincount(y, minlength=classes)
    present = np.flatnonzero(available)
    held = _checked_classes_per_client(per_client, clients, len(present))
    allowed = np.zeros((clients, classes), dtype=bool)
    allowed[:, present] = _class_groups(clients, len(present), held)
    counts = np.zeros((clients, classes), dtype=np.int64)
    for label in present:
        group = np.flatnonzero(allowed[:, label])
        counts[group, label] = _unbalanced(int(available[label]), len(group), rng)
    return _top_up(counts, minimum, allowed)


def _class_groups(clients: int, classes: int, per_client: int) -> np.ndarray:
    """Which client (row) holds which class (column): the next clients with room take the class.

    A client with as much room as there are classes left goes first. That matters only where the
    groups do not come out even; there it keeps every client at exactly `per_client` classes.
    """
    groups = np.zeros((clients, classes), dtype=bool)
    room = np.full(clients, per_client)
    for label in range(classes):
        left = classes - label
        size = -(-int(room.sum()) // left)
        urgency = np.select([room == left, room > 0], [0, 1], default=2)
        takers = np.argsort(urgency, kind="stable")[:size]
        groups[takers, label] = True
        room[takers] -= 1
    return groups


def _unbalanced(samples: int, group: int, rng: np.random.Generator) -> np.ndarray:
    """Each from a tenth of the fair share to the fair share, and the rest to the last."""
    fair = samples // group
    if fair == 0:
        return (np.arange(group) < samples).astype(np.int64)
    amounts = rng.integers(math.ceil(fair / 10), fair, size=group, endpoint=True)
    amounts[-1] = samples - amounts[:-1].sum()
    return amounts


def _top_up(counts: np.ndarray, minimum: int, allowed: np.ndarray) -> np.ndarray:
    """Move samples from the largest clients to those below the minimum.

    In client order, each takes from the largest client that can spare some, of that client's
    largest class among those `allowed` to the taker. No giver falls below the minimum, and none
    gives away all it has of a class unless there is no other way.
    """
    counts = counts.copy()
    sizes = counts.sum(axis=1)
    for taker in np.flatnonzero(sizes < minimum):
        labels = np.flatnonzero(allowed[taker])
        while sizes[taker] < minimum:
            offer = _largest_offer(counts, sizes, minimum, labels)
            if offer is None:
                raise UserError(
                    f"client {taker} gets only {sizes[taker]} samples where at least {minimum} "
                    f"are needed, because its classes are too small for the clients that share "
                    f"them; try fewer clients or more classes per client"
                )
            giver, label, spare = offer
            moved = min(spare, minimum - sizes[taker])
            for client, change in ((giver, -moved), (taker, moved)):
                counts[client, label] += change
                sizes[client] += change
    return counts


def _largest_offer(
    counts: np.ndarray, sizes: np.ndarray, minimum: int, labels: np.ndarray
) -> tuple[int, int, int] | None:
    """The largest client with something to spare of `labels`: who, of which class, how much."""
    above = np.flatnonzero(sizes > minimum)
    held = counts[np.ix_(above, labels)]
    for keep in (1, 0):
        able = held.max(axis=1) > keep
        if able.any():
            largest = np.argmax(np.where(able, sizes[above], 0))
            giver, label = above[largest], labels[np.argmax(held[largest])]
            return giver, label, min(counts[giver, label] - keep, sizes[giver] - minimum)
    return None


def _owners(y: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The client of every sample, drawn at random within each class."""
    owner = np.empty(len(y), dtype=np.int64)
    for label in range(counts.shape[1]):
        members = rng.permutation(np.flatnonzero(y == label))
        owner[members] = np.repeat(np.arange(len(counts)), counts[:, label])
    return owner


def _by_client(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    sizes = np.bincount(owner, minlength=clients)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])


def _kept(clients: int, dealt: int, seed: int) -> np.ndarray:
    """The clients of N|M in their old order; the kept of 10|50 are among those of 30|50."""
    return np.sort(numpy_generator(seed, "partition", "kept").permutation(dealt)[:clients])


def _split(held: np.ndarray, client: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    shuffled = numpy_generator(seed, "partition", "split", client).permutation(held)
    cut = int(TRAIN_SHARE * len(held))
    return shuffled[:cut], shuffled[cut:]


def _fingerprint(train: tuple[np.ndarray, ...], test: tuple[np.ndarray, ...]) -> str:
    digest = hashlib.sha256()
    for parts in (train, test):
        digest.update(np.asarray([len(parts), *map(len, parts)], dtype="<i8").tobytes())
        for indices in parts:
            digest.update(indices.astype("<i8", copy=False).tobytes())
    return digest.hexdigest()[:16]


def _check_labels(y: np.ndarray, classes: int) -> None:
    if len(y) == 0:
        raise UserError("there are no samples to deal to clients")
    if y.min() < 0 or y.max() >= classes:
        raise UserError(
            f"labels run from {y.min()} to {y.max()}; allowed with {classes} classes: "
            f"0 to {classes - 1}"
        )


def _check_counts(clients: int, dealt: int) -> None:
    if clients < 1:
        raise UserError(f"clients {clients} is not possible; allowed: 1 or more")
    if clients > dealt:
        raise UserError(
            f"{clients} clients cannot be kept of {dealt}; allowed: 1 to {dealt} of {dealt}"
        )


def _checked_classes_per_client(per_client: int | None, clients: int, classes: int) -> int:
    if per_client is None:
        raise UserError(
            f"the pathological setting needs a number of classes per client; "
            f"allowed: 1 to {classes}"
        )
    if not 1 <= per_client <= classes:
        raise UserError(f"classes per client {per_client} is not possible; allowed: 1 to {classes}")
    if clients * per_client < classes:
        raise UserError(
            f"{clients} clients with {per_client} classes each cannot hold all {classes} classes, "
            f"and samples would be lost; allowed: at least {-(-classes // clients)} classes per "
            f"client or {-(-classes // per_client)} clients"
        )
    return per_client
