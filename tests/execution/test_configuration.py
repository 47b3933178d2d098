"""From a user's choices to a configuration: what follows, what is refused, what names a result."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prepared import NAME, prepare_toy
from toy import toy_config

from pfl_bench.base.errors import UserError
from pfl_bench.config.hyper import as_dict, knob, resolve
from pfl_bench.config.options import Profile, load_profile
from pfl_bench.config.run_config import ENDS, RunConfig
from pfl_bench.data import registry as data
from pfl_bench.data.partition import make_partition
from pfl_bench.engine.algorithm import Algorithm
from pfl_bench.execution.configuration import configure, load_data
from pfl_bench.plugins.registry import algorithm_names, load_algorithm

PLAIN = Profile("plain", "", {}, {}, {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepare_toy(tmp_path / "data")


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares the built-in datasets' stand-ins where only their names matter."""
    monkeypatch.setattr(data, "fingerprint", lambda name, source, _: f"{name}-{source}")


def toy(
    folder: Path, hyper: Mapping[str, Any] | None = None, profile: Profile = PLAIN, **chosen: Any
) -> RunConfig:
    return configure(profile, {"dataset": NAME, **chosen}, hyper or {}, folder)


# --- what follows from what -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "model", "lr", "per_client"),
    [("mnist", "cnn", 0.005, 2), ("cifar100", "cnn", 0.005, 10), ("agnews", "fasttext", 0.1, None)],
)
@pytest.mark.usefixtures("no_drawing")
def test_paper_profile_gives_the_papers_model_rate_and_classes(
    tmp_path: Path, dataset: str, model: str, lr: float, per_client: int | None
) -> None:
    setting = "pathological" if per_client else "practical"
    chosen = {"dataset": dataset, "setting": setting}
    config = configure(load_profile("paper"), chosen, {}, tmp_path)
    assert (config.model, config.lr, config.classes_per_client) == (model, lr, per_client)
    assert (config.source, config.fraction, config.rounds) == ("real", 1.0, 2000)


def test_chosen_model_brings_its_own_learning_rate(folder: Path) -> None:
    assert toy(folder, model="resnet18").lr == 0.1


def test_chosen_learning_rate_wins_even_if_it_is_zero(folder: Path) -> None:
    assert toy(folder, lr="0").lr == 0.0


def test_beta_is_a_tenth_unless_given_and_absent_elsewhere(folder: Path) -> None:
    assert toy(folder).beta == 0.1
    assert toy(folder, beta="0.5").beta == 0.5
    assert toy(folder, setting="iid").beta is None


def test_own_dataset_is_real_whatever_the_profile_says(folder: Path) -> None:
    config = toy(folder, profile=load_profile("quick"))
    assert (config.source, config.model) == ("real", "cnn_small")
    assert config.data_fingerprint == data.load(NAME, "real", folder).fingerprint


def test_a_whole_partition_is_not_called_a_sample_of_itself(folder: Path) -> None:
    assert toy(folder, clients="4", of="4").sampled_from is None
    assert toy(folder, clients="4", of="4").key == toy(folder, clients="4").key


def test_series_to_record_are_a_set(folder: Path) -> None:
    assert toy(folder, record=" convergence, convergence,").record == ("convergence",)


@pytest.mark.parametrize(
    ("chosen", "label"),
    [
        ({"beta": 0.1}, "practical(0.1)"),
        ({"setting": "iid"}, "iid"),
        ({"clients": 3, "of": 6}, "practical(0.1) 3|6"),
    ],
)
def test_setting_is_labelled_as_people_write_it(
    folder: Path, chosen: dict[str, Any], label: str
) -> None:
    assert toy(folder, **chosen).setting_label == label


# --- data -----------------------------------------------------------------------------------------


def test_sampled_clients_are_clients_of_the_larger_partition(folder: Path) -> None:
    config = toy(folder, clients=3, of=6, setting="iid", batch_size=4)
    dataset, partition = load_data(config, folder, None)
    whole = make_partition(dataset.y, dataset.classes, setting="iid", clients=6)
    assert partition.clients == 3
    everyone = {tuple(train) for train in whole.train}
    assert {tuple(train) for train in partition.train} < everyone


