"""Pictures of numbers: the mixture of a plan over time (shares and epochs of each source), and histograms in a grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.jobs.amounts import short_number
from feedmill.samples.sheet import need_pillow, save_picture

_COLORS = (
    "#1a6dd7",
    "#c77343",
    "#007254",
    "#ab4884",
    "#7328a9",
    "#776d00",
    "#189ca2",
    "#6c1e25",
    "#1d2d72",
    "#435a16",
)
"""Colors of the sources in their order, as in the pages of `serve`."""
_OTHERS = "#85878d"
_WIDTH, _LEFT, _TOP, _PANEL, _GAP, _LEGEND = 1000, 70, 40, 240, 70, 22
_ENDS, _LINE = 150, 15
"""Width of the labels at the ends of bands and lines, and their least distance."""
_PLOT = _WIDTH - _LEFT - _ENDS

Floats = npt.NDArray[np.float64]


def draw_mixture(
    names: Sequence[str],
    ends: npt.NDArray[np.int64],
    shares: Floats,
    epochs: Floats,
    path: str | Path,
    *,
    unit: str = "samples",
    of: str = "samples",
) -> None:
    """Write the picture: stacked shares at the top, epochs as lines below, and a legend with the final values.

    Args:
        names: Names of the sources. If there are more than ten, the smallest are drawn as one.
        ends: int64[windows], the position after each window.
        shares: float64[windows, sources], fractions of 1.
        epochs: float64[windows, sources], passes over the source so far.
        path: Output file, a path or URL; its suffix selects PNG or JPEG.
        unit: what the positions count.
        of: what the shares are of.

    Raises:
        MissingExtra: Pillow is not installed.
        ConfigError: The suffix of `path` is not that of a picture.
        NotFound, StorageError: The picture cannot be written.
    """
    need_pillow()
    from PIL import Image, ImageDraw, ImageFont

    names, shares, epochs, joined = _largest(list(names), shares, epochs)
    colors = [*_COLORS[: len(names) - joined], *([_OTHERS] if joined else [])]
    height = _TOP + 2 * (_PANEL + _GAP) + _LEGEND * -(-len(names) // 3)
    image = Image.new("RGB", (_WIDTH, height), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    edges = np.concatenate(([0], ends)).astype(np.float64)
    x = _LEFT + edges / edges[-1] * _PLOT

    top = _TOP
    for number, color in enumerate(colors):
        low = shares[:, :number].sum(axis=1)
        high = low + shares[:, number]
        _area(pen, x, top + _PANEL * (1 - high), top + _PANEL * (1 - low), color)
    last = shares[-1] if len(shares) else np.zeros(len(names))
    middle = 1 - (np.cumsum(last) - last / 2)
    _labels(pen, font, top, names, last, middle, [f"{100 * share:.0f} %" for share in last.tolist()], colors)
    _axes(
        pen,
        font,
        top,
        f"{int(ends[-1]):,} {unit}",
        int(ends[-1]),
        f"Share of the {of}",
        [(f, f"{100 * f:.0f} %") for f in (0, 0.25, 0.5, 0.75, 1)],
    )

    top += _PANEL + _GAP
    most = _round_up(float(epochs.max()))
    for number, color in enumerate(colors):
        if joined and number == len(names) - 1:
            continue  # the combined small sources have no common number of epochs
        y = top + _PANEL * (1 - np.concatenate(([0.0], epochs[:, number])) / most)
        pen.line(list(zip(x.tolist(), y.tolist(), strict=True)), fill=color, width=3)
    ticks = [(i / 4, short_number(most * i / 4)) for i in range(5)]
    own = len(names) - joined
    heights = 1 - epochs[-1, :own] / most
    said = [short_number(value) for value in epochs[-1, :own].tolist()]
    _labels(pen, font, top, names[:own], np.ones(own), heights, said, colors)
    title = "Epochs so far: how often each sample of a source was used"
    _axes(pen, font, top, f"{int(ends[-1]):,} {unit}", int(ends[-1]), title, ticks)

    top += _PANEL + _GAP - 15
    sizes = np.diff(edges) @ shares / edges[-1]
    for number, (name, color) in enumerate(zip(names, colors, strict=True)):
        left, line = _LEFT + number % 3 * (_PLOT // 3), top + number // 3 * _LEGEND
        pen.rectangle((left, line + 2, left + 12, line + 14), fill=color)
        times = "" if joined and number == len(names) - 1 else f", {short_number(epochs[-1, number])} epochs"
        words = f"{name if len(name) <= 22 else name[:20] + '..'}: {sizes[number]:.1%}{times}"
        pen.text((left + 18, line), words, fill="#222222", font=font)
    save_picture(image, path)


def _largest(names: list[str], shares: Floats, epochs: Floats) -> tuple[list[str], Floats, Floats, bool]:
    """Merge all but the largest ten sources into one. The last value is whether any were merged."""
    if len(names) <= len(_COLORS):
        return names, shares, epochs, False
    order = np.argsort(-shares.sum(axis=0), kind="stable")
    kept = np.sort(order[: len(_COLORS)])
    rest = order[len(_COLORS) :]
    together = shares[:, rest].sum(axis=1, keepdims=True)
    return (
        [*(names[i] for i in kept), f"{len(rest)} others"],
        np.concatenate((shares[:, kept], together), axis=1),
        np.concatenate((epochs[:, kept], np.zeros_like(together)), axis=1),
        True,
    )


def _area(pen: Any, x: Floats, high: Floats, low: Floats, color: str) -> None:
    """Draw one band as a rectangle for each window, since a share belongs to a window, not to a point in time."""
    for left, right, upper, lower in zip(x[:-1].tolist(), x[1:].tolist(), high.tolist(), low.tolist(), strict=True):
        if lower - upper > 0.01:
            pen.rectangle((left, upper, right, lower), fill=color)


def _labels(
    pen: Any,
    font: Any,
    top: float,
    names: Sequence[str],
    shown: Floats,
    heights: Floats,
    values: Sequence[str],
    colors: Sequence[str],
) -> None:
    """Draw names and values right of the plot, at heights in [0, 1] from its top, pushed apart; those of size 0 not."""
    order = [n for n in np.argsort(heights, kind="stable").tolist() if shown[n] > 0]
    at, places = -float(_LINE), list[float]()
    for number in order:
        at = max(float(heights[number]) * _PANEL - _LINE / 2, at + _LINE)
        places.append(at)
    limit = _PANEL - _LINE / 2
    for number in reversed(range(len(order))):
        places[number] = min(places[number], limit)
        limit = places[number] - _LINE
    for number, place in zip(order, places, strict=True):
        y, name = top + place, names[number]
        pen.rectangle((_LEFT + _PLOT + 8, y + 4, _LEFT + _PLOT + 15, y + 11), fill=colors[number])
        text = f"{name if len(name) <= 13 else name[:12] + '…'} {values[number]}"
        pen.text((_LEFT + _PLOT + 20, y), text, fill="#222222", font=font)


def _axes(
    pen: Any, font: Any, top: float, end: str, total: int, title: str, ticks: Sequence[tuple[float, str]]
) -> None:
    """Draw the frame, the title, the tick labels on the left (heights in [0, 1]), and the positions below."""
    pen.text((_LEFT, top - 22), title, fill="#222222", font=font)
    for height, text in ticks:
        y = top + _PANEL * (1 - height)
        pen.line((_LEFT - 4, y, _LEFT, y), fill="#222222")
        pen.text((_LEFT - 8 - font.getlength(text), y - 8), text, fill="#222222", font=font)
    for part in range(6):
        x, text = _LEFT + _PLOT * part / 5, f"{total * part // 5:,}" if part < 5 else end
        pen.line((x, top + _PANEL, x, top + _PANEL + 4), fill="#222222")
        pen.text((min(x - font.getlength(text) / 2, _WIDTH - 6 - font.getlength(text)), top + _PANEL + 6), text,
                 fill="#222222", font=font)  # fmt: skip
    pen.rectangle((_LEFT, top, _LEFT + _PLOT, top + _PANEL), outline="#222222")


def _round_up(value: float) -> float:
    """Round up to 1, 2, 4, 5 or 8 times a power of ten, so that quarters of the result are short numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * 0.999999))


_WIDE, _HIGH, _SPACE, _ROW = 360, 150, 46, 3
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
    size = (_SPACE + columns * (_WIDE + _SPACE), _SPACE + rows * (_HIGH + 2 * _SPACE))
    image = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    for number, histogram in enumerate(histograms):
        left = _SPACE + number % _ROW * (_WIDE + _SPACE)
        top = _SPACE + number // _ROW * (_HIGH + 2 * _SPACE)
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
