"""Images in tiles of the grid with the closest ratio: InternVL.

Source: ``GotOcr2ImageProcessor`` (``get_optimal_tiled_canvas``) and ``InternVLProcessor`` of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feedmill.errors import ConfigError
from feedmill.samples.token_rules.rule import Folder, Int64s, Sizes, TokenRule


def closest_grid(height: Int64s, width: Int64s, side: int, grids: Sequence[tuple[int, int]]) -> tuple[Int64s, Int64s]:
    """Return (columns, rows) of the grid whose ratio is closest; a later one as close if the image is large enough."""
    ratio, area = width / height, width * height
    best = np.full(height.shape, np.inf)
    columns, rows = np.ones_like(height), np.ones_like(height)
    for wide, tall in grids:
        distance = np.abs(ratio - wide / tall)
        take = (distance < best) | ((distance == best) & (area > 0.5 * side * side * wide * tall))
        best = np.minimum(best, distance)
        columns, rows = np.where(take, wide, columns), np.where(take, tall, rows)
    return columns, rows


class InternVLImages(TokenRule):
    """Images of ``InternVLProcessor``, which crops to tiles unless it is called with ``crop_to_patches=False``."""

    kind = "image"
    always = {"crop_to_patches": True}  # noqa: RUF012 - never changed

    def __init__(self, folder: Folder) -> None:
        given = folder.image
        assert given is not None
        self.side, other = given.edges("size", {"height": 384, "width": 384}, "height", "width")
        if self.side != other:
            raise ConfigError(f"size must be square: found {self.side} x {other}", file=given.where, kind="unsupported")
        self.crops = given.flag("crop_to_patches", True)
        least, most = given.integer("min_patches", 1), given.integer("max_patches", 12)
        grids = ((wide, tall) for wide in range(1, most + 1) for tall in range(1, most + 1))
        self.grids = tuple(sorted((g for g in grids if least <= g[0] * g[1] <= most), key=lambda g: g[0] * g[1]))
        self.length = folder.processor.integer("image_seq_length", 256)
        self.start, self.end = folder.token("start_image_token", None), folder.token("end_image_token", None)
        self.placeholder = folder.token("context_image_token", None)

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"{self.start}{self.placeholder}{self.end}",)

    def count(self, sizes: Sizes) -> Int64s:
        if not self.crops:
            return np.full(len(sizes), self.length + 2)
        columns, rows = closest_grid(sizes.height, sizes.width, self.side, self.grids)
        tiles = columns * rows
        return 2 + self.length * np.where(tiles > 1, tiles + 1, 1)
