"""How close images are: PSNR, SSIM, and what the paper's public code calls PSNR."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pfl_bench.privacy.similarity import (
    PERFECT,
    matched,
    psnr,
    published_psnr,
    ssim,
    unit_range,
)


def test_psnr_is_ten_times_the_logarithm_of_one_over_the_mean_squared_error() -> None:
    black, grey = torch.zeros(3, 4, 4), torch.full((3, 4, 4), 0.1)
    assert psnr(black, grey) == pytest.approx(20.0, abs=1e-5)
    assert psnr(black, torch.ones(3, 4, 4)) == pytest.approx(0.0)


def test_equal_images_have_a_finite_psnr() -> None:
    assert psnr(torch.ones(1, 2, 2), torch.ones(1, 2, 2)) == pytest.approx(PERFECT)


def test_uniform_noise_against_black_has_the_psnr_of_a_third() -> None:
    noise = torch.rand(3, 200, 200, generator=torch.Generator().manual_seed(0))
    assert psnr(torch.zeros_like(noise), noise) == pytest.approx(4.771, abs=0.05)  # E u² = 1/3


def test_inputs_of_models_are_put_on_the_scale_from_0_to_1() -> None:
    x = torch.tensor([-3.0, -1.0, 0.0, 1.0, 2.0])
    assert unit_range(x).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_recovered_images_are_matched_to_the_closest_whatever_their_order() -> None:
    truth = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    order = [2, 0, 3, 1]
    assert [order[j] for j in matched(truth, truth[order])] == [0, 1, 2, 3]


def test_no_recovered_image_stands_for_two() -> None:
    truth = torch.zeros(2, 1, 2, 2)
    found = torch.stack([torch.full((1, 2, 2), value) for value in (0.5, 0.1)])
    assert matched(truth, found) == [1, 0]


# --- SSIM -----------------------------------------------------------------------------------------


def images(side: int, channels: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(side)
    first = torch.rand(channels, side, side, generator=generator)
    return first, (first + 0.3 * torch.randn(first.shape, generator=generator)).clamp(0, 1)


def naive_ssim(a: Tensor, b: Tensor, side: int) -> float:
    """Place by place, as Wang et al. (2004) write it."""
    middle = (side - 1) / 2
    raw = {(i, j): math.exp(-((i - middle) ** 2 + (j - middle) ** 2) / (2 * 1.5**2))
           for i in range(side) for j in range(side)}  # fmt: skip
    weights = {place: value / sum(raw.values()) for place, value in raw.items()}
    values = []
    for c in range(a.shape[0]):
        for top in range(a.shape[1] - side + 1):
            for left in range(a.shape[2] - side + 1):
                pairs = [(w, float(a[c, top + i, left + j]), float(b[c, top + i, left + j]))
                         for (i, j), w in weights.items()]  # fmt: skip
                mean_a, mean_b = (sum(w * p[k] for w, *p in pairs) for k in (0, 1))
                var_a = sum(w * (x - mean_a) ** 2 for w, x, _ in pairs)
                var_b = sum(w * (y - mean_b) ** 2 for w, _, y in pairs)
                both = sum(w * (x - mean_a) * (y - mean_b) for w, x, y in pairs)
                values.append(
                    (2 * mean_a * mean_b + 1e-4) * (2 * both + 9e-4)
                    / ((mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4))
                )  # fmt: skip
    return sum(values) / len(values)


@pytest.mark.parametrize(("side", "window"), [(14, 11), (11, 11), (8, 7), (5, 5)])
def test_ssim_is_what_its_definition_says_place_by_place(side: int, window: int) -> None:
    a, b = images(side)
    assert ssim(a, b) == pytest.approx(naive_ssim(a, b, window), abs=1e-9)


def test_ssim_of_equal_images_is_one_and_of_noise_near_none() -> None:
    a, b = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert ssim(a, a) == pytest.approx(1)
    assert abs(ssim(a, b)) < 0.05


def test_ssim_sees_structure_where_psnr_sees_brightness() -> None:
    image = torch.zeros(1, 32, 32)
    image[:, 8:24, 14:18] = 0.5
    flat, brighter = torch.full_like(image, float(image.mean())), image + 0.3
    assert psnr(image, flat) > psnr(image, brighter)
    assert ssim(image, flat) < ssim(image, brighter)


# --- the published arithmetic ---------------------------------------------------------------------


def test_the_published_psnr_mixes_scales_and_divides_by_three() -> None:
    image = torch.full((3, 4, 4), 0.75)  # on [-1, 1] that is 0.5
    assert published_psnr(image, torch.full_like(image, 0.5)) == pytest.approx(PERFECT)
    assert published_psnr(image, image) == pytest.approx(10 * math.log10(3 / 0.25**2))


def test_a_perfect_recovery_and_noise_lie_close_under_the_published_psnr() -> None:
    dark = torch.full((3, 64, 64), 0.05)
    noise = torch.rand(dark.shape, generator=torch.Generator().manual_seed(0))
    assert psnr(dark, dark) - psnr(dark, noise) > 90
    assert published_psnr(dark, dark) - published_psnr(dark, noise) < 5
