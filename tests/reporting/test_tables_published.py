"""The paper's tables: every published figure stands where the paper has it, and every cell runs
what its row and column say."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml

from pfl_bench.config.options import load_profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.data import registry as data
from pfl_bench.execution.configuration import configure
from pfl_bench.reporting.tables.reading import load_table as read_anew
from pfl_bench.reporting.tables.reading import table_names
from pfl_bench.reporting.tables.spec import Published

SHARED = Path(__file__).resolve().parents[3] / "shared" / "paper" / "published.yaml"
CELLS = 409
load_table = functools.cache(read_anew)
ALGOS = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "Per-FedAvg": "perfedavg",
    "pFedMe": "pfedme",
    "FedAMP": "fedamp",
    "Ditto": "ditto",
    "FedPer": "fedper",
    "FedRep": "fedrep",
    "FedRoD": "fedrod",
    "FedFomo": "fedfomo",
    "FedPHP": "fedphp",
    "FedCP": "fedcp",
    "Local": "local",
}
# Where a name differs from the transcription's: no commas, and short enough for a heading.
OUR_NAMES = {
    "practical(0.1) TINY (4-layer CNN)": "practical(0.1) TINY",
    "practical(0.1) TINY* (ResNet-18)": "practical(0.1) TINY*",
    "rho in [0.5,1]": "rho=0.5-1",
    "rho in [0.1,1]": "rho=0.1-1",
    "default (1 FC, LN, ReLU)": "default",
}


def _transcribed() -> list[tuple[str, str, str, Any]]:
    """Table, row, column and figure of every cell of the transcription."""
    if not SHARED.exists():
        return []
    tables = yaml.safe_load(SHARED.read_text(encoding="utf-8"))
    return [
        (name, row, column, figure)
        for name, table in tables.items()
        for row, figures in table["rows"].items()
        for column, figure in zip(table["columns"], figures, strict=True)
    ]


def _expected(figure: Any) -> Published:
    if isinstance(figure, str):
        return Published(status=figure)
    if isinstance(figure, list):
        return Published(float(figure[0]), float(figure[1]))
    return Published(float(figure))


OURS = ("further", "new_clients")


def test_every_published_figure_stands_in_its_cell() -> None:
    transcribed = _transcribed()
    if not transcribed:
        pytest.skip("the transcription of the paper's tables is not beside this checkout")
    assert len(transcribed) == CELLS
    specs = {name: load_table(name) for name in table_names()}
    wrong = []
    for name, row, column, figure in transcribed:
        spec = specs[name].restricted((row,), (OUR_NAMES.get(column, column),))
        (cell,) = [c for c in spec.cells.values() if c.published is not None]
        if cell.published != _expected(figure):
            wrong.append((name, row, column, figure, cell.published))
    assert wrong == []


def test_nothing_is_published_beyond_the_paper() -> None:
    specs = map(load_table, table_names())
    assert sum(c.published is not None for s in specs for c in s.cells.values()) == CELLS


@pytest.fixture(scope="module")
def configs() -> dict[tuple[str, str, str], RunConfig]:
    """What every cell runs under the paper's profile, whose data files are taken as present."""
    profile = load_profile("paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "fingerprint", lambda *_: "present")
        return {
            (name, *place): configure(profile, cell.chosen, cell.hyper, Path("nowhere"))
            for name in table_names()
            for place, cell in load_table(name).cells.items()
        }


def test_every_cell_is_a_run_as_published(configs: dict[tuple[str, str, str], RunConfig]) -> None:
    for config in configs.values():
        assert (config.rounds, config.fraction, config.source) == (2000, 1.0, "real")
        assert (config.batch_size, config.patience, config.partition_seed) == (10, None, 0)
        assert config.lr == (0.005 if config.model == "cnn" else 0.1)


def test_every_cell_can_run_on_embedded_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "fingerprint", lambda *_: "drawn")
    profile = load_profile("quick")
    for name in table_names():
        for cell in load_table(name).cells.values():
            config = configure(profile, cell.chosen, cell.hyper, Path("nowhere"))
            assert config.source == "standin"


