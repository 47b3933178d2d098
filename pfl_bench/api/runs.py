"""One run from Python: the options of `pfl-bench run` as arguments, its result as an object."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.api.asking import gather
from pfl_bench.api.progress import Lines
from pfl_bench.api.results import Result
from pfl_bench.base import UserError, data_dir, results_dir
from pfl_bench.execution import Execution, KeptModel, Observer, Request, choose_device, run_all
from pfl_bench.plugins import load_algorithm, register
from pfl_bench.store import Store

if TYPE_CHECKING:
    from pfl_bench.engine import Algorithm


def run(
    algo: str | type[Algorithm],
    *,
    hyper: Mapping[str, Any] | None = None,
    profile: str | None = None,
    config: str | None = None,
    results: str | Path | None = None,
    data: str | Path | None = None,
    workers: int | None = None,
    device: str = "auto",
    fresh: bool = False,
    keep_model: bool = False,
    track: Sequence[str] = (),
    progress: bool = True,
    **options: Any,
) -> Result:
    """Train an algorithm, or return its stored result at once.

    `options` are those of `pfl-bench run --help`, spelt alike: dataset, setting, beta, clients,
    rounds, seed, … A class of your own is registered first. `hyper` are the algorithm's
    hyper-parameters, `config` is a YAML file, `data` a folder of prepared data (which implies real
    ones), `results` the store; `fresh` repeats a stored run, `keep_model` keeps the trained model
    for `Result.model`, `track` is who else keeps its rounds, as "mlflow"."""
    name = algo if isinstance(algo, str) else register(algo)
    load_algorithm(name)
    asked = gather(config, options, hyper or {}, data, profile)
    if asked.seeds is not None:
        raise UserError(f"{config!r}: seeds are for `pfl-bench run`; here give one seed a run")
    choose_device(device)
    execution = Execution(
        data_dir(data), workers=workers, device=device, fresh=fresh, track=tuple(track)
    )
    [wanted] = asked.configs([name], execution.data_dir)
    partition = asked.chosen.get("partition")
    request = Request(wanted, partition, KeptModel() if keep_model else None)
    store = Store(results_dir(results))
    with own_threads():
        ended = run_all([request], store, execution, Lines() if progress else Observer())
    return Result(ended.runs[wanted.request], execution.data_dir, partition)


@contextlib.contextmanager
def own_threads() -> Iterator[None]:
    """Runs take one thread for each operation; the session gets its own number back."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
