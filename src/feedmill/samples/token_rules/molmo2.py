"""Images and videos of Molmo 2: crops that overlap, pooled, with a mark after each row; each frame with its second.

Source: ``select_tiling`` and ``compute_crop_geometry`` of ``Molmo2ImageProcessor``, ``Molmo2VideoProcessor`` and
``Molmo2Processor`` of transformers. Scales and times are float32 there, and ties depend on it.
"""

from __future__ import annotations

import numpy as np

from feedmill.samples.token_rules.frames import NO_RATE, PAST, by_clip, past_the_last, rate, stepped
from feedmill.samples.token_rules.rule import (
    Bools,
    Count,
    Folder,
    Int64s,
    Parameters,
    Sizes,
    TokenRule,
    Vision,
    in_pictures,
)

_AT_ONCE = 1 << 16
_MUCH = np.float32(10e9)


class Molmo2Images(TokenRule):
    """Images of ``Molmo2Processor``."""

    kind = "image"
    classes = ("Molmo2ImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        given, own = folder.of("image"), folder.processor
        self.crop, self.patch, self.pool = _geometry(given, [2, 2])
        self.most = given.integer("max_crops", 8)
        self.margins = sum(given.numbers("overlap_margins", [4, 4], 2, low=0))
        columns = own.flag("image_use_col_tokens", True)
        self.columns = int(columns)
        self.low_columns = int(own.flag("use_single_crop_col_tokens", columns))
        self.start = "<low_res_im_start>" if own.flag("use_single_crop_start_token", True) else "<im_start>"
        self.placeholder = folder.token("image_token", "<|image|>")

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"{self.start}<im_patch><im_end><im_start><im_patch><im_end>",)

    def _grid(self, rows: Int64s, columns: Int64s) -> tuple[Int64s, Int64s]:
        """Return rows and columns of tokens of an image of rows and columns of patches."""
        return -(-rows // self.pool[0]), -(-columns // self.pool[1])

    def tiling(self, sizes: Sizes) -> tuple[Int64s, Int64s]:
        """Return rows and columns of crops."""
        every = [(rows, wide) for rows in range(1, self.most + 1) for wide in range(1, self.most // rows + 1)]
        tilings = np.array(sorted(every, key=lambda each: (each[0] * each[1], each[0])), np.int64)
        window = (self.crop // self.patch - self.margins) * self.patch
        sides = (tilings * window).astype(np.float32)
        best = np.empty(len(sizes), np.int64)
        for start in range(0, len(sizes), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            margin = self.margins * self.patch
            # An image smaller than the margins has a size of 0 or less here, as in the processor.
            tall, wide = (side[part, None].astype(np.float32) - margin for side in (sizes.height, sizes.width))
            with np.errstate(divide="ignore"):
                scale = np.minimum(sides[:, 0] / tall, sides[:, 1] / wide)
            shrunk = (scale < 1).all(1)
            enlarged = np.where(scale < 1, _MUCH, scale)
            best[part] = np.where(shrunk, scale.argmax(1), enlarged.argmin(1))
        return tilings[best, 0], tilings[best, 1]

    def count(self, sizes: Sizes) -> Int64s:
        window = self.crop // self.patch - self.margins
        rows, columns = self._grid(*(each * window + self.margins for each in self.tiling(sizes)))
        low = self._grid(*(np.full(len(sizes), self.crop // self.patch) for _ in range(2)))
        return 4 + rows * (columns + self.columns) + low[0] * (low[1] + self.low_columns)

    def vision(self, sizes: Sizes) -> Vision:
        rows, columns = self.tiling(sizes)
        return in_pictures(rows * columns + 1, (self.crop // self.patch) ** 2)


class Molmo2Videos(TokenRule):
    """Videos of ``Molmo2Processor``, which takes one in a sample."""

    kind = "video"
    classes = ("Molmo2VideoProcessor",)

    def __init__(self, folder: Folder) -> None:
        given, own = folder.of("video"), folder.processor
        given.must("do_sample_frames", True, True, "the rule is for frames that are sampled")
        side, patch, pool = _geometry(given, [3, 3])
        self.patches = (side // patch) ** 2
        self.rows, self.wide = -(-(side // patch) // pool[0]), -(-(side // patch) // pool[1])
        self.columns = int(own.flag("video_use_col_tokens", False))
        self.fps = given.maybe("fps", given.number)
        self.wanted = given.integer("num_frames", 64)
        if self.fps is not None:
            raise given.wrong("fps", f"null, as num_frames is {self.wanted}", self.fps)
        self.most = given.number("max_fps", 2)
        special = own.flag("use_frame_special_tokens", True)
        self.start, self.end = ("<frame_start>", "<frame_end>") if special else ("<im_start>", "<im_end>")
        self.placeholder = folder.token("video_token", "<|video|>")

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"0.0 {self.start}<im_patch>{self.end}",)

    def _wanted(self, sizes: Sizes) -> Int64s:
        fps = rate(sizes)
        capped = np.minimum(self.wanted, (sizes.frames / fps * self.most).astype(np.int64))
        wanted = np.where(fps > self.most, capped, self.wanted)
        return np.maximum(np.minimum(wanted, sizes.frames), 1)

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        return {
            NO_RATE: ~(sizes.fps > 0),
            "its sample has more than one video": sizes.together > 1,
            PAST: past_the_last(sizes.frames, self._wanted(sizes)),
        }

    def count(self, sizes: Sizes) -> Int64s:
        frames = stepped(sizes.frames, self._wanted(sizes))
        return frames * (2 + self.rows * (self.wide + self.columns))

    def vision(self, sizes: Sizes) -> Vision:
        return in_pictures(stepped(sizes.frames, self._wanted(sizes)), self.patches)

    def written(self, sizes: Sizes, text: Count) -> Int64s:
        return by_clip(sizes, self._times, text)

    def _times(self, total: int, fps: float) -> list[str]:
        wanted = int(self._wanted(Sizes.of(frames=[total], fps=[fps]))[0])
        frames = int(stepped(np.array([total]), wanted)[0])
        numbers = (np.arange(frames) * (total / wanted)).astype(np.float32).astype(np.int32)
        seconds = (numbers.astype(np.float32) / np.float32(fps)).tolist()
        return [f"{'' if number == 0 else ' '}{each:.1f} " for number, each in enumerate(seconds)]


def _geometry(given: Parameters, pool: list[int]) -> tuple[int, int, tuple[int, ...]]:
    """Return side, patch and pooling in pixels and patches. Raises `ConfigError` if the image is not square."""
    tall, wide = given.edges("size", {"height": 378, "width": 378}, "height", "width")
    if tall != wide:
        raise given.wrong("size", "square", f"{tall} x {wide}")
    return tall, given.integer("patch_size", 14), given.numbers("pooling_size", pool, 2)
