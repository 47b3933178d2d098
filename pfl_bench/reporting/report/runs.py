"""What the report says of the stored runs, as plain JSON values: each run, and the experiments in
which methods met on equal terms.

Reads only, and trusts nothing: a run that cannot be understood is listed with the reason. Tables
are in `tables`, the page in `report`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

from pfl_bench import data
from pfl_bench.base import UserError
from pfl_bench.config import BOOKKEEPING, RunConfig, as_dict, requirements, resolve, run_command
from pfl_bench.plugins import load_algorithm
from pfl_bench.reporting.verdict import advice, is_rising, reference
from pfl_bench.store import (
    RoundRecord,
    Score,
    StoredRun,
    Summary,
    flat,
    from_json,
    remarks,
    summarise,
    to_json,
)

MEGA = 1e6
CURVE_POINTS = 400
"""A longer curve is thinned to about this many rounds: a page shows no more."""

# What the values of another version, or such as are made to mislead, can raise while being read.
UNREADABLE = (KeyError, TypeError, ValueError, ArithmeticError, RecursionError, UserError)

# The method itself and what may differ between two runs of it; the rest makes the experiment.
_METHOD = ("algo", "hyper", "plugin")
_NOT_EXPERIMENT = (*_METHOD, *BOOKKEEPING, "seed", "record")


@dataclass(frozen=True)
class Gathered:
    """The runs that can be shown, as found and as told, and those that cannot."""

    runs: list[dict[str, Any]]
    experiments: list[dict[str, Any]]
    unreadable: list[dict[str, str]]
    details: list[str] = field(default_factory=list)
    """Of each run, as JSON, what is needed once somebody looks closer: curves, clients, where
    it comes from. Text, because that is a tenth of the memory."""


def gather(stored: Iterable[StoredRun], known: dict[str, str] | None = None) -> Gathered:
    """All runs of a store; `experiments` and their methods point into `runs` by position. What is
    worked out from records is taken from `known` where it is there, and is left in it: no more than
    the runs need."""
    runs: list[dict[str, Any]] = []
    details: list[str] = []
    configs: list[RunConfig] = []
    unreadable = []
    drawn = _Drawn(known or {})
    said: dict[str, str] = {}
    for run in stored:  # one by one: of the run that was read last the records are at hand
        if run.status == "begun":
            continue
        if run.status == "damaged":
            unreadable.append({"folder": run.path.name, "problem": run.damage or "damaged"})
            continue
        said = remarks([run], said)
        try:
            config = checked_config(run)
            told, detail = _told(run, config, drawn)
        except UNREADABLE:
            problem = "its content is not that of a run of this version"
            unreadable.append({"folder": run.path.name, "problem": problem})
            continue
        runs.append(told)
        details.append(detail)
        configs.append(config)
    if known is not None:
        known.clear()
        known.update(drawn.used)
    return Gathered(runs, _experiments(configs, said), unreadable, details)


def checked_config(run: StoredRun) -> RunConfig:
    """The run's configuration, of the types that names and sorting rely on."""
    if not isinstance(run.config, dict):
        raise TypeError("a configuration that does not hold names and values")
    config = RunConfig.from_dict(run.config)
    names = (config.algo, config.dataset, config.source, config.setting, config.model)
    numbers = (config.clients, config.rounds, config.seed)
    if not all(isinstance(n, str) for n in names) or not all(isinstance(n, int) for n in numbers):
        raise TypeError("a name that is not text or a number that is not whole")
    if not isinstance(config.fraction, int | float):
        raise TypeError("a share of the data that is not a number")
    if not isinstance(config.hyper, dict):
        raise TypeError("hyper-parameters that are not names and values")
    return config


# --- one run --------------------------------------------------------------------------------------


