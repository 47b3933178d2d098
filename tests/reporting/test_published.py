"""The paper's accuracy for an experiment, against cells copied by hand from its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pfl_bench.config.options import load_profile
from pfl_bench.execution.configuration import configure
from pfl_bench.reporting.published import published_accuracy


@pytest.mark.parametrize(
    ("chosen", "hyper", "mean"),
    [
        ({"algo": "fedcp", "dataset": "cifar100"}, {}, 59.56),
        ({"algo": "fedper", "dataset": "cifar100", "rounds": 40, "fraction": 0.1}, {}, 49.63),
        ({"algo": "fedavg", "dataset": "cifar100", "seed": 7, "patience": 3}, {}, 31.89),
        ({"algo": "fedcp", "dataset": "tinyimagenet", "beta": 0.5}, {"lambda": 50}, 4.54),
        (
            {"algo": "fedper", "dataset": "cifar100", "model": "cnn_small", "image_size": 16},
            {},
            49.63,
        ),
        ({"algo": "fedcp", "dataset": "tinyimagenet", "model": "resnet_small"}, {}, 44.18),
        ({"algo": "fedcp", "dataset": "cifar100", "model": "cnn_small", "lr": 0.01}, {}, None),
        ({"algo": "local", "dataset": "cifar100"}, {}, None),
        ({"algo": "fedcp", "dataset": "cifar100", "lr": 0.01}, {}, None),
    ],
)
def test_the_papers_figure(chosen: dict[str, Any], hyper: dict[str, Any], mean: float) -> None:
    for profile in ("paper", "lite"):
        config = configure(load_profile(profile), chosen, hyper, Path(), lambda *_: "any")
        assert published_accuracy(config) == mean