def test_a_row_named_for_an_algorithm_runs_it(
    configs: dict[tuple[str, str, str], RunConfig],
) -> None:
    for (name, row, column), config in configs.items():
        called = column if name == "privacy" else row
        others = called.lower().replace(" + ", "_") if name in OURS else "fedcp"
        assert config.algo == ALGOS.get(called, others)


def test_only_the_table_of_further_methods_has_rows_that_the_paper_lacks(
    configs: dict[tuple[str, str, str], RunConfig],
) -> None:
    further = {config.algo for (name, *_), config in configs.items() if name == "further"}
    others = {config.algo for (name, *_), config in configs.items() if name not in OURS}
    assert others <= set(ALGOS.values())
    assert {"fedcp", "fedper", "ditto", "fedrep"} < further


def test_fedcp_has_the_weight_that_its_model_asks_for(
    configs: dict[tuple[str, str, str], RunConfig],
) -> None:
    for (name, *_), config in configs.items():
        if config.algo == "fedcp" and name != "lambda":
            assert config.hyper["lambda"] == (5.0 if config.model == "cnn" else 1.0)


# What a column (or row) name means, written down once more and apart from the specs.
TITLES = {
    "MNIST": ("mnist", "cnn"),
    "Cifar10": ("cifar10", "cnn"),
    "Cifar100": ("cifar100", "cnn"),
    "TINY": ("tinyimagenet", "cnn"),
    "TINY*": ("tinyimagenet", "resnet18"),
    "AG News": ("agnews", "fasttext"),
}
SETTINGS = {
    "pathological": ("pathological", None),
    "practical(0.01)": ("practical", 0.01),
    "practical(0.1)": ("practical", 0.1),
    "practical(0.5)": ("practical", 0.5),
    "practical(1)": ("practical", 1.0),
}
PER_CLIENT = {"mnist": 2, "cifar10": 2, "cifar100": 10}


@pytest.mark.parametrize("name", ["main", "heterogeneity"])
def test_a_column_runs_the_setting_and_dataset_it_names(
    name: str, configs: dict[tuple[str, str, str], RunConfig]
) -> None:
    for (table, _, column), config in configs.items():
        if table != name:
            continue
        setting, _, title = column.partition(" ")
        assert (config.setting, config.beta) == SETTINGS[setting]
        assert (config.dataset, config.model) == TITLES[title]
        assert config.clients == 20
        assert config.joining_ratio == (1.0, 1.0)
        expected = PER_CLIENT[config.dataset] if setting == "pathological" else None
        assert config.classes_per_client == expected


@pytest.mark.parametrize(
    ("name", "dataset", "model"),
    [
        ("overhead", "tinyimagenet", "resnet18"),
        ("scalability", "cifar100", "cnn"),
        ("subsampled_clients", "cifar100", "cnn"),
        ("local_epochs", "cifar10", "cnn"),
        ("dropout", "cifar100", "cnn"),
        ("ablation", "tinyimagenet", "resnet18"),
        ("privacy", "cifar100", "cnn"),
    ],
)
def test_a_table_on_one_dataset_runs_it_in_the_default_setting(
    name: str, dataset: str, model: str, configs: dict[tuple[str, str, str], RunConfig]
) -> None:
    for (table, *_), config in configs.items():
        if table == name:
            assert (config.dataset, config.model) == (dataset, model)
            assert (config.setting, config.beta) == ("practical", 0.1)


def _column(
    configs: dict[tuple[str, str, str], RunConfig], name: str, column: str
) -> list[RunConfig]:
    return [config for (t, _, c), config in configs.items() if (t, c) == (name, column)]


@pytest.mark.parametrize("clients", [10, 30, 50, 100, 200, 500])
def test_scalability_deals_everything_to_n_clients(
    clients: int, configs: dict[tuple[str, str, str], RunConfig]
) -> None:
    for config in _column(configs, "scalability", f"N={clients}"):
        assert (config.clients, config.sampled_from) == (clients, None)