class _Drawn:
    """What is drawn of runs, as JSON. It follows from the records, which the digest in a summary
    names, and reading those of thousands of runs takes longer than all else."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = known
        self.used: dict[str, str] = {}

    def of(self, run: StoredRun, records: list[RoundRecord] | None) -> str:
        name = f"{run.key} {run.end.records_sha256}" if run.is_final else ""
        text = self._known.get(name)
        if text is None:
            text = _drawn(run, run.records() if records is None else records)
        if name:
            self.used[name] = text
        return text


def _drawn(run: StoredRun, records: Sequence[RoundRecord]) -> str:
    end = Summary.of(run.summary or summarise(records))
    drawn = {
        "advice": advice(run, records),
        "curve": _curve(records),
        "perClient": _per_client(records, end.best.round) if end.best else None,
    }
    return json.dumps(drawn, separators=(",", ":"), allow_nan=False)


def _told(run: StoredRun, config: RunConfig, drawn: _Drawn) -> tuple[dict[str, Any], str]:
    """What the list of runs shows, and the details. Both are JSON, while the run can still be
    refused."""
    records = None if run.is_final else run.records()
    end = Summary.of(run.summary or summarise(records or []))
    rounds = end.rounds
    origin = end.provenance
    told = {
        "key": run.key,
        "folder": run.path.name,
        "status": run.status,
        "method": method_title(config.algo),
        "dataset": data.title(config.dataset, config.source),
        "setting": config.setting_label,
        "share": f"{config.percent} %",
        "model": _model_title(config),
        "clients": int(config.clients),
        "seed": int(config.seed),
        "rounds": rounds,
        "best": _score(end.best),
        "seconds": _figure(end.total_seconds) if rounds else None,
        "secondsPerRound": _figure(end.seconds_per_round),
        "bytesUp": _figure(end.bytes_up_per_client),
        "bytesDown": _figure(end.bytes_down_per_client),
        "memory": _figure(end.peak_memory) if rounds else None,
        "finished": end.finished or "",
        "rising": run.status == "finished" and is_rising(run),
        "config": _texts(run.config),
    }
    detail = {
        "reason": end.reason,
        "last": _score(end.last),
        "provenance": _texts({**origin, **_circumstances(run.summary or {})}),
        "reference": str(known) if (known := reference(run)) else "",
        "command": run_command(config),
        "needs": requirements(config),
    }
    own = json.dumps(detail, separators=(",", ":"), allow_nan=False)
    return from_json(to_json(told)), f"{own[:-1]},{drawn.of(run, records)[1:]}"


def _score(score: Score | None) -> dict[str, float | None] | None:
    return None if score is None else {name: _figure(v) for name, v in asdict(score).items()}


def _circumstances(summary: Mapping[str, Any]) -> dict[str, Any]:
    names = ("data", "device", "workers", "timed", "partition_fingerprint")
    return {name: summary[name] for name in names if name in summary}


def _figure(value: Any) -> float | None:
    """Six significant digits; None for what is absent or not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _curve(records: Sequence[RoundRecord]) -> dict[str, list[Any]]:
    """Series by round. Seconds and megabytes are those spent up to the round's end."""
    step = math.ceil(len(records) / CURVE_POINTS) or 1
    last = len(records) - 1
    shown = [k for k in range(len(records)) if (k + 1) % step == 0 or k == last]
    seconds = list(accumulate(record.total_seconds for record in records))
    traffic = list(accumulate(record.bytes_up + record.bytes_down for record in records))
    return {
        "round": [int(records[k].round) for k in shown],
        "accuracy": [_figure(records[k].accuracy) for k in shown],
        "testLoss": [_figure(records[k].test_loss) for k in shown],
        "trainLoss": [_figure(records[k].train_loss) for k in shown],
        "seconds": [_figure(seconds[k]) for k in shown],
        "megabytes": [_figure(traffic[k] / MEGA) for k in shown],
    }


def _per_client(records: Sequence[RoundRecord], best_round: int) -> dict[str, list[int]]:
    record = {record.round: record for record in records}[best_round]
    correct, total = record.correct or [], record.total or []
    if len(correct) != len(total):
        raise ValueError("correct and total are of different clients")
    return {"correct": list(map(int, correct)), "total": list(map(int, total))}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    cells = flat(values)
    return {name: v if isinstance(v, str) else to_json(v) for name, v in cells.items()}


@lru_cache(maxsize=64)
def _model_name(model: str) -> str:
    from pfl_bench.models import MODELS

    return MODELS[model].title if model in MODELS else model


def _model_title(config: RunConfig) -> str:
    return _model_name(config.model) + config.size_label


# --- names ----------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def method_title(algo: str) -> str:
    """An algorithm's title, or its bare name where it is not at hand."""
    try:
        return load_algorithm(algo).title
    except UserError:
        return str(algo)


# --- experiments ----------------------------------------------------------------------------------


