"""What all pictures share: colours, sizes, files."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pfl_bench.base import plot_style
from pfl_bench.base.errors import UserError

# How a dichromat sees linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868],
                            [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968],
                              [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779],
                            [-0.078411, 0.930809, 0.147602],
                            [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
CLEARLY_DIFFERENT = 10.0


def lab(color: str, sight: np.ndarray) -> np.ndarray:
    """CIELAB under D65 of what an eye makes of a colour."""
    srgb = np.array([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(sight @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHTS)
def test_every_eye_can_tell_the_colours_apart_and_see_them_on_white(sight: str) -> None:
    seen = {color: lab(color, SIGHTS[sight]) for color in (*plot_style.COLOURS, "#ffffff")}
    for one, other in combinations(seen, 2):
        distance = np.linalg.norm(seen[one] - seen[other])
        assert distance > CLEARLY_DIFFERENT, (one, other, distance)


def test_no_two_of_28_lines_look_alike_even_in_grey() -> None:
    styles = [plot_style.line_style(k) for k in range(28)]
    assert len({tuple(style.values()) for style in styles}) == 28
    without_colour = {(s["marker"], s["linestyle"]) for s in styles}
    assert len(without_colour) == len(plot_style.MARKERS) * len(plot_style.DASHES)


def _draw(folder: Path, kind: str) -> Path:
    path = folder / f"a.{kind}"
    with plot_style.drawing("a", plot_style.PAPER):
        figure, (axes,) = plot_style.blank(plot_style.COLUMN, 2.0)
        axes.plot([1, 2], [3, 4], label="line")
        axes.legend()
        plot_style.save(figure, path, dpi=300)
    return path


@pytest.mark.parametrize("kind", plot_style.FORMATS)
def test_two_drawings_of_one_thing_are_the_same_bytes(tmp_path: Path, kind: str) -> None:
    one, two = (_draw(tmp_path / name, kind).read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_figure_is_as_wide_as_a_column(tmp_path: Path) -> None:
    with Image.open(_draw(tmp_path, "png")) as image:
        assert image.width == int(plot_style.COLUMN * 300)


def test_a_pdf_has_no_type_3_fonts(tmp_path: Path) -> None:
    content = _draw(tmp_path, "pdf").read_bytes()
    assert b"/Type3" not in content.replace(b" ", b"") and b"/FontFile2" in content


def test_drawing_leaves_the_users_settings_as_they_were(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    _draw(tmp_path, "png")
    assert dict(matplotlib.rcParams) == before


def test_a_format_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="unknown picture format 'pgn'; did you mean 'png'"):
        plot_style.picture_format(Path("a.pgn"))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*file/a\.png"):
        _draw(tmp_path / "file", "png")