@pytest.mark.parametrize(
    ("column", "clients", "sampled_from"),
    [("N=10|50", 10, 50), ("N=30|50", 30, 50), ("N=50", 50, None)],
)
def test_subsampled_clients_come_from_the_partition_for_fifty(
    column: str,
    clients: int,
    sampled_from: int | None,
    configs: dict[tuple[str, str, str], RunConfig],
) -> None:
    for config in _column(configs, "subsampled_clients", column):
        assert (config.clients, config.sampled_from) == (clients, sampled_from)


def test_the_same_experiment_in_two_tables_is_one_run(
    configs: dict[tuple[str, str, str], RunConfig],
) -> None:
    for row in ("Ditto", "FedCP"):
        keys = {
            configs["scalability", row, "N=50"].key,
            configs["subsampled_clients", row, "N=50"].key,
            configs["dropout", row, "ρ=1"].key,
        }
        assert len(keys) == 1
    assert (
        configs["main", "FedCP", "practical(0.1) TINY*"].key
        == configs["ablation", "FedCP", "FedCP"].key
        == configs["cpn_design", "ResNet-18", "default"].key
        == configs["overhead", "FedCP", "total minutes"].key
    )
    assert (
        configs["main", "FedCP", "practical(0.1) TINY"].key
        == configs["lambda", "β=0.1", "λ=5"].key
        == configs["cpn_design", "4-layer CNN", "default"].key
    )


@pytest.mark.parametrize("epochs", [5, 10, 20, 40])
def test_local_epochs_are_those_of_the_column(
    epochs: int, configs: dict[tuple[str, str, str], RunConfig]
) -> None:
    assert {c.local_epochs for c in _column(configs, "local_epochs", str(epochs))} == {epochs}


@pytest.mark.parametrize(
    ("column", "ratio"), [("ρ=1", (1, 1)), ("ρ=0.5-1", (0.5, 1)), ("ρ=0.1-1", (0.1, 1))]
)
def test_dropout_draws_the_joining_ratio_from_the_column_s_range(
    column: str, ratio: tuple[float, float], configs: dict[tuple[str, str, str], RunConfig]
) -> None:
    for config in _column(configs, "dropout", column):
        assert (config.joining_ratio, config.clients) == (ratio, 50)


def test_lambda_and_beta_are_those_in_the_names(
    configs: dict[tuple[str, str, str], RunConfig],
) -> None:
    for (table, row, column), config in configs.items():
        if table == "lambda":
            assert config.hyper["lambda"] == float(column.removeprefix("λ="))
            assert config.beta == float(row.removeprefix("β="))
            assert (config.dataset, config.model) == ("tinyimagenet", "cnn")


def test_the_ablation_removes_what_the_column_says(
    configs: dict[tuple[str, str, str], RunConfig],
) -> None:
    parts = {"cs", "ss", "gfm", "cpn", "gh"}
    for (table, _, column), config in configs.items():
        if table == "ablation":
            removed = {p.lower() for p in column.removeprefix("w.o. ").split(" & ")} - {"fedcp"}
            assert {part for part in parts if not config.hyper[part]} == removed


DESIGNS = {
    "default": (1, "layer", "relu"),
    "2 FC": (2, "layer", "relu"),
    "3 FC": (3, "layer", "relu"),
    "4 FC": (4, "layer", "relu"),
    "BN": (1, "batch", "relu"),
    "GN": (1, "group", "relu"),
    "tanh": (1, "layer", "tanh"),
    "sigmoid": (1, "layer", "sigmoid"),
}


def test_a_design_changes_the_part_it_names_and_no_other(
    configs: dict[tuple[str, str, str], RunConfig],
) -> None:
    for (table, row, column), config in configs.items():
        if table == "cpn_design":
            hyper = config.hyper
            assert (hyper["layers"], hyper["norm"], hyper["activation"]) == DESIGNS[column]
            assert config.model == {"4-layer CNN": "cnn", "ResNet-18": "resnet18"}[row]


def test_local_stands_in_the_accuracy_tables_without_figures_of_the_paper() -> None:
    for name in (
        "main", "heterogeneity", "scalability", "subsampled_clients", "local_epochs", "dropout",
    ):  # fmt: skip
        spec = load_table(name)
        assert "Local" in spec.rows
        assert all(spec.cells["Local", column].published is None for column in spec.columns)
