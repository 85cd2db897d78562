"""Images of Gemma 3: one length for each, and with pan and scan some crops more, announced in words.

Source: ``Gemma3ImageProcessor`` and ``Gemma3Processor`` of transformers.
"""

from __future__ import annotations

import numpy as np

from feedmill.samples.token_rules.rule import Count, Folder, Int64s, Sizes, TokenRule


class Gemma3Images(TokenRule):
    """Images of ``Gemma3Processor``."""

    kind = "image"
    classes = ("Gemma3ImageProcessor",)
    always = {  # noqa: RUF012 - never changed
        "do_pan_and_scan": False,
        "pan_and_scan_min_crop_size": 256,
        "pan_and_scan_max_num_crops": 4,
        "pan_and_scan_min_ratio_to_activate": 1.2,
    }

    def __init__(self, folder: Folder) -> None:
        given = folder.image
        assert given is not None
        self.length = folder.processor.integer("image_seq_length", 256)
        self.scans = given.flag("do_pan_and_scan", False)
        self.least = given.integer("pan_and_scan_min_crop_size", 256)
        self.most = given.integer("pan_and_scan_max_num_crops", 4)
        self.ratio = given.number("pan_and_scan_min_ratio_to_activate", 1.2)
        self.placeholder = folder.token("boi_token", "<start_of_image>")
        self.soft, self.end = folder.token("image_token", None), folder.token("eoi_token", None)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts with 0 to `most` crops: the words differ at their edges."""
        one = f"\n\n{self.placeholder}{self.soft}{self.end}\n\n"
        if not self.scans:
            return (one,)
        words = f"Here is the original image {one} and here are some crops to help you see better "
        return one, *(words + " ".join([one] * crops) for crops in range(1, self.most + 1))

    def form(self, sizes: Sizes) -> Int64s:
        if not self.scans:
            return super().form(sizes)
        long, short = np.maximum(sizes.height, sizes.width), np.minimum(sizes.height, sizes.width)
        crops = np.minimum(long // self.least, np.floor(long / short + 0.5).astype(np.int64))
        crops = np.minimum(self.most, np.maximum(2, crops))
        fits = np.minimum(-(-long // crops), short) >= self.least
        return np.where((long / short >= self.ratio) & fits, crops, 0)

    def count(self, sizes: Sizes) -> Int64s:
        return (self.form(sizes) + 1) * (self.length - 1)

    def written(self, sizes: Sizes, text: Count) -> Int64s:
        lengths = np.array([text(form) for form in self.texts], np.int64)
        return lengths[self.form(sizes)]
