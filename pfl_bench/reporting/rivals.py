"""Two methods over all that both have run: a duel for each problem, on the seeds they share.

Reads stored runs. Two single runs side by side are in `comparison`.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pfl_bench.base import UserError, meant
from pfl_bench.config import RunConfig
from pfl_bench.store import StoredRun, to_json

OF_METHOD = ("algo", "hyper", "standing", "plans_rounds", "plugin")
"""What belongs to a method in a configuration; the rest, its seed aside, is the problem."""
NO_PART = ("seed", "record", "version")


@dataclass(frozen=True)
class Duel:
    """Two methods on one problem: the best accuracies (%) of each, by seeds that both have run."""

    problem: str
    a: Mapping[int, float]
    b: Mapping[int, float]
    variant: str = ""
    """Hyper-parameters, where a method has run with several."""

    @property
    def seeds(self) -> list[int]:
        return sorted(self.a)

    @property
    def means(self) -> tuple[float, float]:
        return statistics.fmean(self.a.values()), statistics.fmean(self.b.values())

    @property
    def differences(self) -> list[float]:
        """B less A, seed by seed."""
        return [self.b[seed] - self.a[seed] for seed in self.seeds]

    @property
    def better(self) -> tuple[int, int]:
        """The seeds on which A is ahead, and those on which B is."""
        return sum(d < 0 for d in self.differences), sum(d > 0 for d in self.differences)


def stored_methods(runs: Iterable[StoredRun]) -> list[str]:
    return sorted({str(run.config.get("algo")) for run in runs if run.status == "finished"})


def duels(runs: Iterable[StoredRun], a: str, b: str) -> list[Duel]:
    """Every problem on which both methods, named in any spelling, have finished a common seed."""
    finished = [run for run in runs if run.status == "finished" and run.end.best]
    names = stored_methods(finished)
    a, b = meant(a, names), meant(b, names)
    if a == b:
        raise UserError(f"{a!r} cannot be compared with itself; name two methods")
    scores: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    labels: dict[str, str] = {}
    for run in finished:
        if run.config.get("algo") in (a, b):
            problem, method = _parts(run.config)
            labels.setdefault(problem, _label(run.config))
            best = run.end.best
            assert best is not None
            place = (problem, str(run.config["algo"]), method)
            scores[place][int(run.config["seed"])] = 100 * best.accuracy
    found = (_of_problem(scores, problem, label, a, b) for problem, label in labels.items())
    return sorted(itertools.chain(*found), key=lambda duel: (duel.problem, duel.variant))


def _of_problem(
    scores: Mapping[tuple[str, str, str], Mapping[int, float]],
    problem: str,
    label: str,
    a: str,
    b: str,
) -> Iterator[Duel]:
    """Each variant of the one method against each of the other."""
    ours, theirs = (
        {method: found for (p, algo, method), found in scores.items() if (p, algo) == (problem, x)}
        for x in (a, b)
    )
    is_plain = len(ours) * len(theirs) == 1
    for (x, of_a), (y, of_b) in itertools.product(ours.items(), theirs.items()):
        if both := sorted(of_a.keys() & of_b.keys()):
            variant = "" if is_plain else f"{a} {x}, {b} {y}"
            yield Duel(label, {s: of_a[s] for s in both}, {s: of_b[s] for s in both}, variant)


def _parts(config: Mapping[str, Any]) -> tuple[str, str]:
    """The problem, and the method's own values, each as a text that tells them apart."""
    left_out = (*OF_METHOD, *NO_PART)
    problem = {name: value for name, value in config.items() if name not in left_out}
    hyper = ", ".join(f"{name}={value}" for name, value in sorted(config["hyper"].items()))
    file = f" (file {config['plugin']})" if config.get("plugin") else ""
    return to_json(problem), (hyper or "as it is") + file


def _label(config: Mapping[str, Any]) -> str:
    from pfl_bench.data import problem  # and with it numpy

    return f"{problem(RunConfig.from_dict(config))}, {config['rounds']} rounds"
