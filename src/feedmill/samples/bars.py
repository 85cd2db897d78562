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
_BLUE = "#4477aa"


class Histogram(NamedTuple):
    """One panel: float64[n + 1] edges and int64[n] counts. All bins are drawn with the same width."""

    name: str
    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]


def draw_histograms(histograms: Sequence[Histogram], path: str | Path) -> None:
    """Write histograms to a picture file.

    Each panel shows counts as bars, the highest count at its upper right, and three bin edges below.

    Args:
        path: Output file; its suffix selects PNG or JPEG.

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
    name = histogram.name if len(histogram.name) <= 44 else f"..{histogram.name[-42:]}"
    pen.text((left, top - 20), name, fill="#222222", font=font)
    pen.text((left + _WIDE - font.getlength(f"{most:,}"), top - 20), f"{most:,}", fill="#888888", font=font)
    x = np.round(left + np.arange(len(counts) + 1) / max(1, len(counts)) * _WIDE).astype(int)
    heights = np.round(counts / most * _HIGH).astype(int)
    for begin, end, height in zip(x[:-1].tolist(), x[1:].tolist(), heights.tolist(), strict=True):
        if height:
            pen.rectangle((begin, top + _HIGH - height, max(begin, end - 2), top + _HIGH), fill=_BLUE)
    pen.line((left, top + _HIGH, left + _WIDE, top + _HIGH), fill="#222222")
    for share in (0.0, 0.5, 1.0):
        text = f"{histogram.edges[round(share * (len(histogram.edges) - 1))]:,.4g}"
        place = left + share * _WIDE - share * font.getlength(text)
        pen.text((place, top + _HIGH + 4), text, fill="#222222", font=font)
