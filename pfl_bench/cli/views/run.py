"""What a run shows while it goes and when it ends: live on a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pfl_bench.base import standard_error
from pfl_bench.config import RunConfig
from pfl_bench.data import problem
from pfl_bench.execution import Watcher
from pfl_bench.reporting import advice, reference
from pfl_bench.store import RoundRecord, StoredRun

LINE_SECONDS = 5.0
"""In a pipe a line at most this often, and always for the first and the last round."""


def title(config: RunConfig) -> str:
    """The run in a line: what is trained on what."""
    return f"{config.algo} on {problem(config)}, seed {config.seed}"


@contextlib.contextmanager
def watch_run(config: RunConfig, quiet: bool) -> Iterator[Display]:
    """A watcher for one run that suits where the output goes."""
    if quiet:
        yield Display()
    elif sys.stderr.isatty():
        with _live() as progress:
            yield _Live(progress)
    else:
        yield _Lines()


class Display(Watcher):
    """Shows nothing but what the user must know."""

    seconds: Mapping[str, float] | None = None
    """Where the time went, if the run was computed now."""

    def on_note(self, note: str) -> None:
        click.echo(f"Note: {note}", err=True)

    def on_end(self, seconds: Mapping[str, float]) -> None:
        self.seconds = seconds


class _Following(Display):
    """Keeps what every display needs: the best accuracy and the pace."""

    def on_start(self, config: RunConfig, earlier: Sequence[RoundRecord]) -> None:
        self.config = config
        self.best = max((r.accuracy for r in earlier if r.accuracy is not None), default=None)
        self.done = len(earlier)
        self.began, self.began_at = time.monotonic(), len(earlier)

    def on_round(self, record: RoundRecord) -> None:
        self.done = record.round
        if record.accuracy is not None:
            self.best = max(record.accuracy, self.best or 0.0)

    def left(self) -> str:
        per_round = (time.monotonic() - self.began) / max(1, self.done - self.began_at)
        return duration(per_round * (self.config.rounds - self.done))

    def status(self, record: RoundRecord) -> str:
        now = "not scored" if record.accuracy is None else f"{record.accuracy:.2%}"
        best = "" if self.best is None else f", best {self.best:.2%}"
        return f"accuracy {now}{best}, {self.left()} left"


class _Lines(_Following):
    def on_start(self, config: RunConfig, earlier: Sequence[RoundRecord]) -> None:
        super().on_start(config, earlier)
        self.last = 0.0
        click.echo(title(config), err=True)
        if earlier:
            click.echo(f"continues after round {len(earlier)}", err=True)

    def on_round(self, record: RoundRecord) -> None:
        super().on_round(record)
        is_due = time.monotonic() - self.last >= LINE_SECONDS
        if is_due or record.round == self.config.rounds:
            self.last = time.monotonic()
            click.echo(
                f"round {record.round}/{self.config.rounds}: {self.status(record)}", err=True
            )


class _Live(_Following):
    def __init__(self, progress: Progress):
        self.progress = progress

    def on_start(self, config: RunConfig, earlier: Sequence[RoundRecord]) -> None:
        super().on_start(config, earlier)
        self.progress.console.print(title(config), highlight=False)
        self.bar = self.progress.add_task("", total=config.rounds, completed=len(earlier))

    def on_round(self, record: RoundRecord) -> None:
        super().on_round(record)
        self.progress.update(self.bar, completed=record.round, description=self.status(record))


def _live() -> Progress:
    return Progress(
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=standard_error(),
    )


def report(
    ended: Sequence[tuple[RunConfig, StoredRun]], profile: str, stored: Collection[str]
) -> None:
    """The end of a command: each run, and their mean where there are several.

    `stored` has the keys of runs that were not computed now.
    """
    for config, run in ended:
        click.echo(f"{title(config)} [{profile} profile]")
        _report_one(run)
        if config.key in stored:
            click.echo("                  stored earlier; --fresh computes it again")
    scores = [_best(run) for _, run in ended if run.status == "finished"]
    known = [s for s in scores if s is not None]
    if len(known) > 1:
        mean, spread = statistics.fmean(known), statistics.stdev(known)
        click.echo(f"best accuracy over {len(known)} seeds: {mean:.2%} ± {spread:.2%}")


def _report_one(run: StoredRun) -> None:
    summary = run.summary or {}
    if run.remark:
        click.echo(f"  data            {run.remark}")
    if run.status == "skipped":
        click.echo(f"  skipped: {summary['reason']}")
    if run.status == "diverged":
        click.echo(f"Warning: the run diverged, {summary['reason']}", err=True)
        click.echo(f"  diverged after round {summary['rounds']}")
    for name in ("best", "last"):
        if score := summary.get(name):
            click.echo(
                f"  {name} accuracy   {score['accuracy']:.2%} (round {score['round']}); clients: "
                f"{score['mean_over_clients']:.2%} ± {score['std_over_clients']:.2%}, "
                f"worst decile {score['worst_decile']:.2%}"
            )
    if (known := reference(run)) is not None and summary.get("best"):
        click.echo(f"  reference       {known}")
    for sentence in advice(run):
        click.echo(f"  note            {sentence}")
    if summary.get("seconds_per_round") is not None:
        up, down = summary["bytes_up_per_client"], summary["bytes_down_per_client"]
        click.echo(
            f"  time            {duration(summary['total_seconds'])} in all, "
            f"{summary['seconds_per_round']:.2f} s per round"
        )
        click.echo(f"  communication   {_size(up)} up, {_size(down)} down per client and round")
    click.echo(f"  result          {run.path}")


def time_profile(seconds: Mapping[str, float] | None) -> str:
    """Where the time of a run went, part by part."""
    if seconds is None:
        return "Where the time went is known of a run that is computed now; --fresh repeats it."
    total = sum(seconds.values())
    rows = [*seconds.items(), ("wall time", total)]
    lines = [f"  {part:15} {value:9.3f} s  {value / total:6.1%}" for part, value in rows]
    return "\n".join(["Where the time went", *lines])


def _best(run: StoredRun) -> float | None:
    best = (run.summary or {}).get("best")
    return best["accuracy"] if best else None


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


def duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} GB"
