"""Images of Idefics3 and SmolVLM: tiles of one size in rows, then the whole picture as one tile more.

Source: ``Idefics3ImageProcessor`` and ``Idefics3Processor`` of transformers.
"""

from __future__ import annotations

import numpy as np

from feedmill.samples.token_rules.rule import Count, Folder, Int64s, Sizes, TokenRule

_LARGEST = 4096
"""``MAX_IMAGE_SIZE`` of transformers."""


class Idefics3Images(TokenRule):
    """Images of ``Idefics3Processor`` and ``SmolVLMProcessor``."""

    kind = "image"
    classes = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")

    def __init__(self, folder: Folder) -> None:
        given = folder.image
        assert given is not None
        given.must("do_resize", True, True, "the rule is for resized images")
        (self.longest,) = given.edges("size", {"longest_edge": 4 * 364}, "longest_edge")
        (self.tile,) = given.edges("max_image_size", {"longest_edge": 364}, "longest_edge")
        self.splits = given.flag("do_image_splitting", True)
        self.length = folder.processor.integer("image_seq_len", 169)
        smol = folder.name == "SmolVLMProcessor"  # its fake token is the tokenizer's
        self.placeholder = folder.token("image_token", "<image>") if smol else "<image>"
        fake = "<fake_token_around_image>"
        self.fake = folder.token("fake_image_token", fake) if smol else fake
        self.whole = folder.token("global_image_token", "<global-img>") if smol else "<global-img>"

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"{self.fake}{self.whole}{self.placeholder}{self.fake}",)

    def grid(self, sizes: Sizes) -> tuple[Int64s, Int64s]:
        """Return rows and columns of tiles; 0 and 0 for a picture that is not split."""
        height, width = sizes.height, sizes.width
        if not self.splits:
            return np.zeros_like(height), np.zeros_like(height)
        wide, ratio = width >= height, width / height
        tall = np.where(wide, (self.longest / ratio).astype(np.int64), self.longest)
        broad = np.where(wide, self.longest, (self.longest * ratio).astype(np.int64))
        tall, broad = np.where(wide, tall + tall % 2, tall), np.where(wide, broad, broad + broad % 2)
        tall, broad = np.maximum(tall, 1), np.maximum(broad, 1)
        wide, ratio = broad >= tall, broad / tall
        large = np.where(wide, broad, tall) > _LARGEST
        less_tall = np.where(wide, (_LARGEST / ratio).astype(np.int64), _LARGEST)
        less_broad = np.where(wide, _LARGEST, (_LARGEST * ratio).astype(np.int64))
        tall, broad = (
            np.where(large, np.maximum(less_tall, 1), tall),
            np.where(large, np.maximum(less_broad, 1), broad),
        )
        rows, columns = -(-tall // self.tile), -(-broad // self.tile)
        split = (rows > 1) | (columns > 1)
        return np.where(split, rows, 0), np.where(split, columns, 0)

    def count(self, sizes: Sizes) -> Int64s:
        rows, columns = self.grid(sizes)
        return self.length + 3 + rows * columns * (self.length + 2)

    def written(self, sizes: Sizes, text: Count) -> Int64s:
        """A newline after each row, and one more before the whole picture, which is one text with that of the last."""
        rows, _ = self.grid(sizes)
        return np.where(rows > 0, (rows - 1) * text("\n") + text("\n\n"), 0)
