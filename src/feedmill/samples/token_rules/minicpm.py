"""Images and videos of MiniCPM-V 4.6 and 4.7: the whole picture, then slices of the best grid, each with marks.

Source: ``MiniCPMV4_6ImageProcessor``, ``MiniCPMV4_6VideoProcessor``, ``MiniCPMV4_6Processor`` and
``MiniCPMV4_7Processor`` of transformers. The duration of a video is its frames by its frame rate.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from feedmill.samples.token_rules.frames import NO_RATE, rate
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

Floats = npt.NDArray[np.float64]


class MiniCpmImages(TokenRule):
    """Images of ``MiniCPMV4_6ImageProcessor``."""

    kind: ClassVar[Kind] = "image"
    classes = ("MiniCPMV4_6ImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        self._read(folder.of("image"), folder)
        self.placeholder = folder.token("image_token", None)
        self.numbered = folder.of("image").flag("use_image_id", True)

    def _read(self, given: Parameters, folder: Folder) -> None:
        given.must("do_resize", True, True, "the rule is for what is resized")
        self.most, self.side = given.integer("max_slice_nums", 9), given.integer("scale_resolution", 448)
        self.patch, self.slices = given.integer("patch_size", 14), given.flag("slice_mode", True)
        self.merge = 2 if given.choice("downsample_mode", "16x", ("4x", "16x")) == "4x" else 4
        marks = ("image_start", "image_end", "image_id_start", "image_id_end")
        self.start, self.end, self.id_start, self.id_end = (folder.token(f"{mark}_token", None) for mark in marks)

    @property
    def texts(self) -> tuple[str, ...]:
        number = f"{self.id_start}0{self.id_end}" if self.numbered else ""
        return (f"{number}{self.start}{self.placeholder}{self.end}",)

    def grid(self, sizes: Sizes) -> tuple[Int64s, Int64s]:
        """Return rows and columns of slices; 0 and 0 for a picture without slices."""
        ratio = sizes.width * sizes.height / (self.side * self.side)
        multiple = np.minimum(np.ceil(ratio), self.most).astype(np.int64)
        # Ties between grids depend on the last bit of logarithms, which are those of the C library.
        shape = np.array([math.log(each) for each in (sizes.width / sizes.height).tolist()])
        rows, columns = np.ones_like(multiple), np.ones_like(multiple)
        best = np.full(len(sizes), np.inf)
        for step in (-1, 0, 1):
            for slices in range(2, self.most + 1):
                here = multiple + step == slices
                if not here.any():
                    continue
                for tall in (each for each in range(1, slices + 1) if slices % each == 0):
                    error = np.abs(shape - math.log((slices // tall) / tall))
                    take = here & ((error < best) | ((error == best) & (tall > rows)))
                    rows, columns = np.where(take, tall, rows), np.where(take, slices // tall, columns)
                    best = np.where(take, error, best)
        split = (multiple > 1) & self.slices
        return np.where(split, rows, 0), np.where(split, columns, 0)

    def _fitted(self, height: Floats | Int64s, width: Floats | Int64s, larger: Bools) -> Int64s:
        """Return the tokens of a picture that is scaled to the side of a slice if it is larger, or `larger` is true."""
        scaled = (height * width > self.side * self.side) | larger
        ratio = width / height
        tall = (self.side / np.sqrt(ratio)).astype(np.int64)
        wide = (tall * ratio).astype(np.int64)
        unit = self.patch * self.merge
        tall = _divisible(np.where(scaled, tall, height), unit)
        wide = _divisible(np.where(scaled, wide, width), unit)
        return (tall // self.patch) * (wide // self.patch) // self.merge**2

    def _tokens(self, sizes: Sizes) -> tuple[Int64s, Int64s, Int64s]:
        """Return the tokens of the whole picture, the number of its slices, and the tokens of each."""
        rows, columns = self.grid(sizes)
        split = rows > 0
        tall, wide = np.maximum(rows, 1), np.maximum(columns, 1)
        whole = self._fitted(sizes.height, sizes.width, ~split)
        part = self._fitted(
            _divisible(sizes.height, tall) / tall, _divisible(sizes.width, wide) / wide, np.ones(len(sizes), bool)
        )
        return whole, rows * columns, part

    def count(self, sizes: Sizes) -> Int64s:
        whole, slices, part = self._tokens(sizes)
        return whole + 2 + slices * (part + 2)

    def vision(self, sizes: Sizes) -> Vision:
        whole, slices, part = self._tokens(sizes)
        one, others = in_pictures(1, whole * self.merge**2), in_pictures(slices, part * self.merge**2)
        return Vision(one.patches + others.patches, one.squares + others.squares)

    def written(self, sizes: Sizes, text: Count) -> Int64s:
        """Newlines between rows of slices, and the number of the image in its sample."""
        return self._newlines(sizes) * text("\n") + self._numbers(sizes, text)

    def _newlines(self, sizes: Sizes) -> Int64s:
        return np.maximum(self.grid(sizes)[0] - 1, 0)

    def _numbers(self, sizes: Sizes, text: Count) -> Int64s:
        if not self.numbered:
            return np.zeros(len(sizes), np.int64)
        numbers = sizes.number if len(sizes.number) else np.zeros(len(sizes), np.int64)
        marks = [text(str(number)) + 2 for number in range(int(numbers.max(initial=0)) + 1)]
        return np.array(marks, np.int64)[numbers]


class MiniCpmVideos(MiniCpmImages):
    """Videos of ``MiniCPMV4_6VideoProcessor``: a frame a second, each as an image."""

    kind = "video"
    classes = ("MiniCPMV4_6VideoProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("video")
        given.must("do_sample_frames", True, True, "the rule is for frames that are sampled")
        given.must("stack_frames", 1, 1, "the rule is for frames that are not put together")
        self._read(given, folder)
        self.frames = given.integer("max_num_frames", 128)
        self.placeholder = folder.token("video_token", None)
        # Whether media are numbered is a parameter of images; 4.7 does not number its videos.
        numbered = folder.image is None or folder.image.flag("use_image_id", True)
        self.numbered = numbered and folder.name == "MiniCPMV4_6Processor"

    def _seconds(self, sizes: Sizes) -> Floats:
        return np.asarray(sizes.frames / rate(sizes))

    def _sampled(self, sizes: Sizes) -> Int64s:
        seconds = self._seconds(sizes)
        return np.where(seconds > self.frames, self.frames, np.ceil(seconds).astype(np.int64))

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        last = ((self._sampled(sizes) - 1) * rate(sizes)).astype(np.int64)
        past = (last >= sizes.frames) & (self._seconds(sizes) <= self.frames)
        return {NO_RATE: ~(sizes.fps > 0), "the frame after its last one is sampled, by rounding of a second": past}

    def count(self, sizes: Sizes) -> Int64s:
        return self._sampled(sizes) * super().count(sizes)

    def vision(self, sizes: Sizes) -> Vision:
        frames, each = self._sampled(sizes), super().vision(sizes)
        return Vision(frames * each.patches, frames * each.squares)

    def written(self, sizes: Sizes, text: Count) -> Int64s:
        return self._sampled(sizes) * self._newlines(sizes) * text("\n") + self._numbers(sizes, text)


def _divisible(length: Floats | Int64s, by: Int64s | int) -> Int64s:
    """Return the closest multiple, at least one. Ties round to even."""
    return np.maximum(np.rint(length / by) * by, by).astype(np.int64)
