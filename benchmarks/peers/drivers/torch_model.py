"""The paper's CNN written plainly, with the problem's initial values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Problem
from torch import Tensor, nn

NAMES = {
    "extractor.conv1": "conv1",
    "extractor.conv2": "conv2",
    "extractor.fc": "fc",
    "head": "head",
}


class Plain(nn.Module):
    def __init__(self, problem: Problem):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)
        self.fc, self.head = nn.Linear(1600, 512), nn.Linear(512, 10)
        values = {
            f"{mine}.{kind}": torch.from_numpy(problem.model[f"{theirs}.{kind}"])
            for theirs, mine in NAMES.items()
            for kind in ("weight", "bias")
        }
        self.load_state_dict(values)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(F.relu(self.fc(x.flatten(1))))


@torch.no_grad()
def fill(model: nn.Module, problem: Problem) -> nn.Module:
    """The problem's initial values in a CNN with other names, whose layers come in our order."""
    names = [f"{layer}.{kind}" for layer in NAMES for kind in ("weight", "bias")]
    for parameter, name in zip(model.parameters(), names, strict=True):
        parameter.copy_(torch.from_numpy(problem.model[name]))
    return model


@torch.no_grad()
def correct(model: nn.Module, x: Tensor, y: Tensor, size: int = 50) -> int:
    """Right answers, in batches as large as ours."""
    model.eval()
    pairs = zip(x.split(size), y.split(size), strict=True)
    return sum(int((model(a).argmax(1) == b).sum()) for a, b in pairs)
