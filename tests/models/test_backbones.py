"""The models: sizes as in the protocol, and short cuts that leave the result as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toy import toy_config, toy_simulator

from pfl_bench.base.errors import UserError
from pfl_bench.models.backbones import (
    MODELS,
    ConvExtractor,
    Inputs,
    Model,
    SmallConvExtractor,
    TextExtractor,
    build_model,
    inputs_of,
    model_spec,
    seeded,
)
from pfl_bench.plugins.registry import algorithm_names

MNIST, CIFAR, TINY = (1, 28, 28), (3, 32, 32), (3, 64, 64)
VOCABULARY = 98_635


@pytest.mark.parametrize(
    ("name", "inputs", "count"),
    [
        ("cnn", Inputs(10, MNIST), 582_026),
        ("cnn", Inputs(10, CIFAR), 878_538),
        ("cnn", Inputs(100, CIFAR), 924_708),
        ("cnn", Inputs(200, TINY), 5_694_600),
        ("resnet18", Inputs(200, TINY), 11_279_112),
        ("fasttext", Inputs(4, vocabulary=VOCABULARY), 3_157_508),
    ],
    ids=["mnist", "cifar10", "cifar100", "tiny", "resnet18", "fasttext"],
)
def test_parameter_count_is_the_protocols(name: str, inputs: Inputs, count: int) -> None:
    model = build_model(name, inputs)
    assert model.size == count


def small_cnn_size(channels: int, side: int, classes: int) -> int:
    """Weights and biases of conv 16, conv 32, FC 128 and the head, added up by hand."""
    convolutions = (9 * channels + 1) * 16 + (9 * 16 + 1) * 32
    return convolutions + (32 * (side // 4) ** 2 + 1) * 128 + (128 + 1) * classes


def small_resnet_size(channels: int, classes: int) -> int:
    """Convolutions without bias, each with two values a channel of batch norm, and the head."""
    stem = 9 * channels * 16 + 2 * 16
    first = 2 * (9 * 16 * 16 + 2 * 16)
    halving = sum((9 * n + 9 * w + n) * w + 3 * 2 * w for n, w in ((16, 32), (32, 64)))
    return stem + first + halving + (64 + 1) * classes


@pytest.mark.parametrize(
    ("name", "inputs", "count"),
    [
        ("cnn_small", Inputs(10, (1, 14, 14)), 43_082),
        ("cnn_small", Inputs(10, (3, 16, 16)), 72_042),
        ("cnn_small", Inputs(100, (3, 16, 16)), 83_652),
        ("cnn_small", Inputs(200, (3, 16, 16)), 96_552),
        ("resnet_small", Inputs(10, (1, 14, 14)), 77_754),
        ("resnet_small", Inputs(200, (3, 16, 16)), 90_392),
        ("resnet_small", Inputs(200, TINY), 90_392),
    ],
)
def test_parameter_count_of_a_small_relative(name: str, inputs: Inputs, count: int) -> None:
    assert inputs.shape is not None
    channels, side, _ = inputs.shape
    by_hand = {
        "cnn_small": small_cnn_size(channels, side, inputs.classes),
        "resnet_small": small_resnet_size(channels, inputs.classes),
    }
    assert build_model(name, inputs).size == count == by_hand[name]


@pytest.mark.parametrize("name", [n for n, spec in MODELS.items() if spec.small_relative_of])
def test_a_small_relative_reads_what_its_elder_reads(name: str) -> None:
    spec = model_spec(name)
    assert spec.small_relative_of is not None
    assert spec.kind == model_spec(spec.small_relative_of).kind


@pytest.mark.parametrize(
    ("name", "inputs", "width"),
    [
        ("cnn", Inputs(10, MNIST), 512),
        ("resnet18", Inputs(10, CIFAR), 512),
        ("fasttext", Inputs(4, vocabulary=20), 32),
        ("cnn_small", Inputs(10, (1, 14, 14)), 128),
        ("cnn_small", Inputs(10, (3, 17, 21)), 128),
        ("resnet_small", Inputs(10, (1, 14, 14)), 64),
        ("resnet_small", Inputs(10, TINY), 64),
    ],
)
def test_features_are_as_wide_as_they_should_be(name: str, inputs: Inputs, width: int) -> None:
    model = build_model(name, inputs)
    shape = (2, *inputs.shape) if inputs.shape else (2, 200)
    x = torch.zeros(shape, dtype=torch.float32 if inputs.shape else torch.int32)
    assert model.features == width
    assert model.extractor(x).shape == (2, width)


def test_head_is_the_last_fully_connected_layer() -> None:
    model = build_model("resnet18", Inputs(7, CIFAR))
    assert (model.head.in_features, model.head.out_features) == (512, 7)
    assert not [m for m in model.extractor.modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize("kind", [ConvExtractor, SmallConvExtractor])
def test_pooling_before_the_relu_gives_what_the_paper_order_gives(
    kind: type[ConvExtractor] | type[SmallConvExtractor],
) -> None:
    extractor = kind(3, 20, 20)
    x = torch.randn(5, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    paper = nn.Sequential(
        extractor.conv1, nn.ReLU(), nn.MaxPool2d(2),
        extractor.conv2, nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), extractor.fc, nn.ReLU(),
    )  # fmt: skip
    assert torch.equal(extractor(x), paper(x))


def dense_twin(extractor: TextExtractor) -> tuple[nn.Embedding, nn.Linear]:
    """The protocol's fastText from plain layers, with the same values."""
    rows = extractor.embedding.weight.detach().clone()
    embedding = nn.Embedding.from_pretrained(rows, freeze=False, padding_idx=0)
    linear = nn.Linear(*extractor.fc.weight.shape)
    linear.load_state_dict(extractor.fc.state_dict())
    return embedding, linear