def test_data_are_dealt_alike_whatever_they_are_trained_with(folder: Path) -> None:
    dealt = {
        load_data(toy(folder, **how), folder, None)[1].fingerprint
        for how in ({}, {"batch_size": 1}, {"batch_size": 64}, {"lr": 1.0}, {"seed": 3})
    }
    assert len(dealt) == 1


def test_fraction_keeps_that_share_of_every_class(folder: Path) -> None:
    config = toy(folder, fraction=0.25, clients=2)
    dataset, partition = load_data(config, folder, None)
    assert np.bincount(dataset.y).tolist() == [10, 10, 10, 10]
    assert sum(map(len, partition.train + partition.test)) == 40


@pytest.mark.parametrize(("fraction", "told"), [(0.4, "40% of it"), (0.004, "0.4% of it")])
def test_a_small_share_of_the_data_is_not_told_as_none(
    folder: Path, fraction: float, told: str
) -> None:
    assert data.problem(toy(folder, fraction=fraction)).startswith(f"toy, {told}, ")


def test_training_seed_does_not_move_a_sample(folder: Path) -> None:
    partitions = [load_data(toy(folder, seed=s, clients=3), folder, None)[1] for s in (0, 1)]
    assert partitions[0].fingerprint == partitions[1].fingerprint


