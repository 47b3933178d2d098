"""`pfl-bench list` and `pfl-bench show`: what there is and what it does."""

from __future__ import annotations

from pathlib import Path

import click

from pfl_bench.base import unknown


@click.command("list")
@click.argument("kind", metavar="[algos|datasets|models|profiles|settings]")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="An algorithm in a file.")
@click.option("--data-dir", metavar="DIR", help="Prepared datasets.")
def list_(kind: str, plugins: tuple[str, ...], data_dir: str | None) -> None:
    """List the algorithms, datasets, models, profiles or settings."""
    listings = {
        "algos": lambda: _algorithms(plugins),
        "datasets": lambda: _datasets(data_dir),
        "models": _models,
        "profiles": _profiles,
        "settings": _settings,
    }
    if kind not in listings:
        raise unknown("list", kind, listings)
    rows = listings[kind]()
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        click.echo(f"{name:<{width}}  {text}")


def _algorithms(plugins: tuple[str, ...]) -> list[tuple[str, str]]:
    from pfl_bench.plugins import algorithm_names, broken_plugins, load_algorithm, load_plugin

    for plugin in plugins:
        load_plugin(Path(plugin))
    broken = broken_plugins()

    def place(name: str) -> tuple[bool, bool, str]:
        """The paper's methods first, then the baseline beside them, then the further ones."""
        is_further = name in broken or load_algorithm(name).group != "paper"
        return is_further, name == "local", name

    return [
        (name, broken[name] if name in broken else load_algorithm(name).summary)
        for name in sorted(algorithm_names(), key=place)
    ]


def _datasets(data_dir: str | None) -> list[tuple[str, str]]:
    from pfl_bench.base import data_dir as resolve
    from pfl_bench.data import own_names, specs

    folder = resolve(data_dir)
    known = [
        (
            name,
            f"{spec.title}: {spec.classes} classes, "
            + ("text" if spec.shape is None else "×".join(map(str, spec.shape)))
            + (", with an embedded stand-in" if spec.standin else ""),
        )
        for name, spec in specs().items()
    ]
    return known + [(name, f"your own, prepared in {folder}") for name in own_names(folder)]


def _models() -> list[tuple[str, str]]:
    from pfl_bench.models import MODELS

    return [(name, f"{m.title}, for {m.kind}s, lr {m.lr:g}") for name, m in MODELS.items()]


def _profiles() -> list[tuple[str, str]]:
    from pfl_bench.config import load_profile, profile_names

    return [(name, " ".join(load_profile(name).about.split())) for name in profile_names()]


def _settings() -> list[tuple[str, str]]:
    from pfl_bench.data import SETTINGS

    meanings = {
        "practical": "each class is dealt by a draw from Dir(β) over the clients (--beta)",
        "pathological": "a few classes per client, in unbalanced amounts (--classes-per-client)",
        "iid": "an equal random share for everyone",
    }
    rows = [(name, meanings[name]) for name in SETTINGS]
    rows.append(("natural", "the data come with their clients (data prepare --client-column)"))
    rows.append(("N|M", "N clients drawn from a partition of M (--clients N --of M)"))
    rows.append(("pfllib", "data and partition made by PFLlib (--partition pfllib:PATH)"))
    return rows


@click.command()
@click.argument("algo")
@click.option("--dataset", default="cifar10", metavar="NAME", help="For the sizes (cifar10).")
@click.option("--model", metavar="NAME", help="For the sizes (by default the dataset's).")
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VALUE", help="A hyper-parameter; repeatable."
)
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="An algorithm in a file.")
@click.option("--data-dir", metavar="DIR", help="Prepared datasets.")
def show(
    algo: str,
    dataset: str,
    model: str | None,
    sets: tuple[str, ...],
    plugins: tuple[str, ...],
    data_dir: str | None,
) -> None:
    """What a method does, its hyper-parameters, what it keeps, sends and scores."""
    from pfl_bench import data
    from pfl_bench.base import paths
    from pfl_bench.cli.run import assignments
    from pfl_bench.config import knobs, resolve
    from pfl_bench.engine import RECORDABLE
    from pfl_bench.models import model_spec
    from pfl_bench.plugins import footprint, load_algorithm, load_plugin

    for plugin in plugins:
        load_plugin(Path(plugin))
    kind = load_algorithm(algo)
    folder = paths.data_dir(data_dir)
    spec = data.describe(dataset, folder)
    model = model or spec.model
    title, hyper = model_spec(model).title, assignments(sets)
    values = resolve(kind.Hyper, model, hyper, algo)
    size = footprint(algo, model, spec, folder, hyper)
    kept = ", ".join(f"{name} ({n:,})" for name, n in size.kept.items()) or "nothing"
    click.echo(f"{kind.title}\n{kind.summary}\n{kind.citation}\n")
    click.echo(
        f"With the {title} on {spec.title} ({size.model_parameters:,} parameters), each of "
        f"{size.clients} clients"
    )
    click.echo(f"  keeps     {kept}")
    click.echo(f"  sends     {size.parameters_up:,} parameters, {size.bytes_up:,} bytes per round")
    click.echo(
        f"  receives  {size.parameters_down:,} parameters, {size.bytes_down:,} bytes per round"
    )
    click.echo(f"Scored: {kind.scored_model}")
    blocks = f"one by one: {size.one_by_one}" if size.one_by_one else "in blocks (--block-size)"
    click.echo(f"Trained: {blocks}\n")
    declared = knobs(kind.Hyper)
    click.echo("Hyper-parameters (--set NAME=VALUE)" if declared else "No hyper-parameters")
    for field, knob in declared.items():
        value = getattr(values, field)
        off = "" if knob.off is None else f"; off at {knob.off}"
        click.echo(f"  {knob.name} = {'follows η' if value is None else value}")
        click.echo(f"      {knob.meaning}; {knob.allowed}{off}; source: {knob.source}")
        if knob.search is not None:
            click.echo(f"      tuned from {knob.search}; {knob.searched}")
    for name, meaning in {**kind.recordable, **RECORDABLE}.items():
        click.echo(f"Can be recorded: --record {name}: {meaning}")
