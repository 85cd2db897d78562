"""Images of Kimi K2.5: never scaled up, and padded to whole groups of patches.

Source: ``navit_resize`` of ``Kimi_K25ImageProcessor`` of transformers.
"""

from __future__ import annotations

import numpy as np

from feedmill.errors import ConfigError
from feedmill.samples.token_rules.rule import Folder, Int64s, Sizes, TokenRule, Vision, in_pictures


class KimiImages(TokenRule):
    """Images of ``Kimi_K25ImageProcessor``."""

    kind = "image"
    classes = ("Kimi_K25ImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.image
        assert given is not None
        given.must("do_resize", True, True, "the rule is for resized images")
        self.patch, self.merge = given.integer("patch_size", 14), given.integer("merge_size", 2)
        self.most = given.integer("max_patches", 16_384)
        self.side, other = given.edges("size", {"max_height": 512, "max_width": 512}, "max_height", "max_width")
        if self.side != other:
            raise ConfigError(
                f"size.max_height and size.max_width must be equal: found {self.side} and {other}",
                file=given.where,
                kind="bad-processor",
            )
        self.placeholder = folder.token("image_token", "<|media_pad|>")

    def count(self, sizes: Sizes) -> Int64s:
        height, width, patch = sizes.height, sizes.width, self.patch
        patches = np.maximum(1.0, height // patch) * np.maximum(1.0, width // patch)
        longest = self.side * patch
        scale = np.minimum(np.minimum(1.0, np.sqrt(self.most / patches)), np.minimum(longest / height, longest / width))
        factor = self.merge * patch
        tall = np.minimum(np.maximum(1, (height * scale).astype(np.int64)), longest)
        wide = np.minimum(np.maximum(1, (width * scale).astype(np.int64)), longest)
        return np.asarray(-(-tall // factor) * -(-wide // factor))

    def vision(self, sizes: Sizes) -> Vision:
        return in_pictures(1, self.count(sizes) * self.merge**2)