def test_partition_seed_does(folder: Path) -> None:
    made = [load_data(toy(folder, partition_seed=s, clients=3), folder, None)[1] for s in (0, 1)]
    assert made[0].fingerprint != made[1].fingerprint


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ({"setting": "iid", "beta": 0.5}, "beta 0.5 belongs to the practical setting.*'iid'"),
        ({"classes_per_client": 2}, "classes_per_client 2 belongs to the pathological setting"),
        ({"clients": 9, "of": 5}, "9 clients cannot be drawn from a partition of 5"),
        ({"source": "standin"}, "toy has no stand-in"),
        ({"model": "cnnn"}, "unknown model 'cnnn'; did you mean 'cnn'"),
        ({"algo": "fedcpp"}, "unknown algorithm 'fedcpp'; did you mean 'fedcp'"),
        ({"dataset": "tony"}, "unknown dataset 'tony'; did you mean 'toy'"),
        ({"record": "convergnce"}, "record for fedavg 'convergnce'; did you mean 'convergence'"),
        ({"joining_ratio": "2"}, "joining_ratio cannot be '2'"),
        ({"partition": "elsewhere"}, "--partition cannot be 'elsewhere'; allowed: pfllib:PATH"),
        ({"rounds": "none"}, "rounds cannot be 'none'"),
    ],
)
def test_contradiction_is_refused_by_its_value(
    folder: Path, chosen: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        toy(folder, **chosen)


@pytest.mark.parametrize(
    ("hyper", "complaint"),
    [
        ({"nu": 1}, "unknown hyper-parameter of fedprox 'nu'; did you mean 'mu'"),
        ({"mu": "much"}, "fedprox cannot take mu='much'; allowed: a number of at least 0"),
        ({"mu": -1}, "fedprox cannot take mu=-1"),
        ({"mu": float("nan")}, "fedprox cannot take mu=nan"),
    ],
)
def test_bad_hyper_parameter_is_refused_by_its_value(
    folder: Path, hyper: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        toy(folder, hyper, algo="fedprox")


def test_minus_zero_and_zero_are_one_result(folder: Path) -> None:
    minus, plain = (toy(folder, {"mu": mu}, algo="fedprox") for mu in ("-0.0", "0"))
    assert minus.key == plain.key


def test_model_that_no_one_knows_in_a_profile_is_refused(folder: Path) -> None:
    profile = Profile("mine", "", {}, {}, {"resnet8": {"rounds": 1}})
    with pytest.raises(UserError, match="unknown model 'resnet8'; did you mean 'resnet18'"):
        toy(folder, profile=profile)


def test_dataset_that_no_one_knows_in_a_profile_is_refused(folder: Path) -> None:
    profile = Profile("mine", "", {}, {"mnits": {"rounds": 3}}, {})
    with pytest.raises(UserError, match="unknown dataset 'mnits'; did you mean 'mnist'"):
        configure(profile, {}, {}, folder)


def test_mistake_is_told_before_data_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(*_: object) -> str:
        raise AssertionError("the data was asked for")

    monkeypatch.setattr(data, "fingerprint", drawn)
    with pytest.raises(UserError, match="fedcpp"):
        configure(load_profile("quick"), {"algo": "fedcpp"}, {}, tmp_path)


# --- PFLlib ---------------------------------------------------------------------------------------


@pytest.fixture
def pfllib(tmp_path: Path) -> Path:
    """Two clients' files as PFLlib writes them."""
    folder = tmp_path / "Mine"
    rng = np.random.default_rng(0)
    for part, size in (("train", 12), ("test", 4)):
        (folder / part).mkdir(parents=True)
        for client in range(2):
            x = rng.uniform(-1, 1, (size, 1, 16, 16)).astype(np.float32)
            content = np.array({"x": x, "y": np.arange(size) % 3}, dtype=object)
            np.savez_compressed(folder / part / f"{client}.npz", data=content)
    (folder / "config.json").write_text(json.dumps({"num_clients": 2, "num_classes": 3}))
    return folder


def test_pfllib_partition_brings_its_clients_and_its_data(pfllib: Path) -> None:
    where = f"pfllib:{pfllib}"
    config = configure(load_profile("quick"), {"partition": where, "rounds": 3}, {}, pfllib)
    assert (config.dataset, config.source, config.setting) == ("mine", "pfllib", "pfllib")
    assert (config.clients, config.fraction, config.beta) == (2, 1.0, None)
    assert (config.model, config.image_size, config.rounds) == ("cnn_small", None, 3)
    dataset, partition = load_data(config, pfllib, where)
    assert [len(t) for t in (*partition.train, *partition.test)] == [12, 12, 4, 4]
    assert config.data_fingerprint == f"{dataset.fingerprint}-{partition.fingerprint}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dataset", "mnist"), ("source", "real"), ("fraction", 0.5), ("image_size", 8),
        ("setting", "iid"), ("beta", 0.1), ("clients", 4), ("of", 9), ("classes_per_client", 2),
        ("partition_seed", 1),
    ],
)  # fmt: skip
def test_what_a_pfllib_partition_decides_cannot_be_set(pfllib: Path, key: str, value: Any) -> None:
    chosen = {"partition": f"pfllib:{pfllib}", key: value}
    with pytest.raises(UserError, match=f"{key} cannot be {value!r}: the partition"):
        configure(PLAIN, chosen, {}, pfllib)


def test_pfllib_run_needs_to_be_told_where_its_partition_lies(pfllib: Path) -> None:
    config = configure(PLAIN, {"partition": f"pfllib:{pfllib}"}, {}, pfllib)
    with pytest.raises(UserError, match=f"{config.key} uses a PFLlib partition.*--partition"):
        load_data(config, pfllib, None)


# --- the size of images ---------------------------------------------------------------------------


def test_images_are_loaded_at_the_size_that_is_asked_for(folder: Path) -> None:
    whole, _ = load_data(toy(folder, clients=2), folder, None)
    dataset, partition = load_data(toy(folder, clients=2, image_size=8), folder, None)
    assert whole.shape is not None and dataset.shape == (whole.shape[0], 8, 8)
    means = whole.x.reshape(len(whole.y), 8, 2, 8, 2, -1).astype(float).mean((2, 4))
    np.testing.assert_array_equal(dataset.x, np.floor(means + 0.5))
    assert partition == load_data(toy(folder, clients=2), folder, None)[1]


