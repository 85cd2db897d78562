"""Images and sound of Phi-4-multimodal: tiles without those of the padding, an overview; sound by mel frames.

Source: ``Phi4MultimodalImageProcessor`` and ``Phi4MultimodalFeatureExtractor`` of transformers.
"""

from __future__ import annotations

import numpy as np

from feedmill.errors import ConfigError
from feedmill.samples.token_rules.rule import Bools, Folder, Int64s, Sizes, TokenRule, Vision, in_pictures
from feedmill.samples.token_rules.tiles import closest_grid


class Phi4Images(TokenRule):
    """Images of ``Phi4MultimodalProcessor``."""

    kind = "image"
    classes = ("Phi4MultimodalImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("image")
        self.side, other = given.edges("size", {"height": 448, "width": 448}, "height", "width")
        if self.side != other:
            raise ConfigError(f"size must be square: found {self.side} x {other}", file=given.where, kind="unsupported")
        self.patch, self.most = given.integer("patch_size", 14), given.integer("dynamic_hd", 36)
        # Of two grids with one product, the processor takes what a set of Python yields last: the order of a set of
        # pairs of small numbers is the same in every process, but only if it is built in the same way.
        grids = {
            (wide, tall)
            for product in range(1, self.most + 1)
            for wide in range(1, product + 1)
            for tall in range(1, product + 1)
            if wide * tall <= self.most and wide * tall >= 1
        }
        self.grids = tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))
        self.placeholder = folder.token("image_token", None)

    def _canvas(self, sizes: Sizes) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return columns and rows of tiles, and width and height of the picture in them."""
        columns, rows = -(-sizes.width // self.side), -(-sizes.height // self.side)
        many = columns * rows > self.most
        if many.any():
            wide, tall = closest_grid(sizes.height, sizes.width, self.side, self.grids)
            columns, rows = np.where(many, wide, columns), np.where(many, tall, rows)
        by_width, by_height = self.side * columns / sizes.width, self.side * rows / sizes.height
        flat = by_width < by_height
        height = np.where(flat, (sizes.height * by_width).astype(np.int64), self.side * rows)
        width = np.where(flat, self.side * columns, (sizes.width * by_height).astype(np.int64))
        return columns, rows, width, height

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        _, _, width, height = self._canvas(sizes)
        return {"it is too thin: one side becomes less than 10 pixels": np.minimum(width, height) < 10}

    def count(self, sizes: Sizes) -> Int64s:
        columns, rows, width, height = self._canvas(sizes)
        patches = self.side // self.patch
        down = -(-(patches * rows - (self.side * rows - height) // self.patch) // 2)
        across = -(-(patches * columns - (self.side * columns - width) // self.patch) // 2)
        return np.asarray(256 + 1 + down * across + down + 16)

    def vision(self, sizes: Sizes) -> Vision:
        columns, rows, _, _ = self._canvas(sizes)
        return in_pictures(columns * rows + 1, (self.side // self.patch) ** 2)


class Phi4Audio(TokenRule):
    """Sound of ``Phi4MultimodalProcessor``."""

    kind = "audio"
    classes = ("Phi4MultimodalFeatureExtractor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("audio")
        self.rate = given.integer("sampling_rate", 16_000)
        self.window, self.hop = given.integer("win_length", 400), given.integer("hop_length", 160)
        self.compression = given.integer("audio_compression_rate", 8)
        self.downsampling = given.integer("audio_downsample_rate", 1)
        self.stride = given.integer("audio_feat_stride", 1)
        self.placeholder = folder.token("audio_token", None)

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        return {"it is shorter than a frame": sizes.samples < self.window}

    def count(self, sizes: Sizes) -> Int64s:
        frames = ((sizes.samples - self.window) // self.hop + 1) * self.stride
        compressed = -(-frames // self.compression)
        return -(-compressed // self.downsampling)
