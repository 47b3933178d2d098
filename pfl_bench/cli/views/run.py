"""What a run shows while it goes and when it ends: live on a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import click
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from pfl_bench.api import Course, duration, terms, title
from pfl_bench.base import size_in_words, standard_error
from pfl_bench.config import RunConfig
from pfl_bench.execution import Began, Computed, Note, Observer, Round
from pfl_bench.reporting import advice, metric, reference, scored, sparkline
from pfl_bench.store import StoredRun

LINE_SECONDS = 5.0
"""In a pipe a line at most this often, and always for the first and the last round."""


@contextlib.contextmanager
def watch_runs(configs: Sequence[RunConfig], quiet: bool) -> Iterator[Display]:
    """A display of these runs that suits where the output goes."""
    if quiet:
        yield Display(configs)
    elif sys.stderr.isatty():
        with _live() as progress:
            yield _Live(configs, progress)
    else:
        yield _Lines(configs)


class Display(Observer):
    """Shows nothing but what the user must know."""

    def __init__(self, configs: Sequence[RunConfig]):
        self.seconds: dict[str, Mapping[str, float]] = {}
        """Where the time went, by the requests of runs that were computed now."""
        self._are_several = len(configs) > 1

    def name(self, config: RunConfig) -> str:
        """What stands before a line on one of several runs."""
        return f"{config.algo}, seed {config.seed}: " if self._are_several else ""

    def on_note(self, event: Note) -> None:
        click.echo(f"Note: {self.name(event.config)}{event.text}", err=True)

    def on_computed(self, event: Computed) -> None:
        self.seconds[event.config.request] = event.seconds


class _Lines(Display):
    """A line now and then."""

    def __init__(self, configs: Sequence[RunConfig]):
        super().__init__(configs)
        self._courses: dict[str, Course] = {}
        self._last: dict[str, float] = {}

    def on_began(self, event: Began) -> None:
        self._courses[event.config.request] = Course(event)
        click.echo(f"{title(event.config)}\n  {terms(event.config)}", err=True)
        if event.earlier:
            click.echo(f"continues after round {len(event.earlier)}", err=True)

    def on_round(self, event: Round) -> None:
        key, record, rounds = event.config.request, event.record, event.config.rounds
        status = self._courses[key].status(record)
        is_due = time.monotonic() - self._last.get(key, 0.0) >= LINE_SECONDS
        if is_due or record.round == rounds:
            self._last[key] = time.monotonic()
            name = self.name(event.config)
            click.echo(f"{name}round {record.round}/{rounds}: {status}", err=True)


class _Live(Display):
    """A bar for each run."""

    def __init__(self, configs: Sequence[RunConfig], progress: Progress):
        super().__init__(configs)
        self._progress = progress
        self._courses: dict[str, Course] = {}
        self._bars: dict[str, TaskID] = {}

    def on_note(self, event: Note) -> None:
        self._progress.console.print(
            f"Note: {self.name(event.config)}{event.text}", markup=False, highlight=False
        )

    def on_began(self, event: Began) -> None:
        key, done = event.config.request, len(event.earlier)
        self._courses[key] = Course(event)
        if key in self._bars:  # begun once more, after a failure or for its trained model
            self._progress.reset(self._bars[key], completed=done)
            return
        header = f"{title(event.config)}\n  {terms(event.config)}"
        self._progress.console.print(header, highlight=False, markup=False)
        name = self.name(event.config)
        self._bars[key] = self._progress.add_task(name, total=event.config.rounds, completed=done)

    def on_round(self, event: Round) -> None:
        key = event.config.request
        status = self.name(event.config) + self._courses[key].status(event.record)
        bar = self._bars[key]
        self._progress.update(bar, completed=event.record.round, description=status)


def _live() -> Progress:
    return Progress(
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=standard_error(),
    )


def report(
    ended: Sequence[tuple[RunConfig, StoredRun]], profile: str, stored: Collection[str]
) -> None:
    """The end of a command: each run, and their mean where there are several.

    `stored` has the requests of runs that were not computed now.
    """
    for config, run in ended:
        click.echo(f"{title(config)} [{profile} profile]")
        click.echo(f"  training        {terms(config)}")
        _report_one(run)
        if config.request in stored:
            click.echo("                  stored earlier; --fresh computes it again")
    scores: dict[str, list[float]] = {}
    for config, run in ended:
        best = _best(run) if run.status == "finished" else None
        scores.setdefault(config.algo, []).extend([] if best is None else [best])
    if len(scores) == 1:
        (known,) = scores.values()
        if len(known) > 1:
            click.echo(f"best accuracy over {len(known)} seeds: {_mean(known)}")
    elif scores:
        click.echo("best accuracy" + (" over seeds" if max(map(len, scores.values())) > 1 else ""))
        width = max(map(len, scores))
        ranked = sorted(scores, key=lambda algo: -statistics.fmean(scores[algo] or [-1.0]))
        for algo in ranked:
            click.echo(f"  {algo:{width}}  {_mean(scores[algo])}")


def _mean(scores: Sequence[float]) -> str:
    """With the spread, where there are several."""
    if not scores:
        return "–"
    spread = f" ± {statistics.stdev(scores):.2%}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.2%}{spread}"


def _report_one(run: StoredRun) -> None:
    end = run.end
    if run.remark:
        click.echo(f"  data            {run.remark}")
    if run.status == "skipped":
        click.echo(f"  skipped: {end.reason}")
    if run.status == "diverged":
        click.echo(f"Warning: the run diverged, {end.reason}", err=True)
        click.echo(f"  diverged after round {end.rounds}")
    for name, score in (("best", end.best), ("last", end.last)):
        if score is not None:
            click.echo(
                f"  {name} accuracy   {score.accuracy:.2%} (round {score.round}); clients: "
                f"{score.mean_over_clients:.2%} ± {score.std_over_clients:.2%}, "
                f"worst decile {score.worst_decile:.2%}"
            )
    for name, kind in (("validation", "validation_accuracy"), ("new clients", "new_accuracy")):
        if (value := metric(kind).read(run)) is not None:
            click.echo(f"  {name:<15} {value:.2f} % in the best round")
    if len(curve := scored(run.records())) > 1:
        click.echo(f"  curve           {sparkline(curve)}")
    if (known := reference(run)) is not None and end.best:
        click.echo(f"  reference       {known}")
    for sentence in advice(run):
        click.echo(f"  note            {sentence}")
    if end.seconds_per_round is not None:
        up, down = end.bytes_up_per_client or 0.0, end.bytes_down_per_client or 0.0
        click.echo(
            f"  time            {duration(end.total_seconds)} in all, "
            f"{end.seconds_per_round:.2f} s per round"
        )
        sent = f"{size_in_words(up)} up, {size_in_words(down)} down"
        click.echo(f"  communication   {sent} per client and round")
    click.echo(f"  result          {run.path}")
    if size := run.model_bytes:
        click.echo(f"  model           kept with it, {size_in_words(size)}")


def time_profile(seconds: Mapping[str, float] | None) -> str:
    """Where the time of a run went, part by part."""
    if seconds is None:
        return "Where the time went is known of a run that is computed now; --fresh repeats it."
    total = sum(seconds.values())
    rows = [*seconds.items(), ("wall time", total)]
    lines = [f"  {part:15} {value:9.3f} s  {value / total:6.1%}" for part, value in rows]
    return "\n".join(["Where the time went", *lines])


def _best(run: StoredRun) -> float | None:
    return run.end.best.accuracy if run.end.best else None


def outcome(ended: Sequence[tuple[RunConfig, StoredRun]]) -> str:
    """The end as JSON: one object per run."""
    rows = [
        {
            "config": config.to_dict(),
            "key": config.key,
            "path": str(run.path),
            **(run.summary or {}),
        }
        for config, run in ended
    ]
    return json.dumps(rows, indent=2)