def test_images_of_the_asked_size_are_as_they_are(folder: Path) -> None:
    plain = toy(folder)
    assert toy(folder, image_size=16) == toy(folder, image_size="0") == plain
    assert toy(folder, image_size=8).key != plain.key


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ({"dataset": NAME, "image_size": 17}, "image_size cannot be 17: .*'toy' have 16×16 pixels"),
        ({"dataset": "agnews", "image_size": 16}, "16 belongs to images, and 'agnews' holds texts"),
        ({"dataset": NAME, "image_size": -1}, "image_size cannot be -1; allowed: a whole number"),
    ],
)
@pytest.mark.usefixtures("no_drawing")
def test_a_size_that_cannot_be_is_refused(
    folder: Path, chosen: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        configure(PLAIN, chosen, {}, folder)


@pytest.mark.parametrize(
    ("dataset", "size"), [(NAME, None), ("agnews", None), ("mnist", 20), ("cifar10", 20)]
)
@pytest.mark.usefixtures("no_drawing")
def test_a_profiles_size_leaves_texts_and_smaller_images_alone(
    folder: Path, dataset: str, size: int | None
) -> None:
    profile = Profile("mine", "", {"image_size": 20}, {}, {})
    assert configure(profile, {"dataset": dataset}, {}, folder).image_size == size


def test_what_is_learnt_says_which_model_at_which_size(folder: Path) -> None:
    reduced = toy(folder, image_size=8, model="cnn_small")
    assert data.problem(reduced).endswith(", 20 clients, cnn_small at 8×8")
    assert data.problem(toy(folder)).endswith(", 20 clients, cnn")


# --- small relatives ------------------------------------------------------------------------------

SMALL = dataclasses.replace(PLAIN, replace_models={"cnn": "cnn_small", "resnet18": "resnet_small"})


def test_a_profile_replaces_the_datasets_model_but_not_a_chosen_one(folder: Path) -> None:
    assert toy(folder, profile=SMALL).model == "cnn_small"
    assert toy(folder, profile=SMALL, model="cnn").model == "cnn"


def test_a_profiles_word_on_a_model_is_on_the_one_that_is_trained(folder: Path) -> None:
    models = {"cnn": {"rounds": 3}, "cnn_small": {"rounds": 4}}
    assert toy(folder, profile=dataclasses.replace(SMALL, models=models)).rounds == 4


@pytest.mark.parametrize("replaced", [{"cnm": "cnn_small"}, {"cnn": "cnn_smal"}])
def test_misspelt_model_on_either_side_of_a_replacement_is_refused(
    folder: Path, replaced: dict[str, str]
) -> None:
    profile = dataclasses.replace(PLAIN, replace_models=replaced)
    with pytest.raises(UserError, match=r"unknown model '.*'; did you mean 'cnn"):
        toy(folder, profile=profile)


# --- the key --------------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "algo": "local", "hyper": {"mu": 0.5}, "dataset": "other", "source": "standin",
    "data_fingerprint": "other", "fraction": 0.5, "setting": "iid", "beta": 0.4, "clients": 5,
    "sampled_from": 9, "classes_per_client": 2, "partition_seed": 1, "model": "resnet18",
    "rounds": 4, "local_epochs": 2, "batch_size": 9, "lr": 0.06, "joining_ratio": (0.5, 1.0),
    "eval_every": 2, "patience": 3, "bn_stats": "average", "seed": 1, "record": ("convergence",),
    "plugin": "other", "plans_rounds": True,
}  # fmt: skip
LATER = {"image_size": 8, "momentum": 0.9, "weight_decay": 0.01, "lr_decay": 0.99}
LATER |= {"validation": 0.2, "new_clients": 2, "adapt_epochs": 3, "block_size": 20}
"""Options that came after the key was made."""
NAMELESS = {*ENDS, "standing"}
"""What a run is not named by: where it ends, and which hyper-parameters were left as they are."""


@pytest.mark.parametrize(
    "field", sorted({field.name for field in dataclasses.fields(RunConfig)} - NAMELESS)
)
def test_key_changes_with_every_field_of_the_course(field: str) -> None:
    config = toy_config()
    changed = dataclasses.replace(config, **{field: (OTHER | LATER)[field]})
    assert changed.key != config.key