def tokens(count: int, vocabulary: int) -> torch.Tensor:
    """Texts of 3 to 200 words, padded with zeros; words come up more than once."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, vocabulary, (count, 200), dtype=np.int32)
    ids[np.arange(200) >= rng.integers(3, 201, count)[:, None]] = 0
    return torch.from_numpy(ids)


def test_text_features_are_the_mean_embedding_over_all_200_positions() -> None:
    extractor = TextExtractor(30)
    embedding, linear = dense_twin(extractor)
    x = tokens(6, 30)
    torch.testing.assert_close(extractor(x), linear(embedding(x).mean(dim=1)))


def test_padding_has_the_vector_zero() -> None:
    extractor = TextExtractor(30)
    nothing = torch.zeros(1, 200, dtype=torch.int32)
    assert torch.equal(extractor.embedding(nothing), torch.zeros(1, 32))


def test_sparse_gradient_step_of_the_embedding_is_the_dense_one() -> None:
    extractor = TextExtractor(30)
    embedding, linear = dense_twin(extractor)
    x, y = tokens(6, 30), torch.arange(6)
    sparse = torch.autograd.grad(F.cross_entropy(extractor(x), y), extractor.embedding.weight)[0]
    dense = torch.autograd.grad(
        F.cross_entropy(linear(embedding(x).mean(dim=1)), y), embedding.weight
    )[0]
    assert sparse.is_sparse
    with torch.no_grad():
        extractor.embedding.weight.add_(sparse, alpha=-0.1)
        embedding.weight.add_(dense, alpha=-0.1)
    torch.testing.assert_close(extractor.embedding.weight, embedding.weight)


def test_every_algorithm_starts_from_the_same_model() -> None:
    reference = seeded(0, lambda: build_model("cnn", Inputs(4, (1, 16, 16))))
    assert isinstance(reference, Model)
    for algo in algorithm_names():
        net = toy_simulator(toy_config(algo)).workspaces.build()
        for part, module in (("extractor", reference.extractor), ("head", reference.head)):
            pairs = zip(net.module(part).parameters(), module.parameters(), strict=True)
            assert all(torch.equal(ours, plain) for ours, plain in pairs), (algo, part)


def test_seed_decides_the_initial_values_and_nothing_else_does() -> None:
    def head(seed: int, state: int) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(state)
            model = seeded(seed, lambda: build_model("fasttext", Inputs(4, vocabulary=9)))
        assert isinstance(model, Model)
        return model.head.weight

    assert torch.equal(head(seed=1, state=1), head(seed=1, state=2))
    assert not torch.equal(head(seed=1, state=1), head(seed=2, state=1))


def test_initialising_leaves_the_global_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    seeded(3, lambda: build_model("cnn", Inputs(4, MNIST)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("name", "inputs", "named"),
    [
        ("cnn", Inputs(4, (1, 15, 40)), "15×40"),
        ("resnet18", Inputs(4, MNIST), "3 channels, these have 1"),
        ("cnn_small", Inputs(4, (1, 3, 40)), "'cnn_small' .* at least 4×4 pixels, these are 3×40"),
        ("resnet_small", Inputs(4, (3, 8, 7)), "at least 8×8 pixels, these are 8×7"),
    ],
)
def test_images_that_do_not_fit_are_refused_with_their_size(
    name: str, inputs: Inputs, named: str
) -> None:
    with pytest.raises(UserError, match=named):
        build_model(name, inputs)


@pytest.mark.parametrize(("name", "side"), [("cnn", 16), ("cnn_small", 4), ("resnet_small", 8)])
def test_smallest_image_that_a_model_accepts_gives_features(name: str, side: int) -> None:
    model = build_model(name, Inputs(4, (1, side, side)))
    assert model.extractor(torch.zeros(2, 1, side, side)).shape == (2, model.features)


def test_small_resnet_adds_each_blocks_input_to_its_output() -> None:
    """A block whose last batch norm gives nothing lets its input through, rectified."""
    model = build_model("resnet_small", Inputs(4, (3, 16, 16)))
    block = model.extractor.get_submodule("layer1")
    nn.init.zeros_(block.get_submodule("bn2").get_parameter("weight"))
    x = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(block(x), x.relu())


@pytest.mark.parametrize(
    ("name", "inputs", "fitting"),
    [
        ("fasttext", Inputs(10, MNIST), "cnn, resnet18"),
        ("cnn", Inputs(4, vocabulary=9), "fasttext"),
    ],
)
def test_model_for_another_kind_of_data_is_refused_with_those_that_fit(
    name: str, inputs: Inputs, fitting: str
) -> None:
    with pytest.raises(UserError, match=f"{name}.*'mine'.*{fitting}"):
        inputs_of(inputs, "mine", name)


def test_misspelt_model_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match="'resnet8'; did you mean 'resnet18'"):
        model_spec("resnet8")
