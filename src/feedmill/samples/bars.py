"""Draw histograms as a picture with one small panel per distribution, three in a row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.samples.sheet import need_pillow, save_picture

_WIDE, _HIGH, _GAP, _ROW = 360, 150, 46, 3
_MOST = 300
_BLUE, _INK, _QUIET = "#1a6dd7", "#1b1c1e", "#595b60"  # as in the pages of `serve`


class Histogram(NamedTuple):
    """One panel: float64[n + 1] edges and int64[n] counts. All bins are drawn with the same width.

    The panel says so if that is a logarithmic scale.
    """

    name: str
    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]


def draw_histograms(histograms: Sequence[Histogram], path: str | Path) -> None:
    """Write histograms to a picture file.

    Each panel shows counts as bars, the count of the highest bar at its upper right, and three bin edges below.

    Args:
        path: Output file, a path or URL; its suffix selects PNG or JPEG.

    Raises:
        MissingExtra: Pillow is not installed.
        ConfigError: The suffix is not that of a picture, or the number of histograms is not 1 to 300.
        NotFound, StorageError: The picture cannot be written.
    """
    need_pillow()
    from PIL import Image, ImageDraw, ImageFont

    if not 0 < len(histograms) <= _MOST:
        raise ConfigError(
            f"a picture must have 1 to {_MOST} histograms: found {len(histograms)}", fix="Select attributes by name."
        )
    rows = -(-len(histograms) // _ROW)
    columns = min(_ROW, len(histograms))
    size = (_GAP + columns * (_WIDE + _GAP), _GAP + rows * (_HIGH + 2 * _GAP))
    image = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    for number, histogram in enumerate(histograms):
        left = _GAP + number % _ROW * (_WIDE + _GAP)
        top = _GAP + number // _ROW * (_HIGH + 2 * _GAP)
        _panel(pen, font, left, top, histogram)
    save_picture(image, path)


def _panel(pen: Any, font: Any, left: int, top: int, histogram: Histogram) -> None:
    counts = histogram.counts
    most = max(1, int(counts.max(initial=0)))
    name = histogram.name if len(histogram.name) <= 26 else f"..{histogram.name[-24:]}"
    name = f"{name}, log scale" if _is_logarithmic(histogram.edges) else name
    highest = f"highest bar {most:,}"
    pen.text((left, top - 20), name, fill=_INK, font=font)
    pen.text((left + _WIDE - font.getlength(highest), top - 20), highest, fill=_QUIET, font=font)
    x = np.round(left + np.arange(len(counts) + 1) / max(1, len(counts)) * _WIDE).astype(int)
    heights = np.round(counts / most * _HIGH).astype(int)
    for begin, end, height in zip(x[:-1].tolist(), x[1:].tolist(), heights.tolist(), strict=True):
        if height:
            pen.rectangle((begin, top + _HIGH - height, max(begin, end - 2), top + _HIGH), fill=_BLUE)
    pen.line((left, top + _HIGH, left + _WIDE, top + _HIGH), fill=_INK)
    for share in (0.0, 0.5, 1.0):
        text = _short(float(histogram.edges[round(share * (len(histogram.edges) - 1))]))
        place = left + share * _WIDE - share * font.getlength(text)
        pen.text((place, top + _HIGH + 4), text, fill=_INK, font=font)


def _is_logarithmic(edges: npt.NDArray[np.float64]) -> bool:
    widths = np.diff(edges)
    return len(widths) > 1 and bool(widths.max() > 1.5 * widths.min())


def _short(value: float) -> str:
    """Return a number with four digits, or as many as it has before its point."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:,.4g}"
