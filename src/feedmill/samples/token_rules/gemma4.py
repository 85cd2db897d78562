"""Images and sound of Gemma 4: as many groups of patches as fit a budget; sound in steps of four mel frames.

Source: ``get_aspect_ratio_preserving_size``, ``Gemma4AudioFeatureExtractor`` and ``Gemma4Processor`` of transformers.
"""

from __future__ import annotations

import numpy as np

from feedmill.errors import ConfigError
from feedmill.samples.token_rules.rule import Bools, Folder, Int64s, Sizes, TokenRule, Vision, in_pictures


class Gemma4Images(TokenRule):
    """Images of ``Gemma4Processor``."""

    kind = "image"

    def __init__(self, folder: Folder) -> None:
        given = folder.image
        assert given is not None
        given.must("do_resize", True, True, "the rule is for resized images")
        self.patch, self.pool = given.integer("patch_size", 16), given.integer("pooling_kernel_size", 3)
        self.soft = given.integer("max_soft_tokens", 280)
        if self.soft not in (70, 140, 280, 560, 1120):
            raise ConfigError(
                f"max_soft_tokens must be 70, 140, 280, 560 or 1120: found {self.soft}",
                file=given.where,
                kind="bad-processor",
            )
        self.placeholder = folder.token("image_token", None)
        self.start, self.end = folder.token("boi_token", None), folder.token("eoi_token", None)

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"{self.start}{self.placeholder}{self.end}",)

    def _floored(self, sizes: Sizes) -> tuple[Int64s, Int64s]:
        side = self.pool * self.patch
        scale = np.sqrt(self.soft * side**2 / (sizes.height * sizes.width))
        return (
            np.floor(scale * sizes.height / side).astype(np.int64) * side,
            np.floor(scale * sizes.width / side).astype(np.int64) * side,
        )

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        height, width = self._floored(sizes)
        return {"it becomes 0 x 0 pixels": (height == 0) & (width == 0)}

    def count(self, sizes: Sizes) -> Int64s:
        side = self.pool * self.patch
        height, width = self._floored(sizes)
        longest = self.soft * side
        flat, thin = height == 0, (width == 0) & (height > 0)
        height, width = (
            np.where(thin, np.minimum(sizes.height // sizes.width * side, longest), np.where(flat, side, height)),
            np.where(flat, np.minimum(sizes.width // sizes.height * side, longest), np.where(thin, side, width)),
        )
        return (height // self.patch) * (width // self.patch) // self.pool**2 + 2

    def vision(self, sizes: Sizes) -> Vision:
        return in_pictures(1, (self.count(sizes) - 2) * self.pool**2)


class Gemma4Audio(TokenRule):
    """Sound of ``Gemma4Processor``; longer clips are cut at 480,000 samples."""

    kind = "audio"

    def __init__(self, folder: Folder) -> None:
        given = folder.audio
        assert given is not None
        self.rate = given.integer("sampling_rate", 16_000)
        self.frame = round(self.rate * given.number("frame_length_ms", 20.0) / 1000)
        self.hop = round(self.rate * given.number("hop_length_ms", 10.0) / 1000)
        self.placeholder = folder.token("audio_token", None)
        self.start, self.end = folder.token("boa_token", None), folder.token("eoa_token", None)

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"{self.start}{self.placeholder}{self.end}",)

    def count(self, sizes: Sizes) -> Int64s:
        samples = np.minimum(sizes.samples, 480_000)
        frames = (samples + self.frame // 2 - (self.frame + 1)) // self.hop + 1
        frames = np.maximum(frames, 0)
        for _ in range(2):  # two convolutions with a stride of 2
            frames = (frames - 1) // 2 + 1
        return np.asarray(frames + 2)
