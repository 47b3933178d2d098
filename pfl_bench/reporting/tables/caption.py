"""What the caption of a table says: what must be known to read the table and to make it again."""

from __future__ import annotations

import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pfl_bench.reporting import costs, intervals
from pfl_bench.reporting.metrics import attack_values, metric, mismatches
from pfl_bench.reporting.statistics import is_standin
from pfl_bench.reporting.verdict import MARK, reference, rising
from pfl_bench.store import curve, stored_run

if TYPE_CHECKING:
    from pfl_bench.config import RunConfig
    from pfl_bench.reporting.tables.plan import TablePlan
    from pfl_bench.reporting.tables.spec import Cell
    from pfl_bench.store import Metric, StoredRun

OF_NEW = ("new", "new-clients")
"""Scores of clients that never join."""
NOT_BEST = ("last", "late", "loss")
"""Scores that no best round is chosen for."""
NO_RANKING = (
    "this profile says of itself that it does not tell which method is better; so ranks, "
    "correlations with the paper and p-values are left out"
)


def _profile(plan: TablePlan) -> str:
    """The profile and what it says of itself."""
    about = " ".join(plan.profile.about.split()).removesuffix(".")
    return f"{plan.profile.name}. {about}" if about else plan.profile.name


def facts(plan: TablePlan) -> dict[str, str]:
    """All that must be known to read the table and to make it again."""
    cells = list(plan.cells.values())
    runs = [run for cell in cells for run in cell.runs if run is not None]
    filled = [cell for cell in cells if any(cell.runs)] or cells
    configs = [cell.configs[0] for cell in filled if cell.configs]  # the seed aside, as the others
    remarked = remarks(plan)
    said = {
        "Profile": _profile(plan),
        "Data": "; ".join(dict.fromkeys(_data(config, remarked) for config in configs)),
        "Models": small_models(configs),
        "Seeds": f"{plan.seeds} per cell",
        "Scoring": _scoring(plan),
        "Best round": _best_round(plan),
        "New clients": _new_clients(configs),
        "Tuning": _tuning(plan),
        "Cells": _legend(plan, any(map(is_standin, cells))),
        "Intervals": _intervals(plan),
        "Ranking": "" if plan.profile.ranks else NO_RANKING,
        "Still rising": still_rising(plan),
        "Without training": _references(plan),
        **(_attack_facts(plan) if plan.spec.is_attacked else {}),
        **_notes(plan),
        "Versions": " and ".join(sorted({_versions(run) for run in runs} - {""})),
        "Date": max((_finished(run) for run in runs), default="")[:10],
        "Command": command(plan),
    }
    return {name: text for name, text in said.items() if text}


def _intervals(plan: TablePlan) -> str:
    """How to read them, where the table was asked for any."""
    told = {one.name for one in _metrics(plan)}
    if plan.spec.interval == "clients" and "accuracy" not in told:
        return "none over clients, which are for the accuracy of the best round"
    return intervals.OVER.get(plan.spec.interval, "")


def _scoring(plan: TablePlan) -> str:
    """How the values are worked out, each way told once."""
    if plan.spec.metric == "overhead":
        return costs.CRITERION
    return "; ".join(dict.fromkeys(one.how for one in _metrics(plan) if one.how))


def _best_round(plan: TablePlan) -> str:
    """Which samples the best round was chosen by, where a table of accuracies is read off it."""
    if plan.spec.metric != "accuracy" or plan.spec.score in NOT_BEST:
        return ""
    shares = {config.validation for cell in plan.cells.values() for config in cell.configs}
    told = {
        share: f"chosen by the accuracy on {100 * share:g} % of each client's training samples, "
        "which are held back; no test sample has a say"
        if share
        else "chosen by test accuracy, as published"
        for share in sorted(shares)
    }
    return "; ".join(told.values())


def _tuning(plan: TablePlan) -> str:
    """Whether hyper-parameters were tuned, of a table in which methods compete by accuracy."""
    if plan.spec.metric != "accuracy":
        return ""
    return plan.spec.tuning or "untuned: defaults, but for what the table itself sets"


def _new_clients(configs: Iterable[RunConfig]) -> str:
    """How many clients never join, and for how long they adapt."""
    told = {
        f"{c.new_clients} of {c.clients} clients never join; scored, they have adapted for "
        f"{c.adapt_epochs} local epoch{'' if c.adapt_epochs == 1 else 's'}"
        for c in configs
        if c.new_clients
    }
    return "; ".join(sorted(told))


