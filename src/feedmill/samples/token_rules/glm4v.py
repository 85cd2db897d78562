"""Images of GLM-4V: as of Qwen, but the limits count the pixels of the frames that an image is repeated to.

Source: ``Glm4vImageProcessor`` of transformers.
"""

from __future__ import annotations

import numpy as np

from feedmill.samples.token_rules.qwen import enlarged, volume_resized
from feedmill.samples.token_rules.rule import Bools, Folder, Int64s, Sizes, TokenRule, Vision, in_pictures, ratio_above


class Glm4vImages(TokenRule):
    """Images of ``Glm4vImageProcessor``."""

    kind = "image"

    def __init__(self, folder: Folder) -> None:
        given = folder.image
        assert given is not None
        given.must("do_resize", True, True, "the rule is for resized images")
        self.patch, self.merge = given.integer("patch_size", 14), given.integer("merge_size", 2)
        self.temporal = given.integer("temporal_patch_size", 2)
        edges = {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000}
        self.low, self.high = given.edges("size", edges, "shortest_edge", "longest_edge")
        self.placeholder = folder.token("image_token", "<|image|>")

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        height, width = enlarged(sizes.height, sizes.width, self.patch * self.merge)
        return {"one side is more than 200 times the other": ratio_above(Sizes(height=height, width=width), 200)}

    def count(self, sizes: Sizes) -> Int64s:
        frames = np.full(len(sizes), self.temporal)
        factor = self.patch * self.merge
        height, width = volume_resized(frames, sizes.height, sizes.width, factor, self.low, self.high, self.temporal)
        return (height // self.patch) * (width // self.patch) // self.merge**2

    def vision(self, sizes: Sizes) -> Vision:
        return in_pictures(1, self.count(sizes) * self.merge**2)
