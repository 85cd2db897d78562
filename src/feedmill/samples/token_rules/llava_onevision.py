"""Images of LLaVA-OneVision: as of LLaVA-NeXT, and shrunk to a most; several images in a sample have one tile each.

A frame of a video is a tile, of which 2 x 2 patches are one token. Source: ``LlavaOnevisionProcessor`` and
``LlavaOnevisionVideoProcessor`` of transformers.
"""

from __future__ import annotations

import re

import numpy as np

from feedmill.errors import ConfigError
from feedmill.samples.token_rules.frames import Sampling
from feedmill.samples.token_rules.llava_next import Grids, best_resolution, pinpoints, unpadded
from feedmill.samples.token_rules.rule import Bools, Folder, Int64s, Sizes, TokenRule, Vision, in_pictures

_GRIDS: Grids = tuple((384 * rows, 384 * columns) for rows in range(1, 7) for columns in range(1, 7))


class LlavaOnevisionImages(TokenRule):
    """Images of ``LlavaOnevisionProcessor``."""

    kind = "image"
    classes = ("LlavaOnevisionImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.image
        assert given is not None
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
        given = folder.video
        assert given is not None
        self.sampling = Sampling(given, samples=False)
        self.patches = int(folder.processor.integer("num_image_tokens", None) ** 0.5)
        self.placeholder = folder.token("video_token", "<video>")

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        return self.sampling.refusals(sizes)

    def count(self, sizes: Sizes) -> Int64s:
        return self.sampling.count(sizes) * (-(-self.patches // 2)) ** 2 + 1

    def vision(self, sizes: Sizes) -> Vision:
        return in_pictures(self.sampling.count(sizes), self.patches**2)