def _metrics(plan: TablePlan) -> list[Metric]:
    """What the table shows, each once."""
    return [metric(name) for name in dict.fromkeys(c.measure for c in plan.spec.cells.values())]


def still_rising(plan: TablePlan) -> str:
    """How many cells of a table of accuracies still rise, and what that means; often nothing."""
    if plan.spec.metric != "accuracy":
        return ""
    trained = [cell for cell in plan.cells.values() if cell.mean is not None]
    count = sum(rising(cell.runs) > 0 for cell in trained)
    if not count:
        return ""
    return (
        f"{count} of {len(trained)} cells, marked {MARK}, have a run that more rounds would change "
        f"(--rounds, or a longer --patience): {curve.RISING}"
    )


def _references(plan: TablePlan) -> str:
    """What answers without training score in each line of a table of accuracies; it is known of the
    clients that join alone."""
    if plan.spec.metric != "accuracy" or plan.spec.score in OF_NEW:
        return ""
    told = {line: _reference(plan, cells) for line, cells in plan.spec.lines().items()}
    known = {line: text for line, text in told.items() if text}
    if not known:
        return ""
    if len(set(known.values())) == 1 and len(known) == len(told):
        known = {"every line": next(iter(known.values()))}
    listed = "; ".join(f"{line}: {text}" for line, text in known.items())
    return (
        "accuracy of always answering a client's most frequent training class, and of a guess: "
        f"{listed}"
    )


def _reference(plan: TablePlan, cells: Iterable[Cell]) -> str:
    """Where the cells of a line differ in their data, each is told under its own name."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        runs = plan.cells[cell.row, cell.column].runs
        known = next((one for run in runs if run and (one := reference(run))), None)
        if known is not None:
            text = f"{known.most_frequent:.2f} and {known.chance:.2f} %"
            found.setdefault(text, []).append(plan.spec.competitor(cell))
    if len(found) < 2:
        return next(iter(found), "")
    return ", ".join(f"{text} ({', '.join(names)})" for text, names in found.items())


def _notes(plan: TablePlan) -> dict[str, str]:
    """What metrics say of the table's configurations, under their titles."""
    said = {}
    for one in _metrics(plan):
        configs = (c.to_dict() for cell in plan.cells.values() for c in cell.configs)
        texts = map(one.note, configs) if one.note is not None else ()
        said[one.title[:1].upper() + one.title[1:]] = "; ".join(
            dict.fromkeys(t for t in texts if t)
        )
    return said


def command(plan: TablePlan) -> str:
    """The command that makes this table."""
    spec, profile = plan.spec, plan.profile
    chosen = shlex.quote(profile.argument or profile.name)
    made = f"pfl-bench table {spec.arguments or spec.name} --profile {chosen} --seeds {plan.seeds}"
    if profile.run.get("source") != "real" and _on_real_data(plan):
        return f"{made} --data-dir DIR"
    return made


def _on_real_data(plan: TablePlan) -> bool:
    configs = [config for cell in plan.cells.values() for config in cell.configs]
    return bool(configs) and all(config.source == "real" for config in configs)


def remarks(plan: TablePlan) -> dict[str, str]:
    """What must be said of data that are not as published, by their fingerprint."""
    runs = (run for cell in plan.cells.values() for run in cell.runs if run is not None)
    return stored_run.remarks(runs, plan.remarks)


def _data(config: RunConfig, remarks: Mapping[str, str]) -> str:
    """A dataset as the run sees it: title, stand-in or not, share, model, rounds."""
    from pfl_bench import data
    from pfl_bench.models import MODELS

    remark = remarks.get(config.data_fingerprint, "")
    title = data.title(config.dataset, config.source, remark)
    share = "all of it" if config.fraction == 1 else f"{config.percent} % of it"
    model = MODELS[config.model].title + config.size_label
    return f"{title}, {share}, {model}, {config.length_label}"


