"""Images of any size that become the same number of tokens: LLaVA 1.5, DeepSeek-VL, and Llama 3.2 Vision.

Source: ``LlavaProcessor``, ``DeepseekVLProcessor``, ``DeepseekVLHybridProcessor`` and ``MllamaProcessor`` of
transformers.
"""

from __future__ import annotations

import numpy as np

from feedmill.samples.token_rules.rule import Folder, Int64s, Sizes, TokenRule, Vision, in_pictures


class _Fixed(TokenRule):
    """A number of tokens for each image.

    Attributes:
        each: the tokens.
    """

    kind = "image"
    each: int

    def count(self, sizes: Sizes) -> Int64s:
        return np.full(len(sizes), self.each)


class LlavaImages(_Fixed):
    """Images of ``LlavaProcessor``, which are cropped, or resized by ``SiglipImageProcessor``."""

    classes = ("CLIPImageProcessor", "LlavaImageProcessor", "SiglipImageProcessor")

    def __init__(self, folder: Folder) -> None:
        given = folder.of("image")
        patch = folder.processor.integer("patch_size", None)
        if given.made_by == "SiglipImageProcessor":
            given.must("do_resize", True, True, "the rule is for resized images")
            given.must("do_center_crop", False, False, "the rule is for images that are not cropped")
            side = "size"
        else:
            given.must("do_center_crop", True, True, "the rule is for cropped images")
            side = "crop_size"
        height, width = given.edges(side, {"height": 224, "width": 224}, "height", "width")
        strategy = folder.processor.choice("vision_feature_select_strategy", None, ("default", "full"))
        extra = folder.processor.integer("num_additional_image_tokens", 0, 0)
        self.patches = (height // patch) * (width // patch)
        self.each = self.patches + extra - (strategy == "default")
        self.placeholder = folder.token("image_token", "<image>")

    def vision(self, sizes: Sizes) -> Vision:
        return in_pictures(np.ones(len(sizes)), self.patches)


class DeepseekImages(_Fixed):
    """Images of ``DeepseekVLProcessor`` and ``DeepseekVLHybridProcessor``."""

    classes = ("DeepseekVLImageProcessor", "DeepseekVLHybridImageProcessor")

    def __init__(self, folder: Folder) -> None:
        self.each = folder.processor.integer("num_image_tokens", 576)
        self.placeholder = folder.token("image_token", None)
        edges = folder.of("image").edges("size", {"height": 384, "width": 384}, "height", "width")
        hybrid = folder.name == "DeepseekVLHybridProcessor"  # has a second tower, which attends in windows
        self._patches = None if hybrid else folder.patches(16, *edges)

    def vision(self, sizes: Sizes) -> Vision | None:
        return None if self._patches is None else in_pictures(np.ones(len(sizes)), self._patches)


class MllamaImages(_Fixed):
    """Images of ``MllamaProcessor``: one token, as the text attends to an image's tiles in layers of their own.

    Each image is padded to the most tiles, which attend to each other.
    """

    classes = ("MllamaImageProcessor",)
    each = 1

    def __init__(self, folder: Folder) -> None:
        self.placeholder = folder.token("image_token", "<|image|>")
        given = folder.of("image")
        self._tiles = given.integer("max_image_tiles", 4)
        self._patches = folder.patches(14, *given.edges("size", {"height": 224, "width": 224}, "height", "width"))

    def vision(self, sizes: Sizes) -> Vision | None:
        return None if self._patches is None else in_pictures(np.ones(len(sizes)), self._patches * self._tiles)
