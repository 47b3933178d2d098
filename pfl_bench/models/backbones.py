"""The models of the paper and their small relatives, each split into feature extractor and head.

The head is the last fully connected layer, everything before it is the feature extractor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pfl_bench.base import UserError, meant, seeds, unknown
from pfl_bench.models.layers import WideLinear, WordMean

T = TypeVar("T")

TEXT_LENGTH = 200
"""Positions of a text; shorter ones are padded."""


class Described(Protocol):
    """A dataset, or what is remembered of one."""

    @property
    def classes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int, int] | None: ...
    @property
    def vocabulary(self) -> int | None: ...


@dataclass(frozen=True)
class Inputs:
    """What a model must know of the data it reads."""

    classes: int
    shape: tuple[int, int, int] | None = None  # channels, height, width of an image
    vocabulary: int | None = None  # rows of a text's embedding

    @property
    def kind(self) -> str:
        return "image" if self.shape else "text"


@dataclass(frozen=True)
class Model:
    """A freshly initialised backbone."""

    extractor: nn.Module
    head: nn.Linear

    @property
    def features(self) -> int:
        """The width K of the feature vector."""
        return self.head.in_features

    @property
    def size(self) -> int:
        """The number of parameters, extractor and head."""
        return sum(p.numel() for part in (self.extractor, self.head) for p in part.parameters())


@dataclass(frozen=True)
class ModelSpec:
    title: str
    kind: str
    lr: float
    build: Callable[[Inputs], Model]
    threads_help: bool = True
    """Whether two clients train faster on two threads than one after the other: not where a step is
    so short that Python's lock is most of it."""
    small_relative_of: str | None = None
    """The paper's model for which it stands at a smaller scale."""

    @property
    def leaves_cores_idle(self) -> bool:
        """Whether a run with a worker on every core keeps them less busy than a run on each does:
        steps are so short that workers wait for Python's lock."""
        return self.small_relative_of is not None or not self.threads_help


class ConvExtractor(nn.Module):
    """Two 5×5 convolutions and a fully connected layer of 512.

    Pooling comes before the ReLU: the maximum commutes with it, and it then runs on a quarter of
    the values.
    """

    def __init__(self, channels: int, height: int, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.fc = WideLinear(64 * _conv_side(height) * _conv_side(width), 512)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv1(x), 2).relu_()
        x = F.max_pool2d(self.conv2(x), 2).relu_()
        return F.relu(self.fc(x.flatten(1)))


