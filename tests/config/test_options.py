"""Options: who overrides whom, and what a mistake is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.base.errors import UserError
from pfl_bench.base.yamlfile import read_yaml
from pfl_bench.config.options import (
    OPTIONS,
    Options,
    Profile,
    checked,
    load_profile,
    merge,
    parse_ratio,
    profile_names,
)
from pfl_bench.execution.configuration import configure

# Lowest first. Each layer gives `rounds` a value of its own.
LAYERS = ("defaults", "profile", "dataset", "model", "chosen")


def profile(
    run: dict[str, Any] | None = None,
    datasets: dict[str, dict[str, Any]] | None = None,
    models: dict[str, dict[str, Any]] | None = None,
) -> Profile:
    return Profile("mine", "", run or {}, datasets or {}, models or {})


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


# --- precedence -----------------------------------------------------------------------------------


@pytest.mark.parametrize("highest", range(len(LAYERS)), ids=LAYERS)
def test_highest_layer_that_speaks_wins(highest: int) -> None:
    layered = profile(
        run={"rounds": 11} if highest >= 1 else {},
        datasets={"mnist": {"rounds": 12}} if highest >= 2 else {},
        models={"cnn": {"rounds": 13}} if highest >= 3 else {},
    )
    chosen = {"dataset": "mnist"} | ({"rounds": 14} if highest >= 4 else {})
    expected = (Options().rounds, 11, 12, 13, 14)[highest]
    assert merge(layered, chosen, default_model="cnn").rounds == expected


def test_words_on_other_datasets_and_models_do_not_count() -> None:
    layered = profile(datasets={"mnist": {"rounds": 1}}, models={"cnn": {"rounds": 2}})
    merged = merge(layered, {"dataset": "cifar10", "model": "resnet18"}, default_model="cnn")
    assert merged.rounds == Options().rounds


def test_chosen_model_wins_over_the_datasets() -> None:
    assert merge(profile(), {"model": "resnet18"}, default_model="cnn").model == "resnet18"


def test_model_that_a_profile_names_brings_the_profiles_word_on_it() -> None:
    layered = profile(run={"model": "resnet18"}, models={"resnet18": {"rounds": 3}})
    merged = merge(layered, {}, default_model="cnn")
    assert (merged.model, merged.rounds) == ("resnet18", 3)


def test_dataset_that_a_profile_names_brings_the_profiles_word_on_it() -> None:
    layered = profile(run={"dataset": "agnews"}, datasets={"agnews": {"rounds": 3}})
    assert merge(layered, {}, default_model="fasttext").rounds == 3


def test_what_nobody_says_follows_the_paper() -> None:
    options = merge(profile(), {}, default_model="cnn")
    assert (options.clients, options.rounds, options.batch_size) == (20, 2000, 10)
    assert (options.local_epochs, options.joining_ratio) == (1, "1")


def test_none_leaves_the_layers_below_in_place() -> None:
    assert merge(profile(run={"rounds": 5}), {"rounds": None}, "cnn").rounds == 5


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clients", "0"), ("clients", "2.5"), ("clients", "many"), ("clients", "100001"),
        ("clients", True), ("rounds", 1.5), ("rounds", -1), ("beta", "0"), ("beta", "nan"),
        ("beta", "1e7"), ("lr", "inf"), ("lr", "-0.1"), ("fraction", "1.01"), ("fraction", 0),
        ("setting", "practicall"), ("bn_stats", "none"), ("source", "fake"), ("seed", "-1"),
        ("batch_size", [10]), ("patience", "0"), ("eval_every", {}), ("of", "x"),
    ],
)  # fmt: skip
def test_bad_value_is_named_with_its_place_and_what_is_allowed(key: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        checked({key: value}, "'exp.yaml'")
    message = str(caught.value)
    assert message.startswith(f"'exp.yaml': {key} cannot be {value!r};")
    assert " allowed: " in message
    assert OPTIONS[key].allowed in message
    assert message.endswith("(and at most 1e+12)") == (value == "inf")
    assert "\n" not in message


@pytest.mark.parametrize("key", OPTIONS)
def test_every_setting_says_what_it_means_and_what_is_allowed(key: str) -> None:
    assert OPTIONS[key].meaning and OPTIONS[key].allowed and OPTIONS[key].source


@pytest.mark.parametrize("key", OPTIONS)
def test_every_default_is_an_allowed_value(key: str) -> None:
    default = OPTIONS[key].default
    assert OPTIONS[key].convert(default) == default


def test_unknown_setting_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"'exp\.yaml': unknown option 'client'.*'clients'"):
        checked({"client": 3}, "'exp.yaml'")


def test_text_and_numbers_mean_the_same() -> None:
    text = checked({"lr": "1", "clients": "20", "beta": "1e-1"}, "")
    numbers = checked({"lr": 1, "clients": 20.0, "beta": 0.1}, "")
    assert text == numbers
    assert [type(v) for v in text.values()] == [type(v) for v in numbers.values()]


# --- profiles -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", profile_names())
def test_built_in_profile_says_what_it_is(name: str) -> None:
    loaded = load_profile(name)
    assert loaded.name == name
    assert loaded.about


def test_quick_draws_its_data_and_the_others_read_it() -> None:
    sources = {name: load_profile(name).run["source"] for name in profile_names()}
    assert sources == {"quick": "standin", "lite": "real", "paper": "real"}


def test_paper_profile_departs_from_the_defaults_in_nothing_but_the_data() -> None:
    paper = load_profile("paper")
    merged = merge(paper, {}, default_model="cnn")
    assert merged == Options(model="cnn", source="real")
    assert not paper.datasets and not paper.models and not paper.replace_models


def test_own_profile_is_read_from_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, "run: {rounds: 7}\ndatasets: {mnist: {rounds: 8}}\n")
    mine = load_profile(str(path))
    assert mine.name == "mine"
    assert merge(mine, {"dataset": "mnist"}, "cnn").rounds == 8


def test_empty_block_of_a_profile_says_nothing(tmp_path: Path) -> None:
    mine = load_profile(str(write(tmp_path, "run:\ndatasets:\n  mnist:\n")))
    assert merge(mine, {"dataset": "mnist"}, "cnn") == Options(dataset="mnist", model="cnn")


def test_profile_holds_its_settings_in_their_types(tmp_path: Path) -> None:
    text = "run: {seed: '3', rounds: null}\nmodels: {cnn: {lr: '0.5'}}\n"
    mine = load_profile(str(write(tmp_path, text)))
    assert (mine.run, mine.models) == ({"seed": 3}, {"cnn": {"lr": 0.5}})


@pytest.mark.parametrize("key", ["dataset", "model"])
def test_list_where_a_name_belongs_is_no_name_of_anything(tmp_path: Path, key: str) -> None:
    mine = load_profile(str(write(tmp_path, f"run: {{{key}: [cnn]}}")))
    with pytest.raises(UserError, match=r"unknown .* \"\['cnn'\]\""):
        configure(mine, {}, {}, tmp_path)


def test_the_page_on_settings_has_them_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    assert [name for name in OPTIONS if f"--{name.replace('_', '-')}" not in page] == []


def test_misspelt_profile_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match="unknown profile 'qick'; did you mean 'quick'"):
        load_profile("qick")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("runs: {}", "unknown key 'runs'; did you mean 'run'"),
        ("run: 3", "run must hold names and values, not 3"),
        ("datasets: [mnist]", r"datasets must hold names and values, not \['mnist'\]"),
        ("models: {cnn: 5}", "cnn must hold names and values, not 5"),
        ("run: {round: 3}", "unknown option 'round'; did you mean 'rounds'"),
        ("models: {cnn: {lr: fast}}", "lr cannot be 'fast'"),
        ("run: {partition: 'pfllib:/x'}", "a partition goes with a run, not with a profile"),
        ("replace_models: cnn", "replace_models must hold names and values, not 'cnn'"),
        (
            "replace_models: {cnn: 3}",
            "replace_models cannot have 'cnn': 3; allowed: a model's name",
        ),
        ("run: {? [a, b] : 3}", r"the key \['a', 'b'\] is no plain value"),
    ],
)
def test_mistake_in_a_profile_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as caught:
        load_profile(str(write(tmp_path, text)))
    assert "mine.yaml" in str(caught.value)


# --- YAML files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rounds: 1\nbeta: 2\nrounds: 3\n", "in line 3: the key 'rounds' is given twice"),
        ("set:\n  mu: 1\n  mu: 2\n", "in line 3: the key 'mu' is given twice"),
        ("rounds: [1\n", "is not valid YAML in line 2"),
        ("a: &x 1\nb: *x\n", "in line 2: aliases are not allowed"),
        ("- rounds\n", "must hold a mapping"),
        ("just words\n", "must hold a mapping"),
        ("1: 2\n", "must hold a mapping"),
        ("x: !!python/object/apply:os.getcwd []\n", "is not valid YAML in line 1"),
        ("seed: 2024-13-45\n", "is not valid YAML: month must be in"),
    ],
)
def test_mistake_in_yaml_is_one_sentence_with_the_file(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint) as caught:
        read_yaml(write(tmp_path, text))
    assert "mine.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file .*nowhere\.yaml"):
        read_yaml(tmp_path / "nowhere.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        read_yaml(tmp_path)


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(UserError, match="cannot be read"):
        read_yaml(path)


def test_empty_file_says_nothing(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, "# nothing yet\n")) == {}


@given(st.binary(max_size=60))
def test_no_content_of_a_file_causes_anything_but_a_sentence(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.yaml"
        path.write_bytes(content)
        try:
            assert isinstance(read_yaml(path), dict)
        except UserError as error:
            assert "any.yaml" in str(error)


# --- joining ratio --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("1", (1, 1)),
        ("0.5", (0.5, 0.5)),
        ("0.5-1", (0.5, 1)),
        ("0.1 - 1.0", (0.1, 1)),
        ("1e-1", (0.1, 0.1)),
        ("5e-05-1E-1", (5e-05, 0.1)),
    ],
)
def test_ratio_is_a_number_or_a_range(text: str, bounds: tuple[float, float]) -> None:
    assert parse_ratio(text) == bounds


@pytest.mark.parametrize("text", ["0", "1.5", "-1", "1-0.5", "0-1", "half", "", "nan", "0.5-", "-"])
def test_impossible_ratio_is_named(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_ratio(text)
    assert f"joining_ratio cannot be {text!r}" in str(caught.value)


def test_a_profile_may_say_that_it_does_not_rank(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text("ranks: false\n")
    assert not load_profile(str(path)).ranks
    assert load_profile("paper").ranks
    path.write_text("ranks: perhaps\n")
    with pytest.raises(UserError, match="ranks cannot be 'perhaps'; allowed: true, false"):
        load_profile(str(path))


def test_a_misspelt_word_of_the_field_is_answered_with_it() -> None:
    with pytest.raises(UserError, match="'dirichelt'; did you mean 'dirichlet'"):
        checked({"setting": "dirichelt"}, "this run")
