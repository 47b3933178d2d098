"""Images are reduced by area means, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.data.imagesize import area_means, reduced_shape


def random_images(n: int, height: int, width: int, channels: int = 3) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, height, width, channels), dtype=np.uint8)


def test_halving_gives_two_by_two_means_with_a_half_rounded_up() -> None:
    image = np.array([[0, 1, 9, 9], [0, 1, 9, 9], [255, 255, 0, 0], [255, 254, 0, 1]], np.uint8)
    assert area_means(image[None, :, :, None], 2)[0, :, :, 0].tolist() == [[1, 9], [255, 0]]


@given(
    height=st.integers(1, 12), width=st.integers(1, 12), size=st.integers(1, 12),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_every_pixel_is_the_mean_of_the_area_it_covers(
    height: int, width: int, size: int, seed: int
) -> None:
    """Against a calculation of its own: each pixel cut into size×size, then plain block means."""
    size = min(size, height, width)
    images = np.random.default_rng(seed).integers(0, 256, (2, height, width, 2), dtype=np.uint8)
    cut = images.astype(object).repeat(size, 1).repeat(size, 2)
    blocks = cut.reshape(2, size, height, size, width, 2).sum((2, 4))
    area = height * width
    assert (area_means(images, size) == (2 * blocks + area) // (2 * area)).all()


def test_images_keep_their_order_however_many_there_are() -> None:
    images = random_images(450, 6, 6)
    reduced = area_means(images, 3)
    for k in (0, 199, 200, 449):
        np.testing.assert_array_equal(reduced[k], area_means(images[k : k + 1], 3)[0])


@pytest.mark.parametrize("value", [0, 1, 254, 255])
def test_a_plain_image_stays_as_it_is(value: int) -> None:
    assert (area_means(np.full((1, 28, 28, 1), value, np.uint8), 9) == value).all()


def test_images_of_real_numbers_stay_real() -> None:
    images = np.array([[-1, 1], [0.5, 0]], np.float32)[None, :, :, None]
    reduced = area_means(images, 1)
    assert (reduced.dtype, reduced.item()) == (np.float32, 0.125)


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [((3, 32, 40), 16, (3, 16, 16)), ((1, 28, 28), None, (1, 28, 28)), (None, 16, None)],
)
def test_the_shape_is_told_without_the_images(
    shape: tuple[int, int, int] | None, size: int | None, expected: tuple[int, int, int] | None
) -> None:
    assert reduced_shape(shape, size) == expected
