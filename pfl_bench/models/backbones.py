"""The models of the paper, each split into feature extractor and head.

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
    if min(_conv_side(height), _conv_side(width)) < 1:
        raise UserError(
            f"model 'cnn' needs images of at least 16×16 pixels, these are {height}×{width}"
        )
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
