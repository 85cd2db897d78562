"""Images of LLaVA-NeXT: tiles of the best of some resolutions without its padding, a newline a row, and an overview.

Source: ``select_best_resolution`` and ``LlavaNextProcessor`` of transformers.

Images of LLaVA-OneVision: as of LLaVA-NeXT, and shrunk to a most; several images in a sample have one tile each.

A frame of a video is a tile, of which 2 x 2 patches are one token. Source: ``LlavaOnevisionProcessor`` and
``LlavaOnevisionVideoProcessor`` of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.samples.token_rules.frames import Sampling
from feedmill.samples.token_rules.rule import Bools, Folder, Int64s, Parameters, Sizes, TokenRule, Vision, in_pictures

Grids = Sequence[tuple[int, int]]
NEXT: Grids = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


def pinpoints(given: Parameters, default: Grids) -> Grids:
    """Return the resolutions as (height, width) in pixels. Raises `ConfigError` unless they are pairs of numbers."""
    found: Any = given.get("image_grid_pinpoints", default)
    try:
        pairs = [(int(height), int(width)) for height, width in found]
    except (TypeError, ValueError):
        pairs = []
    if not pairs or min(map(min, pairs)) < 1:
        raise ConfigError(
            f"image_grid_pinpoints must be pairs of height and width: found {str(found)[:60]}",
            file=given.where,
            kind="bad-processor",
        )
    return tuple(pairs)


def best_resolution(height: Int64s, width: Int64s, grids: Grids) -> tuple[Int64s, Int64s]:
    """Return the resolution with the most effective pixels, then the least waste, then the first of the list."""
    most, least = np.full(height.shape, -1, np.int64), np.zeros(height.shape, np.int64)
    tall, wide = np.zeros_like(height), np.zeros_like(height)
    for grid_height, grid_width in grids:
        scale = np.minimum(grid_width / width, grid_height / height)
        pixels = np.minimum((width * scale).astype(np.int64) * (height * scale).astype(np.int64), width * height)
        waste = grid_height * grid_width - pixels
        take = (pixels > most) | ((pixels == most) & (waste < least))
        most, least = np.where(take, pixels, most), np.where(take, waste, least)
        tall, wide = np.where(take, grid_height, tall), np.where(take, grid_width, wide)
    return tall, wide


def unpadded(height: Int64s, width: Int64s, tall: Int64s, wide: Int64s) -> tuple[Int64s, Int64s]:
    """Return rows and columns of patches without those of the padding."""
    flat = (width / height) > (wide / tall)
    rows = np.round(height * (wide / width), 7).astype(np.int64)
    columns = np.round(width * (tall / height), 7).astype(np.int64)
    return (
        np.where(flat, tall - (tall - rows) // 2 * 2, tall),
        np.where(flat, wide, wide - (wide - columns) // 2 * 2),
    )


class LlavaNextImages(TokenRule):
    """Images of ``LlavaNextProcessor``."""

    kind = "image"
    classes = ("LlavaNextImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("image")
        given.must("do_resize", True, True, "the rule is for resized images")
        given.must("do_center_crop", True, True, "the rule is for cropped images")
        tall, wide = given.edges("crop_size", {"height": 224, "width": 224}, "height", "width")
        if tall != wide:
            raise ConfigError(f"crop_size must be square: found {tall} x {wide}", file=given.where, kind="unsupported")
        self.side = tall
        self.patches = self.side // folder.processor.integer("patch_size", None)
        strategy = folder.processor.choice("vision_feature_select_strategy", None, ("default", "full"))
        self.extra = folder.processor.integer("num_additional_image_tokens", 0, 0) - (strategy == "default")
        self.grids = pinpoints(given, NEXT)
        self.placeholder = folder.token("image_token", "<image>")

    def count(self, sizes: Sizes) -> Int64s:
        tall, wide = best_resolution(sizes.height, sizes.width, self.grids)
        rows, columns = unpadded(
            sizes.height, sizes.width, self.patches * (tall // self.side), self.patches * (wide // self.side)
        )
        return rows * columns + rows + self.patches**2 + self.extra

    def vision(self, sizes: Sizes) -> Vision:
        tall, wide = best_resolution(sizes.height, sizes.width, self.grids)
        return in_pictures((tall // self.side) * (wide // self.side) + 1, self.patches**2)


_GRIDS: Grids = tuple((384 * rows, 384 * columns) for rows in range(1, 7) for columns in range(1, 7))


class LlavaOnevisionImages(TokenRule):
    """Images of ``LlavaOnevisionProcessor``."""

    kind = "image"
    classes = ("LlavaOnevisionImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("image")
        given.must("do_resize", True, True, "the rule is for resized images")
        self.side, _ = given.edges("size", {"height": 384, "width": 384}, "height", "width")
        tokens = folder.processor.integer("num_image_tokens", None)
        self.patches = int(tokens**0.5)
        self.tile = tokens
        strategy = folder.processor.choice("vision_feature_select_strategy", None, ("default", "full"))
        self.extra = -(strategy == "default")
        aspect = folder.processor.text("vision_aspect_ratio", "anyres_max_9")
        most = re.fullmatch(r"anyres_max_(\d+)", aspect)
        if most is None:
            raise ConfigError(
                f"vision_aspect_ratio must be anyres_max_N: found {aspect!r}",
                file=folder.processor.where,
                kind="unsupported",
                fix="Count this dataset with --measure.",
            )
        self.most = int(most[1])
        self.grids = pinpoints(given, _GRIDS)
        self.placeholder = folder.token("image_token", "<image>")

    def count(self, sizes: Sizes) -> Int64s:
        tall, wide = best_resolution(sizes.height, sizes.width, self.grids)
        rows, columns = unpadded(
            sizes.height, sizes.width, self.patches * (tall // self.side), self.patches * (wide // self.side)
        )
        ratio = np.sqrt(rows * columns / (self.most * self.patches**2))
        large = ratio > 1.1
        rows = np.where(large, rows // ratio, rows).astype(np.int64)
        columns = np.where(large, columns // ratio, columns).astype(np.int64)
        alone = rows * columns + rows + self.tile
        return np.where(sizes.together > 1, self.tile + 1, alone) + self.extra

    def vision(self, sizes: Sizes) -> Vision:
        tall, wide = best_resolution(sizes.height, sizes.width, self.grids)
        tiles = (tall // self.side) * (wide // self.side) + 1
        return in_pictures(np.where(sizes.together > 1, 1, tiles), self.patches**2)


class LlavaOnevisionVideos(TokenRule):
    """Videos of ``LlavaOnevisionProcessor``."""

    kind = "video"
    classes = ("LlavaOnevisionVideoProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("video")
        self.sampling = Sampling(given, samples=False)
        self.patches = int(folder.processor.integer("num_image_tokens", None) ** 0.5)
        self.placeholder = folder.token("video_token", "<video>")

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        return self.sampling.refusals(sizes)

    def count(self, sizes: Sizes) -> Int64s:
        return self.sampling.count(sizes) * (-(-self.patches // 2)) ** 2 + 1

    def vision(self, sizes: Sizes) -> Vision:
        return in_pictures(self.sampling.count(sizes), self.patches**2)