def _conv_side(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2


def _cnn(inputs: Inputs) -> Model:
    assert inputs.shape is not None
    channels, height, width = inputs.shape
    _check_side("cnn", inputs.shape, 16)
    return Model(ConvExtractor(channels, height, width), nn.Linear(512, inputs.classes))


def _resnet18(inputs: Inputs) -> Model:
    assert inputs.shape is not None
    if inputs.shape[0] != 3:
        raise UserError(
            f"model 'resnet18' needs images of 3 channels, these have {inputs.shape[0]}; "
            "use the model 'cnn'"
        )
    from torchvision.models import resnet18

    backbone = resnet18(num_classes=inputs.classes)
    head, backbone.fc = backbone.fc, nn.Identity()
    return Model(backbone, head)


class SmallConvExtractor(nn.Module):
    """Two 3×3 convolutions and a fully connected layer of 128: the paper's CNN for images of about
    16×16, a fifth of the arithmetic. Padded, so that small images keep their rim.
    """

    def __init__(self, channels: int, height: int, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = WideLinear(32 * (height // 4) * (width // 4), 128)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv1(x), 2).relu_()
        x = F.max_pool2d(self.conv2(x), 2).relu_()
        return F.relu(self.fc(x.flatten(1)))


def _cnn_small(inputs: Inputs) -> Model:
    assert inputs.shape is not None
    _check_side("cnn_small", inputs.shape, 4)
    return Model(SmallConvExtractor(*inputs.shape), nn.Linear(128, inputs.classes))


class SmallResidualExtractor(nn.Module):
    """A residual network with batch norm: a 3×3 stem that halves the image, then one basic block of
    ResNet-18's kind at each of the widths 16, 32 and 64, and the mean over all positions.
    """

    def __init__(self, channels: int):
        super().__init__()
        from torchvision.models.resnet import BasicBlock

        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = BasicBlock(16, 16)
        self.layer2 = BasicBlock(16, 32, 2, _projection(16, 32))
        self.layer3 = BasicBlock(32, 64, 2, _projection(32, 64))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.bn1(self.conv1(x)), 2).relu_()
        return self.layer3(self.layer2(self.layer1(x))).mean((2, 3))


def _projection(narrow: int, wide: int) -> nn.Module:
    """The shortcut of a block that halves the image and doubles the width."""
    return nn.Sequential(nn.Conv2d(narrow, wide, 1, 2, bias=False), nn.BatchNorm2d(wide))


def _resnet_small(inputs: Inputs) -> Model:
    assert inputs.shape is not None
    _check_side("resnet_small", inputs.shape, 8)
    return Model(SmallResidualExtractor(inputs.shape[0]), nn.Linear(64, inputs.classes))


def _check_side(model: str, shape: tuple[int, int, int], least: int) -> None:
    _, height, width = shape
    if min(height, width) < least:
        raise UserError(
            f"model {model!r} needs images of at least {least}×{least} pixels, these are "
            f"{height}×{width}"
        )


class TextExtractor(nn.Module):
    """fastText: the mean of the word vectors over all positions, then a linear layer.

    The mean runs over the padding too, whose vector is zero.
    """

    def __init__(self, vocabulary: int, width: int = 32):
        super().__init__()
        self.embedding = WordMean(vocabulary, width, TEXT_LENGTH)
        self.fc = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.embedding(tokens))


def _fasttext(inputs: Inputs) -> Model:
    assert inputs.vocabulary is not None
    return Model(TextExtractor(inputs.vocabulary), nn.Linear(32, inputs.classes))


MODELS = {
    "cnn": ModelSpec("4-layer CNN", "image", 0.005, _cnn),
    "resnet18": ModelSpec("ResNet-18", "image", 0.1, _resnet18),
    "fasttext": ModelSpec("fastText", "text", 0.1, _fasttext, threads_help=False),
    # Rates by the training loss of FedAvg and Local alone: docs/small_models.md.
    "cnn_small": ModelSpec("small CNN", "image", 0.1, _cnn_small, small_relative_of="cnn"),
    "resnet_small": ModelSpec(
        "small ResNet", "image", 0.1, _resnet_small, small_relative_of="resnet18"
    ),
}


def model_spec(name: str) -> ModelSpec:
    known = meant(name, MODELS)
    if known not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[known]


def useful_workers(model: str, workers: int) -> int:
    """How many of so many threads are worth having for a model's clients."""
    return workers if model_spec(model).threads_help else 1


def inputs_of(dataset: Described, called: str, model: str) -> Inputs:
    """What a model must know of a dataset; refused where it cannot read it."""
    spec, inputs = model_spec(model), Inputs(dataset.classes, dataset.shape, dataset.vocabulary)
    if spec.kind != inputs.kind:
        fitting = ", ".join(n for n, s in MODELS.items() if s.kind == inputs.kind)
        raise UserError(
            f"model {model!r} reads {spec.kind}s and dataset {called!r} holds {inputs.kind}s; "
            f"models for it: {fitting}"
        )
    return inputs


def build_model(name: str, inputs: Inputs) -> Model:
    """A model with the library's own initialisation; call it inside `seeded`."""
    return model_spec(name).build(inputs)


def seeded(seed: int, build: Callable[[], T]) -> T:
    """Run `build` under torch's own initialisers with `seed`, leaving the global state as it was.

    Layers draw their initial values from torch's global generator and nothing else can be passed
    to them; this is the one place that lends it to them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.derive(seed, "initialise"))
        return build()
