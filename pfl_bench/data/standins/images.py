"""Stand-ins for the image datasets: glyphs in random pose and colour, with clutter and noise.

A class is a character; a sample is one of its faces (sans, serif, mono; regular, bold) turned,
scaled, sheared and shifted, light on dark or dark on light, over a shaded background, among smaller
characters of other classes. What varies (face, pose, colour, polarity, clutter) is the same in all
classes and says nothing of them, and there are few samples of each: what one client cannot learn
of it from its own, the others' samples show.

Everything is drawn and painted in whole numbers, because real ones (powers, cosines, normal
deviates) are computed in slightly different ways by different processors. The fonts are those that
matplotlib ships, so nothing is downloaded. A sample is a few array operations on a mask that is
drawn once, which is why thousands of them take a second or two.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pfl_bench.base import numpy_generator, plot_style

VERSION = 2
"""Raise it when the same look would be rendered differently."""

FACES = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-Bold.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSansMono-Bold.ttf",
)
MASK = 64
"""Side of a glyph's mask in pixels."""

DIGITS = "0123456789"
PICTURES = "✈☎♞★☂⌂♣✂☁♥"
SIGNS = (  # 200 that differ at a glance; look-alikes of other alphabets are left out
    "0123457ABCDFHIJKLMQRTVWXYZbdefkmqrtyΔΞΣΦΨαβεζλμξπφωДЖЛЦЧШЪЫЮЯ@#$%&?§¶*+=±©¤¢£₪₫"
    "←↑→↓⇔∂∃∅√∝∞∠∨∩∪∫∴∼≠≡≤≪⊂⊗⊥⌂⌐⌘▲▶◆◇○◐◣★☀☁☂☃☎☑☘☙☞☯☰☼☾☿♀♁♂♃♄♅♆♇♈♉♊♋♌♍♎♏♐♑♓"
    "♕♖♘♛♜♝♡♢♤♧♨♩♪♫♬♭♮♯✂✆✇✈✉✌✍✎✏✓✙✜✝✧✩✪✰✿❀❇❈❏❝❡❢❤թկչռքֆლქ"
)

ONE = 4096
"""What stands for 1 in coordinates."""
LEVELS = 16
"""Steps in which a picture is painted, to one of the 256 in which it is kept."""
WHITE = 255 * LEVELS

COSINE = np.array([round(ONE * math.cos(math.radians(degree))) for degree in range(360)])
"""By degree."""

_CHUNK = 100
"""Images painted at a time: few enough that their arrays stay in the processor's cache."""


@dataclass(frozen=True)
class Look:
    """Everything that decides what a stand-in looks like."""

    glyphs: str
    """one class each"""
    channels: int
    side: int
    samples: int
    rotation: int
    """largest angle, in degrees"""
    scale: tuple[float, float]
    """height or width of the glyph, whichever is larger, as a share of the image's side"""
    shift: float
    """largest displacement, as a share of the image's side"""
    shear: float
    contrast: float
    """least difference between the brightness of the glyph and that of the background"""
    opacity: float
    """the least of a glyph"""
    negative: float
    """share of samples that are dark on light"""
    clutter: int
    """smaller characters strewn over the image"""
    noise: float
    """standard deviation, where black is 0 and white is 1"""


PHOTOS = Look(
    glyphs=PICTURES,
    channels=3,
    side=32,
    samples=2000,
    rotation=30,
    scale=(0.6, 1.0),
    shift=0.12,
    shear=0.2,
    contrast=0.5,
    opacity=0.8,
    negative=0.5,
    clutter=2,
    noise=0.04,
)

# So many classes of so few images each take long to learn: what varies, varies less.
MANY_SIGNS = replace(
    PHOTOS, glyphs=SIGNS[:100], samples=3000, rotation=15, negative=0.25, clutter=1
)

LOOKS = {
    "mnist": replace(PHOTOS, glyphs=DIGITS, channels=1, side=28, negative=0.0),
    "cifar10": PHOTOS,
    "cifar100": MANY_SIGNS,
    "tinyimagenet": replace(MANY_SIGNS, glyphs=SIGNS, side=64, samples=6000),
}


def key(name: str) -> str:
    """All that the rendering of a stand-in depends on."""
    libraries = [f"{library} {version(library)}" for library in ("numpy", "matplotlib", "pillow")]
    return f"images {VERSION} {libraries} {dataclasses.asdict(LOOKS[name])}"


def render(name: str) -> tuple[np.ndarray, np.ndarray, None]:
    """Images n×h×w×c (uint8) and labels, classes equally frequent and in random order."""
    look = LOOKS[name]
    y = np.arange(look.samples) % len(look.glyphs)
    numpy_generator(0, "standin", name, "order").shuffle(y)
    masks = glyph_masks(look.glyphs)
    x = [
        _paint(look, masks, y[start : start + _CHUNK], numpy_generator(0, "standin", name, start))
        for start in range(0, look.samples, _CHUNK)
    ]
    return np.concatenate(x), y.astype(np.int64), None


