"""Images of LLaVA 1.5: the same number of tokens for each, as all are cropped to one size.

Source: ``LlavaProcessor`` of transformers.
"""

from __future__ import annotations

import numpy as np

from feedmill.samples.token_rules.rule import Folder, Int64s, Sizes, TokenRule, Vision, in_pictures


class LlavaImages(TokenRule):
    """Images of ``LlavaProcessor``."""

    kind = "image"

    def __init__(self, folder: Folder) -> None:
        given = folder.image
        assert given is not None
        given.must("do_center_crop", True, True, "the rule is for cropped images")
        patch = folder.processor.integer("patch_size", None)
        crop = {"height": 224, "width": 224}
        height, width = given.edges("crop_size", crop, "height", "width")
        strategy = folder.processor.choice("vision_feature_select_strategy", None, ("default", "full"))
        extra = folder.processor.integer("num_additional_image_tokens", 0, 0)
        self.patches = (height // patch) * (width // patch)
        self.each = self.patches + extra - (strategy == "default")
        self.placeholder = folder.token("image_token", "<image>")

    def count(self, sizes: Sizes) -> Int64s:
        return np.full(len(sizes), self.each)

    def vision(self, sizes: Sizes) -> Vision:
        return in_pictures(np.ones(len(sizes)), self.patches)
