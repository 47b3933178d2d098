"""Which spellings mean the same name, and that every command asks the same function."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from prepared import NAME, prepare_toy

from pfl_bench.base.errors import UserError
from pfl_bench.base.spelling import meant, plain
from pfl_bench.cli import main
from pfl_bench.config.options import checked, load_profile
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.options import choose_device
from pfl_bench.plugins.registry import algorithm_names


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("FedCP", "fedcp"), ("fed-avg", "fedavg"), ("Per-FedAvg", "perfedavg"),
        ("FED_PROX", "fedprox"), ("pFedMe", "pfedme"), ("Fed RoD", "fedrod"),
    ],
)  # fmt: skip
def test_an_algorithm_is_known_as_its_paper_spells_it(said: str, name: str) -> None:
    assert meant(said, algorithm_names()) == name


@given(st.sampled_from(["cifar10", "cifar100", "0.5-1", "my_own", "λ=5"]), st.data())
def test_a_name_as_it_is_written_means_itself(name: str, data: st.DataObject) -> None:
    others = data.draw(st.lists(st.sampled_from(["Cifar-10", "0.51", "my-own", "lambda=5"])))
    assert meant(name, [*others, name]) == name


def test_a_hyphen_between_digits_is_no_joint() -> None:
    assert plain("0.5-1") != plain("0.51")
    assert meant("cifar-1-0", ["cifar10"]) == "cifar-1-0"


def test_two_names_of_one_spelling_are_told_apart_by_their_letters_alone() -> None:
    assert meant("MyBirds", ["my-birds", "my_birds"]) == "MyBirds"
    assert meant("my_birds", ["my-birds", "my_birds"]) == "my_birds"


def test_words_of_the_field_make_the_configuration_of_ours(tmp_path: Path) -> None:
    quick = load_profile("Quick")
    ours = {"algo": "fedcp", "dataset": "cifar10", "setting": "practical", "beta": 0.5}
    ours |= {"model": "cnn"}
    fields = {"Algo": "FedCP", "dataset": "CIFAR-10", "setting": "Dirichlet", "alpha": "0.5"}
    fields |= {"model": "CNN", "source": "stand-in"}
    hyper = {"Lambda": 2}

    def tell(*_: object) -> str:
        return "0123456789abcdef"

    assert configure(quick, fields, hyper, tmp_path, tell) == configure(
        quick, ours, {"lambda": 2}, tmp_path, tell
    )


def test_a_profiles_word_on_a_dataset_counts_in_any_spelling(tmp_path: Path) -> None:
    folder = prepare_toy(tmp_path / "data", samples=80)
    path = tmp_path / "mine.yaml"
    path.write_text(f"run: {{rounds: 7}}\ndatasets: {{{NAME.upper()}: {{batch-size: 3}}}}\n")
    chosen = {"dataset": NAME.capitalize(), "setting": "IID", "clients": 2}
    config = configure(load_profile(str(path)), chosen, {}, folder)
    assert (config.dataset, config.batch_size, config.setting) == (NAME, 3, "iid")


def test_one_setting_under_two_names_is_a_mistake() -> None:
    with pytest.raises(UserError, match="beta is given twice"):
        checked({"alpha": 0.1, "beta": 0.5}, "here")


def test_a_dataset_of_the_paper_is_shown_under_its_papers_name() -> None:
    shown = CliRunner().invoke(main, ("show", "Fed-Per", "--dataset", "Cifar-10"))
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("FedPer")


@pytest.mark.parametrize("said", ["cuda:x", "cuda:", "cuda1", "gpu", "cpu:0"])
def test_a_device_that_cannot_be_is_answered_with_what_can(said: str) -> None:
    with pytest.raises(UserError, match="allowed: auto, cpu, cuda, cuda:N, mps"):
        choose_device(said)


def test_a_card_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == "cuda:1"
    assert choose_device("cuda") == "cuda"
    with pytest.raises(UserError, match=r"'cuda:2' is not on this machine; there is: cpu, cuda:0"):
        choose_device("cuda:2")