@dataclass(frozen=True)
class Masks:
    """Coverage (0 to 255) of every face of every glyph; those of a glyph lie side by side."""

    coverage: np.ndarray
    first: np.ndarray
    count: np.ndarray

    def draw(self, glyphs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """The row of a random face for each of `glyphs`."""
        return self.first[glyphs] + generator.integers(0, self.count[glyphs])


@cache
def glyph_masks(glyphs: str) -> Masks:
    """Each glyph in each face that has it, filling the middle of a mask with an empty rim."""
    matplotlib = plot_style.library()
    from matplotlib.ft2font import FT2Font

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    known = {face: FT2Font(str(folder / face)).get_charmap() for face in FACES}
    drawn = [
        [_glyph_mask(folder / face, glyph) for face in FACES if ord(glyph) in known[face]]
        for glyph in glyphs
    ]
    count = np.array([len(faces) for faces in drawn])
    coverage = np.stack([mask for faces in drawn for mask in faces])
    return Masks(coverage, np.cumsum(count) - count, count)


def _glyph_mask(font_file: Path, glyph: str) -> np.ndarray:
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(font_file, MASK, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = font.getbbox(glyph)
    ink = Image.new("L", (int(right - left), int(bottom - top)))
    ImageDraw.Draw(ink).text((-left, -top), glyph, font=font, fill=255)
    stretch = (MASK - 4) / max(ink.size)
    width, height = (max(1, round(side * stretch)) for side in ink.size)
    mask = Image.new("L", (MASK, MASK))
    mask.paste(ink.resize((width, height)), ((MASK - width) // 2, (MASK - height) // 2))
    return np.asarray(mask, np.int32)


def _between(
    low: float, high: float, size: int | tuple[int, ...], generator: np.random.Generator
) -> np.ndarray:
    """Multiples of 1/ONE from `low` to `high`."""
    return generator.integers(round(low * ONE), round(high * ONE) + 1, size)


class _Pose(NamedTuple):
    """Where the glyphs of n images lie: the map from the image to the mask, and the centres."""

    inverse: np.ndarray
    centre: np.ndarray

    @classmethod
    def draw(
        cls,
        n: int,
        rotation: int,
        scale: tuple[float, float],
        shift: float,
        shear: float,
        generator: np.random.Generator,
    ) -> _Pose:
        angle = generator.integers(-rotation, rotation + 1, n)
        cos, sin = COSINE[angle % 360], COSINE[(angle - 90) % 360]
        lean = _between(-shear, shear, n, generator)
        turned = np.array([[cos + lean * sin // ONE, lean * cos // ONE - sin], [sin, cos]])
        size = _between(*scale, n, generator)
        return cls(turned * ONE // size, 2 * _between(-shift, shift, (2, n), generator))


def _paint(look: Look, masks: Masks, y: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    n = len(y)
    picture = _background(look, n, generator)
    for _ in range(look.clutter):
        strewn = masks.draw(generator.integers(0, len(look.glyphs), n), generator)
        pose = _Pose.draw(n, 180, (0.2, 0.35), 0.45, look.shear, generator)
        colour = generator.integers(WHITE * 3 // 10, WHITE + 1, (n, look.channels))
        _lay_over(picture, _warp(masks.coverage, strewn, pose, look.side), colour)
    pose = _Pose.draw(n, look.rotation, look.scale, look.shift, look.shear, generator)
    faces = masks.draw(y, generator)
    opacity = _between(look.opacity, 1, (n, 1, 1), generator)
    least = round(WHITE * (0.5 + look.contrast / 2))
    colour = generator.integers(least, WHITE + 1, (n, look.channels))
    _lay_over(picture, opacity * _warp(masks.coverage, faces, pose, look.side) // ONE, colour)
    is_negative = _between(0, 1, n, generator) < look.negative * ONE
    picture[is_negative] = WHITE - picture[is_negative]
    picture += _noise(look.noise, picture.shape, generator)
    return (picture.clip(0, WHITE) // LEVELS).astype(np.uint8)


def _background(look: Look, n: int, generator: np.random.Generator) -> np.ndarray:
    """A dark colour that shades off in some direction: n×h×w×c."""
    ramp = _ramp(look.side)
    most, shade = round(WHITE * (0.5 - look.contrast / 2)), WHITE // 10
    each = (n, 1, 1, look.channels)
    base = generator.integers(0, most + 1, each)
    down = generator.integers(-shade, shade + 1, each) * ramp[:, None, None] // ONE
    across = generator.integers(-shade, shade + 1, each) * ramp[:, None] // ONE
    return base + down + across


def _noise(deviation: float, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Nearly normal: the sum of four bytes has the mean 510 and the variance 4·(256² - 1)/12."""
    total = generator.integers(0, 256, (4, *shape), np.uint8).sum(0, np.int64) - 510
    return total * round(deviation * WHITE * ONE / math.sqrt((256**2 - 1) / 3)) // ONE


def _ramp(side: int) -> np.ndarray:
    """The middles of `side` pixels that lie between -1 and 1."""
    return (2 * np.arange(side) + 1 - side) * ONE // side


def _lay_over(picture: np.ndarray, coverage: np.ndarray, colour: np.ndarray) -> None:
    picture += coverage[..., None] * (colour[:, None, None] - picture) // (255 << 8)


def _warp(masks: np.ndarray, rows: np.ndarray, pose: _Pose, side: int) -> np.ndarray:
    """Masks `rows` in their poses, interpolated between the four nearest pixels: n×side×side, from
    0 to 255·256."""
    x, y = _ramp(side) - pose.centre[..., None]
    x, y = x[:, None, :], y[:, :, None]
    (xx, xy), (yx, yy) = pose.inverse[..., None, None]
    column, right = _pixel_and_rest((xx * x + xy * y) // ONE)
    line, down = _pixel_and_rest((yx * x + yy * y) // ONE)
    pixels = masks.reshape(-1)
    flat = rows[:, None, None] * MASK**2 + line * MASK + column
    upper, lower = (
        (pixels[at] << 8) + right * (pixels[at + 1] - pixels[at]) for at in (flat, flat + MASK)
    )
    return upper + (down * (lower - upper) >> 8)


def _pixel_and_rest(aim: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates from -1 to 1 across a mask as whole pixels and what is left over in 256ths."""
    # The rim of a mask is empty, so whatever lies outside may be read there.
    position = ((aim + ONE) * (MASK << 7) // ONE - 128).clip(0, (MASK - 1 << 8) - 1)
    return position >> 8, position & 255
