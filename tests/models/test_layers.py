"""Layers with large weights: ordinary ones, whose step on factors is a step on the gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pfl_bench.models import layers
from pfl_bench.models.layers import WideLinear, WordMean, factored
from pfl_bench.models.network import Network

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def a_layer() -> WideLinear:
    torch.manual_seed(0)
    return WideLinear(5, 7).double()


@pytest.fixture(params=[True, False], ids=["W xᵀ", "x Wᵀ"])
def either_order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the product on Intel's processors with AVX-512, and on others."""
    monkeypatch.setattr(layers, "READS_BY_ROWS", request.param)


@pytest.mark.parametrize(
    ("vendor", "instructions", "by_rows"),
    [
        ("GenuineIntel", "AVX512", True),
        ("GenuineIntel", "AVX2", False),
        ("AuthenticAMD", "AVX512", False),
        ("", "DEFAULT", False),
    ],
)
def test_the_order_of_the_product_follows_from_who_makes_the_processor(
    vendor: str, instructions: str, by_rows: bool
) -> None:
    assert layers.reads_by_rows(vendor, instructions) is by_rows


def test_what_is_recorded_is_the_order_that_is_taken(
    either_order: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    monkeypatch.setattr(layers, "product_by_rows", lambda *_: taken.append("W xᵀ") or X[:, :2])
    monkeypatch.setattr(layers.F, "linear", lambda *_: taken.append("x Wᵀ") or X[:, :2])
    a_layer()(X)
    assert taken == [layers.wide_order()]
    assert layers.wide_order("cuda") == "x Wᵀ"


@pytest.mark.usefixtures("either_order")
def test_it_computes_what_a_linear_layer_does() -> None:
    layer = a_layer()
    torch.testing.assert_close(layer(X), nn.functional.linear(X, layer.weight, layer.bias))


def test_it_takes_inputs_of_any_shape() -> None:
    layer = a_layer()
    torch.testing.assert_close(layer(X[0]), layer(X)[0])
    torch.testing.assert_close(layer(X.view(2, 3, 5)), layer(X).view(2, 3, 7))


@pytest.mark.usefixtures("either_order")
def test_its_gradients_and_second_derivatives_agree_with_finite_differences() -> None:
    layer = a_layer()
    inputs = (X.clone().requires_grad_(), layer.weight, layer.bias)

    def output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,)).sin()

    assert torch.autograd.gradcheck(output, inputs)
    assert torch.autograd.gradgradcheck(output, inputs)


def test_the_calls_hold_the_factors_of_the_gradient() -> None:
    layer = a_layer()
    with factored([layer]) as calls:
        loss = layer(X).sin().sum() + layer(2 * X).cos().sum()
    gradients = torch.autograd.grad(loss, [call.y for call in calls])
    plain = layer(X).sin().sum() + layer(2 * X).cos().sum()
    expected = layer.weight + 0.5 * torch.autograd.grad(plain, layer.weight)[0]
    with torch.no_grad():
        for call, gradient in zip(calls, gradients, strict=True):
            call.add(gradient, 0.5)
    torch.testing.assert_close(layer.weight, expected)


def test_nothing_is_kept_of_a_call_that_needs_no_gradient() -> None:
    layer = a_layer()
    with factored([layer]) as calls, torch.no_grad():
        layer(X)
    assert calls == []


def test_a_layer_is_an_ordinary_one_again_afterwards() -> None:
    layer = a_layer()
    with pytest.raises(ZeroDivisionError), factored([layer]):
        _ = 1 / 0
    assert torch.autograd.grad(layer(X).sum(), layer.weight)[0].abs().sum() > 0


LOSSES: dict[str, Callable[[Network], Tensor]] = {
    "one call": lambda net: net.module("body")(X.float()).pow(2).mean(),
    "two calls": lambda net: (net.module("body")(X.float()) * net.module("body")(-X.float())).sum(),
    "the weight named beside a call": lambda net: (
        net.module("body")(X.float()).mean() + net.module("body").weight.pow(2).sum()
    ),
    "the weight named alone": lambda net: net.module("body").weight.pow(2).sum(),
    "a call that the loss ignores": lambda net: (
        0 * net.module("body")(X.float()).detach().sum() + net.module("body").bias.sum()
    ),
}


@pytest.mark.usefixtures("either_order")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_a_step_is_gradients_pull_and_descend(name: str, strength: float) -> None:
    def network() -> Network:
        torch.manual_seed(0)
        return Network({"body": WideLinear(5, 7)})

    ours, theirs = network(), network()
    anchor = {"body": torch.linspace(-1, 1, len(ours["body"]))}
    value = ours.step(lambda: LOSSES[name](ours), 0.1, None, anchor, strength)
    loss = LOSSES[name](theirs)
    gradients = torch.autograd.grad(loss, theirs.parameters(), allow_unused=True)
    theirs.pull(anchor, 0.1 * strength)
    theirs.descend(
        [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(theirs.parameters(), gradients, strict=True)
        ],
        0.1,
    )
    torch.testing.assert_close(ours.vector, theirs.vector)
    torch.testing.assert_close(value, loss.detach())


# --- words ----------------------------------------------------------------------------------------

TEXTS = torch.tensor([[3, 1, 3, 0, 0], [2, 0, 0, 0, 0], [0, 0, 0, 0, 0], [1, 4, 2, 3, 4]])


def words(length: int = 8) -> WordMean:
    torch.manual_seed(0)
    return WordMean(6, 3, length)


@pytest.mark.parametrize("mode", ["gradient", "no gradient", "factored"])
def test_the_mean_of_words_runs_over_the_whole_length_of_a_text(mode: str) -> None:
    layer = words()
    with torch.no_grad():
        layer.weight[0] = 7.0  # as noise on an upload might leave it
    texts = [[word for word in text if word] for text in TEXTS]
    expected = torch.stack([sum((layer.weight[w] for w in t), torch.zeros(3)) / 8 for t in texts])
    with torch.set_grad_enabled(mode != "no gradient"):
        if mode == "factored":
            with factored([layer]):
                found = layer(TEXTS)
        else:
            found = layer(TEXTS)
    torch.testing.assert_close(found, expected)


def test_texts_may_be_given_without_their_padding() -> None:
    layer = words()
    assert torch.equal(layer(TEXTS[:2]), layer(TEXTS[:2, :3]))


def test_a_step_changes_the_words_of_the_batch_as_the_dense_gradient_says_and_no_other() -> None:
    net = Network({"words": words()})
    layer = net.module("words")
    dense = nn.Embedding.from_pretrained(layer.weight.detach().clone(), freeze=False, padding_idx=0)

    def loss(y: Tensor) -> Tensor:
        return y.sin().sum() + y.pow(2).sum()

    net.step(lambda: loss(layer(TEXTS)), 0.3)
    loss(dense(TEXTS).sum(1) / 8).backward()
    with torch.no_grad():
        dense.weight -= 0.3 * dense.weight.grad
    torch.testing.assert_close(layer.weight, dense.weight)
    assert torch.equal(layer.weight[[0, 5]], words().weight[[0, 5]])
    assert torch.equal(layer.weight[0], torch.zeros(3))
