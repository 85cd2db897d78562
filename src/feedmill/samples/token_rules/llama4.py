"""Images of Llama 4: tiles of the canvas that fits best, with a mark between tiles and after rows, and an overview.

Source: ``get_best_fit`` of ``Llama4ImageProcessor``, and ``Llama4Processor`` of transformers. Scales are float32 there,
and ties between canvases depend on it.
"""

from __future__ import annotations

import numpy as np

from feedmill.errors import ConfigError
from feedmill.samples.token_rules.rule import Folder, Int64s, Sizes, TokenRule, Vision, in_pictures

_AT_ONCE = 1 << 16


def canvases(most: int) -> list[tuple[int, int]]:
    """Return (rows, columns) of tiles in the processor's order: by ratio, as it occurs from `most` tiles down."""
    groups: dict[float, list[tuple[int, int]]] = {}
    for tiles in range(most, 0, -1):
        for rows in (n for n in range(1, tiles + 1) if tiles % n == 0):
            groups.setdefault(rows / (tiles // rows), []).append((rows, tiles // rows))
    return [pair for group in groups.values() for pair in group]


class Llama4Images(TokenRule):
    """Images of ``Llama4Processor``."""

    kind = "image"
    classes = ("Llama4ImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.image
        assert given is not None
        given.must("resize_to_max_canvas", False, False, "the rule is for the smallest canvas")
        self.side, other = given.edges("size", {"height": 336, "width": 336}, "height", "width")
        if self.side != other:
            raise ConfigError(f"size must be square: found {self.side} x {other}", file=given.where, kind="unsupported")
        self.most = given.integer("max_patches", 16)
        patch = folder.processor.integer("patch_size", 14)
        ratio = folder.processor.number("pixel_shuffle_ratio", 0.5)
        self.patches = (self.side // patch) ** 2
        self.length = self.patches // round(1 / ratio**2)
        self.placeholder = folder.processor.text("fake_image_token", "<|image|>")

    @property
    def texts(self) -> tuple[str, ...]:
        return ("<|image_start|><|image|><|patch|><|image_end|>",)

    def count(self, sizes: Sizes) -> Int64s:
        rows, columns = self._grid(sizes)
        tiles = rows * columns
        return np.where(tiles > 1, tiles * self.length + rows * (columns - 1) + rows, 0) + self.length + 3

    def vision(self, sizes: Sizes) -> Vision:
        rows, columns = self._grid(sizes)
        return in_pictures(np.where(rows * columns > 1, rows * columns + 1, 1), self.patches)

    def _grid(self, sizes: Sizes) -> tuple[Int64s, Int64s]:
        """Return rows and columns of tiles, int64[n] both."""
        out = np.empty((2, len(sizes)), np.int64)
        for start in range(0, len(sizes), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            out[:, part] = self._some(sizes.height[part], sizes.width[part])
        return out[0], out[1]

    def _some(self, height: Int64s, width: Int64s) -> tuple[Int64s, Int64s]:
        tall, wide = np.array(canvases(self.most), np.int64).T * self.side
        scale = np.minimum(
            tall.astype(np.float32) / height.astype(np.float32)[:, None],
            wide.astype(np.float32) / width.astype(np.float32)[:, None],
        )
        enlarging = np.where(scale >= 1, scale, np.inf).min(1)
        shrinking = np.where(scale < 1, scale, -np.inf).max(1)
        chosen = np.where(np.isfinite(enlarging), enlarging, shrinking)
        area = np.where(scale == chosen[:, None], tall * wide, np.iinfo(np.int64).max)
        best = area.argmin(1)
        return tall[best] // self.side, wide[best] // self.side
