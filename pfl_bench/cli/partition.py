"""`pfl-bench data partition`: who would get what, before anything is trained on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pfl_bench.errors import UserError, shown, unknown
from pfl_bench.paths import data_dir as data_folder
from pfl_bench.paths import user_path

if TYPE_CHECKING:
    import numpy as np

    from pfl_bench.data import Dataset
    from pfl_bench.datasets.partition import Partition

MANY_CLASSES = 20
MANY_CLIENTS = 60
LARGEST_SHOWN = 5
LARGEST_COLUMN = 4
QUANTILES = {"min": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "max": 1.0}
PFLLIB = "pfllib:"


@click.command()
@click.option("--dataset", default="cifar10", show_default=True, help="Name of the dataset.")
@click.option("--source", help="standin or real.  [default: real with --data-dir, else standin]")
@click.option("--data-dir", help="Folder of prepared datasets.  [default: PFL_BENCH_DATA]")
@click.option(
    "--setting",
    default="practical",
    show_default=True,
    help="practical, pathological or iid.",
)
@click.option(
    "--beta", type=float, default=0.1, show_default=True, help="β of the practical setting."
)
@click.option("--clients", type=int, default=20, show_default=True, help="N, how many clients.")
@click.option(
    "--of", "sampled_from", type=int, metavar="M", help="Deal to M clients and keep N of them."
)
@click.option(
    "--classes-per-client",
    type=int,
    help="Of the pathological setting.  [default: the dataset's]",
)
@click.option(
    "--fraction", type=float, default=1.0, show_default=True, help="Use this share of the data."
)
@click.option(
    "--batch-size",
    type=int,
    default=10,
    show_default=True,
    help="Sets the fewest samples a client may hold.",
)
@click.option("--partition-seed", type=int, default=0, show_default=True)
@click.option(
    "--partition",
    "existing",
    metavar="pfllib:PATH",
    help="Show a partition that PFLlib made instead of making one.",
)
@click.option("--all", "every_client", is_flag=True, help="A line per client, however many.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_context
def partition(
    ctx: click.Context,
    existing: str | None,
    every_client: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show how samples are dealt to clients: the class histogram of each."""
    _refuse_idle_options(ctx)
    if existing is not None:
        from pfl_bench.datasets.pfllib import read_pfllib

        dataset, dealt = read_pfllib(_pfllib_path(existing))
        y, label = dataset.y, f"as in {existing}"
    else:
        dataset, y, dealt = _make(**options)
        label = _label(**options)

    histogram = dealt.histogram(y, dataset.classes)
    if as_json:
        click.echo(_as_json(dataset, dealt, histogram, label))
        return
    click.echo(f"{dataset.title}, {label}: {histogram.sum():,} samples, {dealt.clients} clients")
    click.echo(f"partition {dealt.fingerprint} of data {dataset.fingerprint}\n")
    if dealt.clients > MANY_CLIENTS and not every_client:
        click.echo(_aligned(_summary(dealt, histogram), text_column=0))
        click.echo("\n--all shows every client")
    else:
        text_column = LARGEST_COLUMN if dataset.classes > MANY_CLASSES else None
        click.echo(_aligned(_client_rows(dealt, histogram), text_column))


def _make(
    *,
    dataset: str,
    source: str | None,
    data_dir: str | None,
    fraction: float,
    partition_seed: int,
    classes_per_client: int | None,
    **dealing: Any,
) -> tuple[Dataset, np.ndarray, Partition]:
    """The dataset, the labels of the fraction in use, and the partition of that fraction."""
    from pfl_bench import data
    from pfl_bench.datasets.partition import make_partition, subset

    folder = data_folder(data_dir)
    loaded = data.load(dataset, source or ("real" if data_dir else "standin"), folder)
    if classes_per_client is None:
        classes_per_client = data.describe(dataset, folder).classes_per_client
    y = loaded.y[subset(loaded.y, fraction, partition_seed)]
    dealt = make_partition(
        y,
        loaded.classes,
        classes_per_client=classes_per_client,
        seed=partition_seed,
        **dealing,
    )
    return loaded, y, dealt


def _refuse_idle_options(ctx: click.Context) -> None:
    """An option that would change nothing was meant to change something."""
    from pfl_bench.datasets.partition import SETTINGS

    flags = {parameter.name: parameter.opts[0] for parameter in ctx.command.params}
    given = {
        name
        for name in ctx.params
        if ctx.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)
    }
    setting = ctx.params["setting"]
    if setting not in SETTINGS:
        raise unknown("setting", setting, SETTINGS)
    if ctx.params["existing"] is not None:
        idle, why = given - {"existing", "every_client", "as_json"}, "with --partition"
    else:
        serves = {"beta": "practical", "classes_per_client": "pathological"}
        idle = {name for name in given & serves.keys() if serves[name] != setting}
        why = f"in the setting {setting!r}"
    if idle:
        raise UserError(f"{', '.join(sorted(flags[name] for name in idle))} has no effect {why}")


def _pfllib_path(existing: str) -> Path:
    if not existing.startswith(PFLLIB) or existing == PFLLIB:
        raise UserError(f"unknown partition {shown(existing)}; allowed: {PFLLIB}PATH")
    return user_path(existing.removeprefix(PFLLIB))


def _label(
    setting: str, beta: float, clients: int, sampled_from: int | None, fraction: float, **_: Any
) -> str:
    """The setting as papers write it."""
    label = f"practical({beta:g})" if setting == "practical" else setting
    if sampled_from is not None:
        label += f" {clients}|{sampled_from}"
    return label if fraction == 1 else f"{label}, {fraction:g} of the data"


def _as_json(dataset: Dataset, dealt: Partition, histogram: np.ndarray, label: str) -> str:
    held = zip(dealt.train, dealt.test, histogram.tolist(), strict=True)
    document = {
        "dataset": dataset.name,
        "source": dataset.source,
        "data_fingerprint": dataset.fingerprint,
        "setting": label,
        "fingerprint": dealt.fingerprint,
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
