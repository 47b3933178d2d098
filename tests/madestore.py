"""Stores for tests of what reads results: runs with made-up records, nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pfl_bench.config.options import Profile, load_profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.execution.configuration import configure
from pfl_bench.reporting.tables.reading import load_table
from pfl_bench.reporting.tables.spec import TableSpec
from pfl_bench.store.records import RoundRecord
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

TABLE = """
caption: made-up figures
method: FedCP
run: {clients: 4}
columns:
  - {name: practical MNIST, group: practical, run: {dataset: mnist, beta: 0.1}}
  - {name: pathological Cifar10, run: {dataset: cifar10, setting: pathological}}
rows:
  - {name: FedAvg, run: {algo: fedavg}, published: [[81.25, 0.5], [61.75, 0.25]]}
  - {name: FedCP, rule: true, run: {algo: fedcp}, published: [[98.125, 0.5], [90.375, 0.25]]}
  - {name: Ditto, run: {algo: ditto}, published: [[90.5, 0.5], null]}
"""
FINGERPRINT = "0123456789abcdef"
TEST_SAMPLES = 50


def made_profile(folder: Path, source: str, rounds: int = 4) -> Profile:
    path = folder / f"{source}profile.yaml"
    path.write_text(f"run: {{source: {source}, rounds: {rounds}}}\n")
    return load_profile(str(path))


def made_table(folder: Path) -> TableSpec:
    path = folder / "made.yaml"
    path.write_text(TABLE)
    return load_table(str(path))


def made_config(profile: Profile, hyper: dict[str, Any] | None = None, **chosen: Any) -> RunConfig:
    """As a user's run would be configured, the data's fingerprint aside."""
    nowhere = Path("no-data")
    return configure(profile, chosen, hyper or {}, nowhere, lambda *_: FINGERPRINT)


def keep(
    store: Store, config: RunConfig, correct: Sequence[Sequence[int]], status: str = "finished"
) -> StoredRun:
    """A run with so many correct of TEST_SAMPLES for each round and client."""
    with store.open(config) as writer:
        for round, counts in enumerate(correct, start=1):
            writer.append(made_record(round, counts))
        return writer.finish(status, None if status == "finished" else "a <b>made-up</b> reason")


def made_record(round: int, correct: Sequence[int]) -> RoundRecord:
    clients = len(correct)
    return RoundRecord(
        round,
        list(range(clients)),
        list(correct),
        [TEST_SAMPLES] * clients,
        [1.0 / round] * clients,
        2.0 / round,
        bytes_up=1_000_000 * clients,
        bytes_down=2_000_000 * clients,
        seconds={"train": 0.5, "total": 0.75},
    )


def keep_table(
    store: Store, spec: TableSpec, profile: Profile, gains: dict[str, int], seeds: int = 3
) -> None:
    """Every cell of the rows in `gains`: rising curves that end higher the larger the gain."""
    for (row, _), cell in spec.cells.items():
        for seed in range(seeds if row in gains else 0):
            chosen = {**cell.chosen, "seed": seed}
            config = made_config(profile, dict(cell.hyper), **chosen)
            counts = [
                [min(TEST_SAMPLES, 5 * round + gains[row] + client + seed) for client in range(4)]
                for round in range(1, profile.run["rounds"] + 1)
            ]
            keep(store, config, counts)