@pytest.mark.parametrize("end", ENDS)
def test_key_ignores_where_a_run_ends_and_the_request_does_not(end: str) -> None:
    config = toy_config()
    changed = dataclasses.replace(config, **{end: OTHER[end]})
    assert changed.key == config.key
    assert changed.request != config.request


def test_rounds_belong_to_the_course_where_the_method_looks_at_them() -> None:
    assert toy_config("fedphp", rounds=3).key != toy_config("fedphp", rounds=4).key


def test_rounds_belong_to_the_course_where_the_last_is_scored_out_of_turn() -> None:
    def key(rounds: int) -> str:
        return toy_config(rounds=rounds, eval_every=2).key

    assert key(2) == key(4) and key(3) not in (key(4), key(5))


@pytest.mark.parametrize("algo", ["fedprox", "fedcp"])
def test_an_option_that_comes_later_orphans_nothing(algo: str) -> None:
    """A field that has a default, or a hyper-parameter, and stands at it is not in the name."""
    config = toy_config(algo)
    course = config.course()
    assert not course["hyper"]
    assert not {"bn_stats", "eval_every", "plugin", "record", "fraction"} & course.keys()
    other = dataclasses.replace(config, hyper={**config.hyper, "new": 1}, standing=("new",))
    assert {**config.hyper} == other.course()["hyper"]


def test_key_survives_a_trip_through_a_file() -> None:
    config = toy_config("fedcp", joining_ratio=(0.5, 1.0), record=("convergence",))
    read = RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert read == config
    assert read.key == config.key


def test_key_is_that_of_yesterday() -> None:
    """Results on disk are found by it: a change of its making would orphan them all."""
    assert RunConfig(**OTHER).key == "3fd31dcf25e5bb82"


def test_key_ignores_where_the_data_lies(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder, elsewhere)
    assert toy(folder).key == toy(elsewhere).key


def test_key_follows_the_content_of_the_data(folder: Path) -> None:
    before = toy(folder).key
    prepare_toy(folder, seed=1)
    assert toy(folder).key != before


def test_key_ignores_how_a_value_is_written(folder: Path) -> None:
    written = toy(folder, {"mu": "1"}, algo="fedprox", lr="1", clients="4", beta="1e-1")
    typed = toy(folder, {"mu": 1}, algo="fedprox", lr=1.0, clients=4, beta=0.1)
    assert written.key == typed.key


def test_key_ignores_whether_a_value_comes_from_the_profile_or_the_user(folder: Path) -> None:
    profile = Profile("mine", "", {"rounds": 5}, {NAME: {"lr": 1}}, {"cnn": {"batch_size": 4}})
    spelt = toy(folder, rounds=5, lr=1, batch_size=4)
    assert toy(folder, profile=profile).key == spelt.key


@pytest.mark.parametrize("algo", algorithm_names())
def test_key_ignores_whether_a_default_is_spelt_out(folder: Path, algo: str) -> None:
    config = toy(folder, algo=algo)
    spelt = {name: str(value) for name, value in config.hyper.items() if value is not None}
    assert toy(folder, spelt, algo=algo).key == config.key


def test_whole_number_as_default_of_a_real_knob_is_the_same_value() -> None:
    @dataclasses.dataclass(frozen=True)
    class Hyper:
        mu: float = knob(1, "a plugin's author wrote 1", source="test", by_model={"cnn": 2})

    values = [as_dict(resolve(Hyper, "cnn", chosen, "mine")) for chosen in ({}, {"mu": "2"})]
    assert json.dumps(values[0]) == json.dumps(values[1])


def test_every_algorithm_can_be_configured_by_its_name_alone(folder: Path) -> None:
    for algo in algorithm_names():
        kind = load_algorithm(algo)
        assert issubclass(kind, Algorithm)
        assert toy(folder, algo=algo).hyper.keys() == as_dict(kind.Hyper()).keys()


def test_slug_tells_a_stand_in_from_the_real_thing() -> None:
    real = toy_config(dataset="mnist", beta=0.1)
    standin = dataclasses.replace(real, source="standin")
    assert real.slug == "fedavg-mnist-practical0.1-s0"
    assert standin.slug == "fedavg-mnist-standin-practical0.1-s0"
