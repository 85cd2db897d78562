"""Images, videos and sound of Gemma 4: as many groups of patches as fit a budget; sound in steps of four mel frames.

Source: ``get_aspect_ratio_preserving_size``, ``Gemma4VideoProcessor``, ``Gemma4AudioFeatureExtractor`` and
``Gemma4Processor`` of transformers.

Images of Gemma 3: one length for each, and with pan and scan some crops more, announced in words.

Source: ``Gemma3ImageProcessor`` and ``Gemma3Processor`` of transformers.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from feedmill.errors import ConfigError
from feedmill.samples.token_rules.frames import NO_RATE, Sampling, by_clip
from feedmill.samples.token_rules.rule import (
    Bools,
    Count,
    Folder,
    Int64s,
    Kind,
    Parameters,
    Sizes,
    TokenRule,
    Vision,
    in_pictures,
)


class Gemma4Images(TokenRule):
    """Images of ``Gemma4Processor``."""

    kind: ClassVar[Kind] = "image"
    classes = ("Gemma4ImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        self._read(folder.of("image"), folder, 280)
        self.placeholder = folder.token("image_token", None)

    def _read(self, given: Parameters, folder: Folder, soft: int) -> None:
        given.must("do_resize", True, True, "the rule is for what is resized")
        self.patch, self.pool = given.integer("patch_size", 16), given.integer("pooling_kernel_size", 3)
        self.soft = given.integer("max_soft_tokens", soft)
        if self.soft not in (70, 140, 280, 560, 1120):
            raise ConfigError(
                f"max_soft_tokens must be 70, 140, 280, 560 or 1120: found {self.soft}",
                file=given.where,
                kind="bad-processor",
            )
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
        return in_pictures(1, (Gemma4Images.count(self, sizes) - 2) * self.pool**2)


class Gemma4Videos(Gemma4Images):
    """Videos of ``Gemma4Processor``: each frame has its time before it, in minutes and seconds."""

    kind = "video"
    classes = ("Gemma4VideoProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("video")
        given.must("do_sample_frames", True, True, "the rule is for frames that are sampled")
        self._read(given, folder, 70)
        self.sampling = Sampling(given, samples=True, wanted=32)
        self.placeholder = "<|video|>"  # not the tokenizer's, also if it has one

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"00:00 {self.start}{self.placeholder}{self.end}",)

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        return {NO_RATE: ~(sizes.fps > 0), **self.sampling.refusals(sizes), **super().refusals(sizes)}

    def count(self, sizes: Sizes) -> Int64s:
        return self.sampling.count(sizes) * super().count(sizes)

    def vision(self, sizes: Sizes) -> Vision:
        return in_pictures(self.sampling.count(sizes), super().vision(sizes).patches)

    def written(self, sizes: Sizes, text: Count) -> Int64s:
        return by_clip(sizes, self._times, text)

    def _times(self, total: int, fps: float) -> list[str]:
        seconds = [number / fps for number in self.sampling.numbers(total, fps).tolist()]
        times = [f"{int(each // 60):02d}:{int(each % 60):02d} " for each in seconds]
        return [*times[:1], *(f" {time}" for time in times[1:])]


class Gemma4Audio(TokenRule):
    """Sound of ``Gemma4Processor``; longer clips are cut at 480,000 samples."""

    kind = "audio"
    classes = ("Gemma4AudioFeatureExtractor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("audio")
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
        given = folder.of("image")
        self.length = folder.processor.integer("image_seq_length", 256)
        self.scans = given.flag("do_pan_and_scan", False)
        self.least = given.integer("pan_and_scan_min_crop_size", 256)
        self.most = given.integer("pan_and_scan_max_num_crops", 4)
        self.ratio = given.number("pan_and_scan_min_ratio_to_activate", 1.2)
        self.placeholder = folder.token("boi_token", "<start_of_image>")
        self.soft, self.end = folder.token("image_token", None), folder.token("eoi_token", None)
        self._patches = folder.patches(16, *given.edges("size", {"height": 224, "width": 224}, "height", "width"))

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

    def vision(self, sizes: Sizes) -> Vision | None:
        return None if self._patches is None else in_pictures(self.form(sizes) + 1, self._patches)