def _experiments(configs: Sequence[RunConfig], said: Mapping[str, str]) -> list[dict[str, Any]]:
    """Runs that differ in method and seed alone. The one that tells most bears `featured`; `said`
    has the remarks on data by fingerprint."""
    groups: dict[str, list[int]] = {}
    for position, config in enumerate(configs):
        terms = {k: v for k, v in config.to_dict().items() if k not in _NOT_EXPERIMENT}
        groups.setdefault(_canonical(terms), []).append(position)
    firsts = [configs[members[0]] for members in groups.values()]
    weights = [_weight(configs, members) for members in groups.values()]
    told = [
        {
            "label": label,
            "featured": weight == max(weights),
            "dataset": data.title(first.dataset, first.source),
            "setting": first.setting_label,
            "series": _series(configs, members),
        }
        for label, first, members, weight in zip(
            _distinct_labels(firsts, said), firsts, groups.values(), weights, strict=True
        )
    ]
    return sorted(told, key=lambda one: one["label"].lower())


def _weight(configs: Sequence[RunConfig], members: Sequence[int]) -> tuple[int, int]:
    """Methods first, then rounds of all seeds."""
    return len({configs[k].algo for k in members}), sum(configs[k].rounds for k in members)


def _series(configs: Sequence[RunConfig], members: Sequence[int]) -> list[dict[str, Any]]:
    """The methods of one experiment, each with the runs of its seeds."""
    methods: dict[str, list[int]] = {}
    for position in members:
        terms = {name: getattr(configs[position], name) for name in _METHOD}
        methods.setdefault(_canonical(terms), []).append(position)
    variants = [configs[runs[0]] for runs in methods.values()]
    told: list[dict[str, Any]] = [
        {
            "label": _method_label(config, [v for v in variants if v.algo == config.algo]),
            "method": method_title(config.algo),
            "variant": _is_variant(config),
            "runs": sorted(runs, key=lambda position: configs[position].seed),
        }
        for config, runs in zip(variants, methods.values(), strict=True)
    ]
    order = {title: place for place, title in enumerate(paper_methods())}
    return sorted(
        told, key=lambda one: (order.get(one["method"], len(order)), one["label"].lower())
    )


def _is_variant(config: RunConfig) -> bool:
    """Whether a hyper-parameter is not as usual; not known of an algorithm that is not at hand."""
    usual = _usual(config.algo, config.model)
    return any(config.hyper.get(name, value) != value for name, value in usual.items())


@lru_cache(maxsize=1)
def paper_methods() -> tuple[str, ...]:
    """The titles of the methods that the paper compares, in its order."""
    from pfl_bench.reporting.tables import load_table

    cells = load_table("main").cells.values()
    return tuple(dict.fromkeys(method_title(cell.chosen["algo"]) for cell in cells))


def _method_label(config: RunConfig, variants: Sequence[RunConfig]) -> str:
    """The method's title; where it has variants here, with what is not as usual in this one."""
    title, usual = method_title(config.algo), _usual(config.algo, config.model)
    differing = [
        f"{name}={_shown(value)}"
        for name, value in _options(config).items()
        if any(_options(other).get(name) != value for other in variants)
        and not (name in usual and usual[name] == value)
    ]
    return f"{title} ({', '.join(differing)})" if differing else title


def _options(config: RunConfig) -> dict[str, Any]:
    return {"code": config.plugin, **config.hyper}


@lru_cache(maxsize=256)
def _usual(algo: str, model: str) -> dict[str, Any]:
    """The hyper-parameters that need not be told; none where the algorithm is not at hand."""
    try:
        return as_dict(resolve(load_algorithm(algo).Hyper, model, {}, algo))
    except UserError:
        return {}


def _distinct_labels(configs: Sequence[RunConfig], said: Mapping[str, str]) -> list[str]:
    """A line for each experiment; where two would read the same, with what tells them apart."""
    plain = [_label(config, said.get(config.data_fingerprint, "")) for config in configs]
    count = Counter(plain)
    alike: dict[str, list[dict[str, Any]]] = {}
    for label, config in zip(plain, configs, strict=True):
        alike.setdefault(label, []).append(asdict(config))
    return [
        f"{label}, {_difference(config, alike[label])}" if count[label] > 1 else label
        for label, config in zip(plain, configs, strict=True)
    ]


def _difference(config: RunConfig, alike: Sequence[Mapping[str, Any]]) -> str:
    mine = asdict(config)
    names = [
        name
        for name in mine
        if name not in _NOT_EXPERIMENT and any(other[name] != mine[name] for other in alike)
    ]
    return ", ".join(f"{name.replace('_', ' ')} {_shown(mine[name])}" for name in names)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple) and len(value) == 2:
        return f"{value[0]:g}" if value[0] == value[1] else f"{value[0]:g}–{value[1]:g}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _label(config: RunConfig, remark: str) -> str:
    rounds = "1 round" if config.rounds == 1 else f"{config.rounds} rounds"
    return f"{data.problem(config, remark)}, {rounds}"


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=dict)
