"""`pfl-bench data partition`: who would get what, before anything is trained on it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from pfl_bench.cli.figure import of_data

if TYPE_CHECKING:
    import numpy as np

    from pfl_bench.config import RunConfig
    from pfl_bench.data import Dataset, Partition

MANY_CLASSES = 20
MANY_CLIENTS = 60
LARGEST_SHOWN = 5
LARGEST_COLUMN = 4
QUANTILES = {"min": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "max": 1.0}


@click.command()
@of_data
@click.option("--all", "every_client", is_flag=True, help="A line per client, however many.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option(
    "--export", metavar="pfllib:PATH", help="Also write data and partition as PFLlib keeps them."
)
def partition(
    every_client: bool,
    as_json: bool,
    export: str | None,
    profile: str | None,
    data_dir: str | None,
    config_file: str | None,
    **options: Any,
) -> None:
    """Show how samples are dealt to clients: the class histogram of each.

    What `pfl-bench run` would use with the same options and profile.
    """
    from pfl_bench.cli.shared import figure_runs
    from pfl_bench.data import problem, write_pfllib
    from pfl_bench.execution import pfllib_path

    target = None if export is None else pfllib_path(export, "--export")
    wanted = figure_runs.read(options, profile=profile, data_dir=data_dir, config_file=config_file)
    config, dataset, dealt = figure_runs.dealt(wanted)
    histogram = dealt.histogram(dataset.y, dataset.classes)
    if target is not None:
        write_pfllib(target, dataset, dealt, setting=config.setting, beta=config.beta)
        click.echo(f"wrote {target}, for PFLlib and for --partition {export}", err=True)
    if as_json:
        click.echo(_as_json(config, wanted.profile.name, dataset, dealt, histogram))
        return
    samples = f"{histogram.sum():,} samples"
    click.echo(f"{problem(config, dataset.remark)}: {samples} [{wanted.profile.name} profile]")
    click.echo(f"partition {dealt.fingerprint} of data {dataset.fingerprint}")
    majority = f"{100 * dealt.majority_accuracy(dataset.y):.2f}%"
    click.echo(f"always answering a client's most frequent class: {majority} of the test samples\n")
    if dealt.clients > MANY_CLIENTS and not every_client:
        click.echo(_aligned(_summary(dealt, histogram), text_column=0))
        click.echo("\n--all shows every client")
    else:
        text_column = LARGEST_COLUMN if dataset.classes > MANY_CLASSES else None
        click.echo(_aligned(_client_rows(dealt, histogram), text_column))


def _as_json(
    config: RunConfig, profile: str, dataset: Dataset, dealt: Partition, histogram: np.ndarray
) -> str:
    held = zip(dealt.train, dealt.test, histogram.tolist(), strict=True)
    document = {
        "dataset": dataset.name,
        "source": dataset.source,
        "data_fingerprint": dataset.fingerprint,
        "setting": config.setting_label,
        "fraction": config.fraction,
        "profile": profile,
        "fingerprint": dealt.fingerprint,
        "majority_accuracy": dealt.majority_accuracy(dataset.y),
        "clients": [
            {"train": len(train), "test": len(test), "classes": row} for train, test, row in held
        ],
    }
    return json.dumps(document)


def _client_rows(dealt: Partition, histogram: np.ndarray) -> list[list[str]]:
    """A line per client: each class's count, or where there are many classes the largest."""
    many = histogram.shape[1] > MANY_CLASSES
    heading = ["classes", "largest (class:count)"] if many else map(str, range(histogram.shape[1]))
    rows = [["client", "train", "test", *heading]]
    for client, counts in enumerate(histogram):
        cells = _largest(counts) if many else [str(count) if count else "·" for count in counts]
        sizes = len(dealt.train[client]), len(dealt.test[client])
        rows.append([str(client), *map(str, sizes), *cells])
    return rows


def _largest(counts: np.ndarray) -> list[str]:
    order = (-counts).argsort(kind="stable")[:LARGEST_SHOWN]
    shown = [f"{label}:{counts[label]}" for label in order if counts[label]]
    return [str((counts > 0).sum()), " ".join(shown)]


def _summary(dealt: Partition, histogram: np.ndarray) -> list[list[str]]:
    """Quantiles over the clients of what the lines would show."""
    import numpy as np

    measures = {
        "train samples": [len(part) for part in dealt.train],
        "test samples": [len(part) for part in dealt.test],
        "classes held": (histogram > 0).sum(axis=1),
        "% in the largest class": 100 * histogram.max(axis=1) / histogram.sum(axis=1),
    }
    rows = [["over clients", *QUANTILES]]
    for name, values in measures.items():
        quantiles = np.quantile(values, list(QUANTILES.values()), method="nearest")
        rows.append([name, *(f"{value:.0f}" for value in quantiles)])
    return rows


def _aligned(rows: list[list[str]], text_column: int | None = None) -> str:
    """Columns of equal width, numbers to the right and the one column of text to the left."""
    columns = [
        [cell.ljust(width) if index == text_column else cell.rjust(width) for cell in column]
        for index, column in enumerate(zip(*rows, strict=True))
        for width in [max(map(len, column))]
    ]
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))
