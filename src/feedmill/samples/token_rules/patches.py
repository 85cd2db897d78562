"""Images of Pixtral and Mistral 3: patches in rows, each with a break after it, and an end after the last.

Source: ``PixtralImageProcessor`` and ``PixtralProcessor`` of transformers. The processor's patch size overrides that
of the image processor.

Images of Kimi K2.5: never scaled up, and padded to whole groups of patches.

Source: ``navit_resize`` of ``Kimi_K25ImageProcessor`` of transformers.
"""

from __future__ import annotations

import numpy as np

from feedmill.errors import ConfigError
from feedmill.samples.token_rules.rule import Bools, Folder, Int64s, Sizes, TokenRule, Vision, in_pictures


class PixtralImages(TokenRule):
    """Images of ``PixtralProcessor``."""

    kind = "image"
    classes = ("PixtralImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("image")
        given.must("do_resize", True, True, "the rule is for resized images")
        size = given.get("size", {"longest_edge": 1024})
        if not isinstance(size, dict) or not size.get("longest_edge"):
            raise ConfigError(f"size must have longest_edge: found {size!r}", file=given.where, kind="unsupported")
        (self.longest,) = given.edges("size", {"longest_edge": 1024}, "longest_edge")
        patch, merge = folder.processor.integer("patch_size", 16), folder.processor.integer("spatial_merge_size", 1)
        self.patch, self.merge = patch * merge, merge
        self.placeholder = folder.processor.text("image_token", "[IMG]")
        self.end = folder.processor.text("image_end_token", "[IMG_END]")

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"{self.placeholder}{self.end}",)

    def _fitted(self, sizes: Sizes) -> tuple[Int64s, Int64s]:
        ratio = np.maximum(sizes.height / self.longest, sizes.width / self.longest)
        return (
            np.where(ratio > 1, np.floor(sizes.height / ratio), sizes.height).astype(np.int64),
            np.where(ratio > 1, np.floor(sizes.width / ratio), sizes.width).astype(np.int64),
        )

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        height, width = self._fitted(sizes)
        return {f"its shorter side vanishes when the longer one is {self.longest}": (height < 1) | (width < 1)}

    def count(self, sizes: Sizes) -> Int64s:
        height, width = self._fitted(sizes)
        return ((height - 1) // self.patch + 1) * ((width - 1) // self.patch + 2)

    def vision(self, sizes: Sizes) -> Vision:
        height, width = self._fitted(sizes)
        return in_pictures(1, ((height - 1) // self.patch + 1) * ((width - 1) // self.patch + 1) * self.merge**2)


class KimiImages(TokenRule):
    """Images of ``Kimi_K25ImageProcessor``."""

    kind = "image"
    classes = ("Kimi_K25ImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("image")
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