def small_models(configs: Iterable[RunConfig]) -> str:
    """Which models were trained in the place of the paper's, on images of which size; nothing where
    all are the paper's own."""
    from pfl_bench.models import MODELS

    sizes: dict[str, list[str]] = {}
    for config in configs:
        known = sizes.setdefault(config.model, [])
        if (
            config.image_size is not None
            and f"{config.image_size}×{config.image_size}" not in known
        ):
            known.append(f"{config.image_size}×{config.image_size}")
    told = []
    for model, seen in sizes.items():
        elder = MODELS[model].small_relative_of
        images = f" on images of {' and '.join(seen)}" if seen else ""
        place = f" in the place of the {MODELS[elder].title}" if elder else ""
        if images or place:
            told.append(f"{MODELS[model].title}{images}{place}")
    return "; ".join(told)


def _legend(plan: TablePlan, standin: bool) -> str:
    spread = "attacked images" if plan.spec.is_attacked else "seeds"
    legend = f"mean ± sample standard deviation over the {spread}"
    if any(cell.seeds < len(cell.configs) for cell in plan.cells.values()):
        legend += ", and how many seeds there are where some are missing"
    if not any(cell.cell.published for cell in plan.cells.values()):
        return legend
    best = "" if plan.spec.score == "best" or plan.spec.is_attacked else " (its best round's)"
    if standin and not plan.profile.ranks:
        return (
            f"{legend}; stand-in data is not what the paper measured, so that its figures are not "
            "shown"
        )
    if not standin:
        return f"{legend}; beside it the paper's figure{best} and ours less the paper's"
    return (
        f"{legend}; beside it the rank here and in the paper{best}, among the {plan.spec.compared} "
        "that both have: stand-in data is not what the paper measured, so that its figures are not "
        "shown"
    )


def _attack_facts(plan: TablePlan) -> dict[str, str]:
    return {"Attack": _attack(plan), "Floor": _floor(plan), "Mismatch": _mismatch(plan)}


def _attack(plan: TablePlan) -> str:
    """The attack of each row, and where a column departs from it."""
    said = []
    for row in plan.spec.rows:
        threats = {c: t for c in plan.spec.columns if (t := plan.spec.cells[row, c].threat)}
        usual = Counter(threats.values()).most_common(1)[0][0]
        others = [f"{c} with {t.beside(usual)}" for c, t in threats.items() if t != usual]
        said.append(f"{row}: " * (len(plan.spec.rows) > 1) + "; ".join((str(usual), *others)))
    return ". ".join(dict.fromkeys(said))


def _mismatch(plan: TablePlan) -> str:
    """How far the attack got by its own measure: a server cannot see PSNR."""
    said = []
    for row in plan.spec.rows:
        left = {
            column: [v for run in plan.cells[row, column].runs if run for v in mismatches(run)]
            for column in plan.spec.columns
        }
        told = [f"{column} {statistics.median(each):.2g}" for column, each in left.items() if each]
        if told:
            said.append(f"{row}: " * (len(plan.spec.rows) > 1) + ", ".join(told))
    if not said:
        return ""
    return (
        f"{'; '.join(said)}: median of what the attack left unexplained of the messages (DLG: "
        "squared distance over the squared length of what it saw; inverting gradients: 1 less the "
        "cosine of the angle; 0: it explains all it saw)"
    )


def _floor(plan: TablePlan) -> str:
    """What images that know nothing of the victims reach; methods share their victims."""
    measure = metric(next(iter(plan.cells.values())).cell.measure)
    runs = (run for cell in plan.cells.values() for run in cell.runs if run is not None)
    by_seed = {run.config.get("seed"): run for run in runs if attack_values(run, measure.name)}
    noise, mean = (
        [v for run in by_seed.values() for v in attack_values(run, f"{measure.name}_{image}")]
        for image in ("noise", "mean")
    )
    if not noise:
        return ""
    spread = f" ± {measure.show(statistics.stdev(noise))}" if len(noise) > 1 else ""
    return (
        f"{measure.show(statistics.fmean(noise))}{spread} for random images (pixels uniform on "
        "[0, 1], which is also where the attack starts) against the same victims; the mean of "
        f"all training images has {measure.show(statistics.fmean(mean))}"
    )


def _origin(run: StoredRun) -> Mapping[str, Any]:
    return run.end.provenance


def _versions(run: StoredRun) -> str:
    names = {"pfl_bench": "pfl-bench", "torch": "torch", "python": "Python"}
    origin = _origin(run)
    return ", ".join(f"{title} {origin[name]}" for name, title in names.items() if name in origin)


def _finished(run: StoredRun) -> str:
    return _origin(run).get("finished") or ""
