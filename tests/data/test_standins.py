"""The stand-ins have the shapes of the real sets, are the same every time, and are neither trivial
nor hopeless."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from itertools import combinations
from pathlib import Path
from types import ModuleType

import matplotlib
import numpy as np
import pytest

from pfl_bench.data.registry import specs
from pfl_bench.data.standins import images as standin_images
from pfl_bench.data.standins import text as standin_text

Rendered = dict[str, tuple[np.ndarray, np.ndarray]]

IMAGE_SETS = sorted(standin_images.LOOKS)


@pytest.fixture(scope="module")
def rendered() -> Rendered:
    return {name: standin_images.render(name)[:2] for name in IMAGE_SETS}


@pytest.fixture(scope="module")
def documents() -> tuple[np.ndarray, np.ndarray, int]:
    return standin_text.render()


def _split(n: int) -> tuple[slice, slice]:
    return slice(0, 3 * n // 4), slice(3 * n // 4, n)


def _nearest_mean_accuracy(x: np.ndarray, y: np.ndarray) -> float:
    pixels = x.reshape(len(x), -1).astype(np.float32) / 255
    train, test = _split(len(y))
    means = np.stack([pixels[train][y[train] == c].mean(0) for c in range(y.max() + 1)])
    distance = (means**2).sum(1) - 2 * pixels[test] @ means.T
    return float((distance.argmin(1) == y[test]).mean())


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_images_have_the_shape_and_classes_of_the_real_set(rendered: Rendered, name: str) -> None:
    x, y = rendered[name]
    spec = specs()[name]
    assert spec.shape is not None
    channels, height, width = spec.shape
    assert x.shape == (len(y), height, width, channels)
    assert (x.dtype.name, y.dtype.name) == ("uint8", "int64")
    assert x.flags.c_contiguous
    counts = np.bincount(y, minlength=spec.classes)
    assert len(counts) == spec.classes
    assert counts.max() - counts.min() <= 1


def test_rendering_again_gives_the_same_bits(rendered: Rendered) -> None:
    np.random.seed(7)
    again, _, _ = standin_images.render("mnist")
    np.testing.assert_array_equal(again, rendered["mnist"][0])


def test_rendering_leaves_the_global_random_state_alone() -> None:
    before = np.random.get_state(legacy=False)["state"]["key"].copy()
    standin_images.render("mnist")
    standin_text.render()
    after = np.random.get_state(legacy=False)["state"]["key"]
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("glyphs", ["DIGITS", "PICTURES", "SIGNS"])
def test_no_two_classes_look_alike(glyphs: str) -> None:
    characters = getattr(standin_images, glyphs)
    masks = standin_images.glyph_masks(characters)
    plain = masks.coverage[masks.first].reshape(len(characters), -1)
    plain = plain / 255
    energy = (plain**2).sum(1)
    for a, b in combinations(range(len(characters)), 2):
        apart = ((plain[a] - plain[b]) ** 2).sum() / (energy[a] + energy[b])
        assert apart > 0.12, f"{characters[a]} and {characters[b]} are only {apart:.2f} apart"


def test_every_sign_is_drawn_and_is_not_the_box_of_a_missing_glyph() -> None:
    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")
    unassigned = "\U0010fffd"
    boxes = [standin_images._glyph_mask(fonts / f, unassigned) for f in standin_images.FACES]
    for characters in (standin_images.DIGITS, standin_images.PICTURES, standin_images.SIGNS):
        masks = standin_images.glyph_masks(characters)
        assert masks.count.min() >= 1
        assert masks.coverage.sum((1, 2)).min() > 100 * 255
        for box in boxes:
            assert np.abs(masks.coverage - box).sum((1, 2)).min() > 100 * 255


def test_the_rim_of_every_mask_is_empty() -> None:
    coverage = standin_images.glyph_masks(standin_images.SIGNS).coverage
    rim = np.ones(coverage.shape[1:], bool)
    rim[1:-1, 1:-1] = False
    assert coverage[:, rim].max() == 0


def test_a_cosine_is_never_so_near_a_half_that_processors_could_round_it_differently() -> None:
    exact = [standin_images.ONE * math.cos(math.radians(degree)) for degree in range(360)]
    assert min(abs(value - math.floor(value) - 0.5) for value in exact) > 1e-6
    assert standin_images.COSINE.dtype.kind == "i"


def block_masks() -> standin_images.Masks:
    """Two glyphs of one face each that no font has: a bar and a block."""
    coverage = np.zeros((2, standin_images.MASK, standin_images.MASK), np.int32)
    coverage[0, 8:56, 28:36] = 255
    coverage[1, 16:48, 16:48] = 200
    return standin_images.Masks(coverage, np.array([0, 1]), np.array([1, 1]))


def test_painting_is_a_matter_of_whole_numbers_and_the_same_everywhere() -> None:
    look = dataclasses.replace(standin_images.PHOTOS, glyphs="|■")
    generator = np.random.default_rng(0)
    y = np.arange(40) % 2
    pictures = standin_images._paint(look, block_masks(), y, generator)
    assert hashlib.sha256(pictures.data).hexdigest()[:16] == "07a16ed36e4ff7de"


@pytest.mark.parametrize("part", ["_background", "_noise", "_warp"])
def test_no_part_of_a_picture_is_a_real_number(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, kinds = getattr(standin_images, part), set()

    def watched(*args: object) -> np.ndarray:
        made = plain(*args)
        kinds.add(made.dtype.kind)
        return made

    monkeypatch.setattr(standin_images, part, watched)
    look = dataclasses.replace(standin_images.PHOTOS, glyphs="|■")
    standin_images._paint(look, block_masks(), np.arange(4) % 2, np.random.default_rng(0))
    assert kinds == {"i"}


def test_an_upright_glyph_lies_where_its_mask_has_it() -> None:
    one = standin_images.ONE
    inverse = np.array([[[one], [0]], [[0], [one]]])
    pose = standin_images._Pose(inverse, np.zeros((2, 1), int))
    side = standin_images.MASK
    drawn = standin_images._warp(block_masks().coverage, np.array([0]), pose, side)[0]
    np.testing.assert_array_equal(drawn, 256 * block_masks().coverage[0])


def test_noise_has_the_deviation_that_the_look_asks_for() -> None:
    noise = standin_images._noise(0.05, (200, 200), np.random.default_rng(0))
    assert noise.std() / standin_images.WHITE == pytest.approx(0.05, rel=0.02)
    assert abs(noise.mean()) < 0.03 * noise.std()


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_nearest_class_mean_of_the_edges_beats_chance_but_is_far_from_solving_it(
    rendered: Rendered, name: str
) -> None:
    """Edges, because pixels say little where glyphs are as often light on dark as dark on light."""
    x, y = rendered[name]
    pixels = x.astype(np.int32)
    down, across = (np.abs(np.diff(pixels, axis=axis)) for axis in (1, 2))
    edges = down[:, :, :-1] + across[:, :-1]
    for look in (x, edges):
        assert _nearest_mean_accuracy(look, y) < 0.7
    assert _nearest_mean_accuracy(edges, y) > 2 / (y.max() + 1)


def test_the_key_of_a_rendering_changes_with_its_look(monkeypatch: pytest.MonkeyPatch) -> None:
    before = standin_images.key("mnist")
    noisier = dataclasses.replace(standin_images.LOOKS["mnist"], noise=0.2)
    monkeypatch.setitem(standin_images.LOOKS, "mnist", noisier)
    assert standin_images.key("mnist") != before


@pytest.mark.parametrize("module", [standin_images, standin_text])
def test_the_key_of_a_rendering_changes_with_the_libraries(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    arguments = ("mnist",) if module is standin_images else ()
    before = module.key(*arguments)
    monkeypatch.setattr(module, "version", lambda library: "999")
    assert module.key(*arguments) != before


def test_documents_have_the_shape_of_ag_news(
    documents: tuple[np.ndarray, np.ndarray, int],
) -> None:
    x, y, vocabulary = documents
    assert x.shape == (len(y), 200)
    assert (x.dtype.name, y.dtype.name) == ("int32", "int64")
    assert np.bincount(y).tolist() == [len(y) // 4] * 4
    lengths = (x > 0).sum(1)
    assert (lengths.min(), lengths.max()) == standin_text.TOPICS.length
    assert set(np.unique(x)) == set(range(vocabulary))


def test_words_are_numbered_by_falling_frequency(
    documents: tuple[np.ndarray, np.ndarray, int],
) -> None:
    counts = np.bincount(documents[0].ravel())[1:]
    assert (np.diff(counts) <= 0).all()


def test_documents_are_the_same_every_time(documents: tuple[np.ndarray, np.ndarray, int]) -> None:
    np.testing.assert_array_equal(standin_text.render()[0], documents[0])


def test_counting_words_is_right_often_but_not_always(
    documents: tuple[np.ndarray, np.ndarray, int],
) -> None:
    x, y, vocabulary = documents
    counts = np.stack([np.bincount(row, minlength=vocabulary) for row in x]).astype(float)
    counts[:, 0] = 0
    train, test = _split(len(y))
    per_class = np.stack([counts[train][y[train] == c].sum(0) + 1 for c in range(4)])
    evidence = np.log(per_class / per_class.sum(1, keepdims=True))
    accuracy = ((counts[test] @ evidence.T).argmax(1) == y[test]).mean()
    assert 0.85 < accuracy < 0.98
