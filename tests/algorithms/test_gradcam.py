"""Grad-CAM against closed forms and finite differences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from toy import toy_config, toy_simulator

from pfl_bench.algorithms.fedcp import FedCP
from pfl_bench.algorithms.figures import _grad_cam as gradcam
from pfl_bench.algorithms.figures.gradcam import check, picture
from pfl_bench.base.errors import UserError
from pfl_bench.engine.simulator import Simulator
from pfl_bench.models.backbones import Inputs, build_model


class MeanNet(nn.Module):
    """A convolution, then the mean of each map: for a linear head, Grad-CAM has a closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


def test_for_a_linear_head_on_mean_maps_it_is_the_class_activation_map() -> None:
    extractor, head, x = MeanNet(), nn.Linear(3, 5), torch.randn(4, 1, 7, 7)
    features, maps, name = gradcam.last_maps(extractor, x)
    cams = gradcam.grad_cam(maps, head(features)[:, 2])
    # logit = Σ_k w_k mean(A_k) + b, so that α_k = w_k / number of pixels.
    expected = torch.einsum("k,nkij->nij", head.weight[2] / 25, extractor.conv(x)).clamp_min(0)
    assert name == "conv"
    torch.testing.assert_close(cams, expected.detach())


def test_the_weight_of_a_map_is_how_much_the_logit_grows_with_it() -> None:
    torch.manual_seed(3)
    tail = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(2 * 9, 4), nn.Sigmoid()).double()
    maps = torch.randn(1, 2, 3, 3, dtype=torch.double, requires_grad=True)
    cam = gradcam.grad_cam(maps, tail(maps)[:, 1])
    step, growth = 1e-6, []
    for k in range(2):
        up, down = (maps.detach().clone() for _ in range(2))
        up[:, k] += step
        down[:, k] -= step
        growth.append((tail(up) - tail(down))[0, 1].item() / (2 * step))
    # The growth is the sum of the gradient over the map, its mean times nine pixels.
    expected = sum(g / 9 * maps.detach()[:, k] for k, g in enumerate(growth))
    torch.testing.assert_close(cam, torch.as_tensor(expected).clamp_min(0), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("model", "shape", "layer", "side"),
    [
        ("cnn", (1, 28, 28), "conv2", 8),
        ("resnet18", (3, 64, 64), "layer4", 2),
        ("resnet18", (3, 32, 32), "layer3", 2),  # its last layer has a single pixel
    ],
)
def test_the_last_maps_of_a_model_are_found(
    model: str, shape: tuple[int, int, int], layer: str, side: int
) -> None:
    extractor = build_model(model, Inputs(10, shape)).extractor.eval()
    _, maps, name = gradcam.last_maps(extractor, torch.zeros(1, *shape))
    assert name == layer
    assert maps.shape[2:] == (side, side)


def test_a_layer_can_be_named_and_a_misspelt_one_is_refused() -> None:
    extractor = build_model("cnn", Inputs(10, (1, 28, 28))).extractor
    x = torch.zeros(1, 1, 28, 28)
    assert gradcam.last_maps(extractor, x, "conv1")[1].shape[1] == 32
    with pytest.raises(UserError, match="unknown layer 'conv3'; did you mean"):
        gradcam.last_maps(extractor, x, "conv3")
    with pytest.raises(UserError, match="the layer 'fc' has none"):
        gradcam.last_maps(extractor, x, "fc")


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    one = toy_simulator(toy_config("fedcp", setting="iid", beta=None, rounds=1))
    for _ in one.rounds():
        pass
    one.cancelled.clear()
    return one


def test_the_two_heads_add_up_to_the_model(simulator: Simulator) -> None:
    algorithm = simulator.algorithm
    assert isinstance(algorithm, FedCP)
    with simulator.client(0, 1) as client, torch.no_grad():
        algorithm.scored(client, simulator.download(0))
        x = client.shard.pool.inputs(client.shard.test)
        heads = gradcam.head_logits(algorithm, client, client.net.module("extractor")(x))
        torch.testing.assert_close(
            heads["global"] + heads["personal"], algorithm.predict(client, x)
        )


def test_samples_are_spread_over_the_classes_and_maps_fit_their_images(
    simulator: Simulator,
) -> None:
    views = gradcam.look(simulator, client=1, samples=4)
    assert views.labels == [0, 1, 2, 3]
    for maps in views.maps.values():
        assert maps.shape == views.images.shape[:3]
        assert ((maps >= 0) & (maps <= 1)).all()


def test_data_that_are_not_as_published_are_told_in_the_caption(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = gradcam.look(simulator, client=1, samples=2)
    monkeypatch.setattr(simulator, "remark", "toy copy")
    figure = picture(views, simulator, 1, "lite")
    assert "on toy (toy copy), " in " ".join(figure.get_suptitle().split())


def test_a_map_in_which_nothing_speaks_for_the_class_is_zero_and_not_nan() -> None:
    assert gradcam.upscaled(torch.zeros(1, 2, 2), torch.Size((4, 4))).eq(0).all()


@pytest.mark.parametrize(
    ("config", "client", "sentence"),
    [
        (toy_config("fedavg"), 0, "compares the global and the personalized head of FedCP"),
        (toy_config("fedcp", {"gh": False, "cpn": False}), 0, "has not both"),
        (toy_config("fedcp", model="fasttext"), 0, "'fasttext' reads text"),
        (toy_config("fedcp"), 4, "client cannot be 4; allowed: 0 to 3"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(config: object, client: int, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check(config, Path(), client=client, layer=None)  # type: ignore[arg-type]
