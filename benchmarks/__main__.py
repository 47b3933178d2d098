"""`scripts/bench`: measure, print, and write Markdown and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks import blocks, rounds, scale, server
from benchmarks.peers import contest, problem
from benchmarks.peers.environments import PEERS
from benchmarks.workloads import WORKLOADS
from pfl_bench.base import UserError, meant, unknown, write_atomically
from pfl_bench.execution import choose_device, default_workers
from pfl_bench.store import current_provenance

SERVER_CLIENTS = (20, 100, 500)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--scale", "is_scale", is_flag=True, help="Time and memory over 20 to 2,000 clients.")
@click.option("--device", metavar="NAME", help="Rounds on cuda, cuda:1 or mps beside the cores.")
@click.option("--peers", "is_peers", is_flag=True, help="A round in other simulators.")
@click.option(
    "--peer-folder",
    default=".peers",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Their environments, for --peers.",
)
@click.option(
    "--methods",
    default="fedavg",
    metavar="NAMES",
    help="What a round is of, for --peers: names with commas, or all that peers share with us.",
)
@click.option(
    "--pfllib",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="PFLlib's source, to have it among --peers.",
)
@click.option(
    "--fl-bench",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="FL-bench's source, to have it among --peers.",
)
@click.option("--blocks", "is_blocks", is_flag=True, help="Clients in blocks beside one by one.")
@click.option(
    "--samples",
    type=click.IntRange(min=400),
    help="Dealt to the clients, for --scale and --peers.",
)
@click.option("--repeat", default=5, type=click.IntRange(min=1), help="Laps per contestant.")
@click.option("--only", metavar="TEXT", help="Only rows whose name holds this.")
@click.option("--workers", default=default_workers, type=click.IntRange(min=1))
@click.option(
    "--out", default="benchmarks/measured", type=click.Path(path_type=Path), metavar="FOLDER"
)
def main(
    is_scale: bool,
    device: str | None,
    is_peers: bool,
    peer_folder: Path,
    methods: str,
    pfllib: Path | None,
    fl_bench: Path | None,
    is_blocks: bool,
    samples: int | None,
    repeat: int,
    only: str | None,
    workers: int,
    out: Path,
) -> None:
    """Time pfl-bench beside the usual simulator. Keep the machine quiet meanwhile."""
    out.mkdir(parents=True, exist_ok=True)
    if is_scale:
        measure_scale(out, workers, repeat, only or "", samples or scale.SAMPLES)
    elif device is not None:
        measure_device(out, choose_device(device), workers, repeat, only or "")
    elif is_peers:
        try:
            chosen = named_methods(methods)
            sources = named_sources({"PFLlib": pfllib, "FL-bench": fl_bench})
        except UserError as error:
            raise click.ClickException(f"{error}.") from error
        count = samples or problem.SAMPLES
        measure_peers(out, peer_folder, count, workers, repeat, only or "", chosen, sources)
    elif is_blocks:
        measure_blocks(out, repeat, only or "")
    else:
        measure_ratios(out, workers, repeat, only or "")


def measure_ratios(out: Path, workers: int, repeat: int, only: str) -> None:
    found: dict[str, Any] = {"machine": current_provenance(), "workers": workers, "repeats": repeat}
    lines: list[str] = []
    rows = []
    for workload in (w for w in WORKLOADS if only in w.name):
        click.echo(f"{workload.name} …", err=True)
        rows.append(row := rounds.measure(workload, workers, repeat))
        click.echo(f"  {row.naive} × naive, engine / bare loop {row.engine}", err=True)
    if rows:
        lines += table(
            "round of|s|× naive|× naive, one thread|engine / bare loop|accuracy apart by",
            [
                (
                    row.name,
                    f"{row.ours:.2f}",
                    row.naive,
                    row.naive_one_thread,
                    row.engine,
                    f"{100 * row.difference:.2f} points",
                )
                for row in rows
            ],
        )
        found["rounds"] = [dataclasses.asdict(row) for row in rows]
    if only in "two jobs":
        click.echo("two jobs of one worker …", err=True)
        pair = rounds.measure_pair(WORKLOADS[0], repeat)
        lines += [
            "",
            f"Two jobs of one worker each: {pair} × the throughput of one (target ≥ 1.8).",
        ]
        found["two jobs"] = dataclasses.asdict(pair)
    servers = []
    for algo in ("fedamp", "fedfomo"):
        for clients in SERVER_CLIENTS if only in f"{algo} server" else ():
            click.echo(f"server of {algo}, {clients} clients …", err=True)
            servers.append(work := server.measure(algo, clients, workers, repeat))
            click.echo(f"  {work.plain} × the plain loop", err=True)
    if servers:
        lines += [
            "",
            *table(
                "server of|clients|s|× plain loop|target|× plain, one thread|mixtures apart by",
                [
                    (
                        row.algo,
                        row.clients,
                        f"{row.ours:.3f}",
                        row.plain,
                        "≥ 20" if (row.algo, row.clients) == ("fedamp", 100) else "",
                        row.plain_one_thread,
                        "" if row.difference is None else f"{row.difference:.1e}",
                    )
                    for row in servers
                ],
            ),
        ]
        found["server"] = [dataclasses.asdict(row) for row in servers]
    save(out / "ratios", lines, found)


def measure_blocks(out: Path, repeat: int, only: str) -> None:
    rows = blocks.measure(only, repeat, partial(click.echo, err=True))
    lines = table(
        f"round in blocks of {blocks.SIZE}|one by one ÷ blocks|goal",
        [(row.name, row.ratio, f"≥ {row.goal:g}" if row.goal else "") for row in rows],
    )
    found = measured(rows, repeats=repeat)
    if only in "kernels":
        alone, together = blocks.kernels(1), blocks.kernels(blocks.SIZE)
        found["kernels"] = {1: dataclasses.asdict(alone), blocks.SIZE: dataclasses.asdict(together)}
        lines += [
            "",
            f"Kernels per client and step of the CNN: {alone.step:.1f} one by one, "
            f"{together.step:.1f} in blocks of {blocks.SIZE} (goal ≤ 3), and {together.call:.0f} "
            "each time that a client trains.",
        ]
    save(out / "blocks", lines, found)


def measure_scale(out: Path, workers: int, repeat: int, only: str, samples: int) -> None:
    algos = [algo for algo in scale.ALGORITHMS if only in algo]

    told = partial(click.echo, err=True)
    rows = scale.measure(algos, scale.CLIENTS, samples, workers, repeat, told)
    first = {row.algo: row.seconds for row in reversed(rows)}
    lines = table(
        "method|clients|s per round|× fewest clients|peak memory (MB)|kept by the method (MB)",
        [
            (
                row.algo,
                row.clients,
                f"{row.seconds:.2f}",
                f"{row.seconds / first[row.algo]:.2f}",
                f"{row.memory:.0f}",
                f"{row.kept:.1f}",
            )
            for row in rows
        ],
    )
    scale.plot(rows, out / "scale.png")
    save(out / "scale", lines, measured(rows, workers=workers, samples=samples))


def measure_device(out: Path, device: str, workers: int, repeat: int, only: str) -> None:
    rows = []
    for workload in (w for w in WORKLOADS if only in w.name):
        click.echo(f"{workload.name} …", err=True)
        rows.append(rounds.measure_device(workload, device, workers, repeat))
    lines = table(
        f"round of|s on {device}|cores / {device}|accuracy apart by",
        [
            (row.name, f"{row.seconds:.2f}", row.cores, f"{100 * row.difference:.2f} points")
            for row in rows
        ],
    )
    save(out / "device", lines, measured(rows, device=device, workers=workers))


def named_methods(text: str) -> list[str]:
    """The methods of `--methods`, in any spelling."""
    known = contest.shared()
    names = known if text == "all" else [meant(name.strip(), known) for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UserError(unknown("method", name, known))
    return names


def named_sources(folders: Mapping[str, Path | None]) -> dict[str, Path]:
    """The folders that were given, each with the source of its peer in it."""
    peers = {peer.name: peer for peer in PEERS}
    return {name: peers[name].checkout(at) for name, at in folders.items() if at is not None}


def measure_peers(
    out: Path,
    folder: Path,
    samples: int,
    workers: int,
    repeat: int,
    only: str,
    methods: Sequence[str],
    sources: Mapping[str, Path],
) -> None:
    told = partial(click.echo, err=True)
    rows, failed = contest.measure(
        folder.resolve(), samples, workers, repeat, only, told, methods, sources
    )
    header = (
        "round of|simulator|s per round|× ours|processor × ours|memory (MB)|accuracy|what differs"
    )
    lines = table(
        header,
        [
            (
                row.method,
                row.name,
                f"{row.seconds:.2f} ({row.low:.2f}–{row.high:.2f})",
                row.ratio,
                row.processor,
                f"{row.memory:.0f}",
                f"{100 * row.accuracy:.1f} %",
                row.differs,
            )
            for row in rows
        ],
    )
    lines += [f"{name} {reason}." for name, reason in failed.items()]
    found = measured(rows, workers=workers, samples=samples, failed=failed)
    save(out / "peers", lines, found)


def table(header: str, rows: Sequence[Sequence[object]]) -> list[str]:
    """A Markdown table; the first column to the left, figures to the right."""
    names = header.split("|")
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *[[str(c) for c in row] for row in rows]]
    return [f"| {' | '.join(line)} |" for line in lines]


def measured(rows: Sequence[Any], **facts: Any) -> dict[str, Any]:
    """What a benchmark found, for its JSON file: the machine, the facts, row by row."""
    told = [dataclasses.asdict(row) for row in rows]
    return {"machine": current_provenance(), **facts, "rows": told}


def save(path: Path, lines: Sequence[str], found: dict[str, Any]) -> None:
    text = "\n".join(lines) + "\n"
    click.echo(text)
    write_atomically(path.with_suffix(".md"), text)
    write_atomically(path.with_suffix(".json"), json.dumps(found, indent=2) + "\n")
    click.echo(f"Written: {path}.md, {path}.json", err=True)


if __name__ == "__main__":
    main()
