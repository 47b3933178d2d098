"""Stand-ins for the image datasets: glyphs in random pose and colour, with clutter and noise.

A class is a character; a sample is one of its faces (sans, serif, mono; regular, bold) turned,
scaled, sheared and shifted over a shaded background, among smaller characters of other classes.
The fonts are those that matplotlib ships, so nothing is downloaded. A sample is a few array
operations on a mask that is drawn once, which is why thousands of them take a second or two.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pfl_bench.base import numpy_generator, plot_style

VERSION = 1
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
    rotation: float
    """largest angle, in degrees"""
    scale: tuple[float, float]
    """height or width of the glyph, whichever is larger, as a share of the image's side"""
    shift: float
    """largest displacement, as a share of the image's side"""
    shear: float
    contrast: float
    """least difference between the brightness of the glyph and that of the background"""
    fade: float
    """the glyph's opacity is a uniform number to this power: 0 is never faint, 1 often"""
    clutter: int
    """smaller characters strewn over the image"""
    noise: float
    """standard deviation, where black is 0 and white is 1"""
    tint: float
    """share of samples in the colour their class leans to, as ships lean to blue"""


MANY_SIGNS = Look(
    glyphs=SIGNS[:100],
    channels=3,
    side=32,
    samples=6000,
    rotation=9,
    scale=(0.7, 0.95),
    shift=0.06,
    shear=0.08,
    contrast=0.4,
    fade=0.1,
    clutter=1,
    noise=0.05,
    tint=0.7,
)

LOOKS = {
    "mnist": Look(
        glyphs=DIGITS,
        channels=1,
        side=28,
        samples=4000,
        rotation=15,
        scale=(0.65, 0.95),
        shift=0.08,
        shear=0.15,
        contrast=0.4,
        fade=0.2,
        clutter=1,
        noise=0.06,
        tint=0.0,
    ),
    "cifar10": Look(
        glyphs=PICTURES,
        channels=3,
        side=32,
        samples=4000,
        rotation=20,
        scale=(0.65, 0.95),
        shift=0.1,
        shear=0.15,
        contrast=0.4,
        fade=0.2,
        clutter=1,
        noise=0.06,
        tint=0.3,
    ),
    "cifar100": MANY_SIGNS,
    "tinyimagenet": replace(MANY_SIGNS, glyphs=SIGNS, side=64),
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
    """Coverage (0 to 1) of every face of every glyph; those of a glyph lie side by side."""

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
    return np.asarray(mask, np.float32) / 255


class _Pose(NamedTuple):
    """Where the glyphs of n images lie: the map from the image to the mask, and the centres."""

    inverse: np.ndarray
    centre: np.ndarray

    @classmethod
    def draw(
        cls,
        n: int,
        rotation: float,
        scale: tuple[float, float],
        shift: float,
        shear: float,
        generator: np.random.Generator,
    ) -> _Pose:
        angle = np.radians(generator.uniform(-rotation, rotation, n))
        cos, sin = np.cos(angle), np.sin(angle)
        turn = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
        lean = np.tile(np.eye(2), (n, 1, 1))
        lean[:, 0, 1] = generator.uniform(-shear, shear, n)
        size = generator.uniform(*scale, (n, 1, 1))
        centre = 2 * generator.uniform(-shift, shift, (n, 2))
        return cls((lean @ turn / size).astype(np.float32), centre.astype(np.float32))


def _paint(look: Look, masks: Masks, y: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    n = len(y)
    picture = _background(look, n, generator)
    for _ in range(look.clutter):
        strewn = masks.draw(generator.integers(0, len(look.glyphs), n), generator)
        pose = _Pose.draw(n, 180, (0.2, 0.35), 0.45, look.shear, generator)
        colour = generator.uniform(0.3, 1, (n, look.channels))
        _lay_over(picture, _warp(masks.coverage, strewn, pose, look.side), colour)
    pose = _Pose.draw(n, look.rotation, look.scale, look.shift, look.shear, generator)
    faces = masks.draw(y, generator)
    opacity = generator.random((n, 1, 1), np.float32) ** look.fade
    colour = _class_colour(look, y, generator)
    _lay_over(picture, opacity * _warp(masks.coverage, faces, pose, look.side), colour)
    picture += look.noise * generator.standard_normal(picture.shape, np.float32)
    return np.rint(255 * picture.clip(0, 1)).astype(np.uint8)


def _background(look: Look, n: int, generator: np.random.Generator) -> np.ndarray:
    """A dark colour that shades off in some direction: n×h×w×c."""
    ramp = np.linspace(-1, 1, look.side, dtype=np.float32)
    base = generator.uniform(0, 0.5 - look.contrast / 2, (n, 1, 1, look.channels))
    down = generator.uniform(-0.1, 0.1, (n, 1, 1, look.channels)) * ramp[:, None, None]
    across = generator.uniform(-0.1, 0.1, (n, 1, 1, look.channels)) * ramp[:, None]
    return (base + down + across).astype(np.float32)


def _class_colour(look: Look, y: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A bright colour per image, for a share of them one near the hue of the class: n×c."""
    free = generator.uniform(0.5 + look.contrast / 2, 1, (len(y), look.channels))
    hue = y / len(look.glyphs) + generator.normal(0, 0.04, len(y))
    phase = np.arange(look.channels) / 3
    tinted = 0.6 + 0.4 * np.cos(2 * np.pi * (hue[:, None] - phase))
    return np.where(generator.random((len(y), 1)) < look.tint, tinted, free)


def _lay_over(picture: np.ndarray, coverage: np.ndarray, colour: np.ndarray) -> None:
    picture += coverage[..., None] * (colour[:, None, None].astype(np.float32) - picture)


def _warp(masks: np.ndarray, rows: np.ndarray, pose: _Pose, side: int) -> np.ndarray:
    """Masks `rows` in their poses, interpolated between the four nearest pixels: n×side×side."""
    ramp = np.linspace(-1, 1, side, dtype=np.float32)
    x = (ramp - pose.centre[:, :1])[:, None, :]
    y = (ramp - pose.centre[:, 1:])[:, :, None]
    (xx, xy), (yx, yy) = pose.inverse.transpose(1, 2, 0)[..., None, None]
    column, right = _pixel_and_rest(xx * x + xy * y)
    line, down = _pixel_and_rest(yx * x + yy * y)
    pixels = masks.reshape(-1)
    flat = rows[:, None, None].astype(np.int32) * MASK**2 + line * MASK + column
    upper, lower = pixels[flat], pixels[flat + MASK]
    upper += right * (pixels[flat + 1] - upper)
    lower += right * (pixels[flat + (MASK + 1)] - lower)
    return upper + down * (lower - upper)


def _pixel_and_rest(aim: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates from -1 to 1 across a mask as whole pixels and what is left over."""
    # The rim of a mask is empty, so whatever lies outside may be read there.
    position = ((aim + 1) * (MASK / 2) - 0.5).clip(0, MASK - 1.001)
    pixel = np.floor(position)
    return pixel.astype(np.int32), position - pixel
