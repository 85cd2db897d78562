"""Images and videos of GLM-4V: as of Qwen, but the limits count the pixels of all frames, of an image repeated too.

Source: ``Glm4vImageProcessor``, ``Glm4vVideoProcessor``, ``Glm46VVideoProcessor`` and their processors of transformers.
The duration of a video is its frames by its frame rate.
"""

from __future__ import annotations

import math

import numpy as np

from feedmill.samples.token_rules.frames import NO_RATE, NONE, by_clip, rate
from feedmill.samples.token_rules.qwen import enlarged, volume_resized
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
    ratio_above,
)

_STEEP = "one side is more than 200 times the other"


class _Glm(TokenRule):
    def __init__(self, folder: Folder) -> None:
        given = folder.of(self.kind)
        given.must("do_resize", True, True, "the rule is for what is resized")
        self.patch, self.merge = given.integer("patch_size", 14), given.integer("merge_size", 2)
        self.temporal = given.integer("temporal_patch_size", 2)
        largest = 28 * 28 * 15000 if self.kind == "image" else 28 * 28 * 2 * 30000
        edges = {"shortest_edge": 112 * 112, "longest_edge": largest}
        self.low, self.high = given.edges("size", edges, "shortest_edge", "longest_edge")
        self._read(given, folder)

    def _read(self, given: Parameters, folder: Folder) -> None:
        raise NotImplementedError

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        height, width = enlarged(sizes.height, sizes.width, self.patch * self.merge)
        return {_STEEP: ratio_above(Sizes(height=height, width=width), 200)}

    def _each(self, sizes: Sizes, frames: Int64s) -> Int64s:
        """Return the tokens of one group of frames."""
        factor = self.patch * self.merge
        height, width = volume_resized(frames, sizes.height, sizes.width, factor, self.low, self.high, self.temporal)
        return (height // self.patch) * (width // self.patch) // self.merge**2


class Glm4vImages(_Glm):
    """Images of ``Glm4vImageProcessor``."""

    kind = "image"
    classes = ("Glm4vImageProcessor", "Glm46VImageProcessor")

    def _read(self, given: Parameters, folder: Folder) -> None:  # noqa: ARG002 - as videos
        self.placeholder = folder.token("image_token", "<|image|>")

    def count(self, sizes: Sizes) -> Int64s:
        return self._each(sizes, np.full(len(sizes), self.temporal))

    def vision(self, sizes: Sizes) -> Vision:
        return in_pictures(1, self.count(sizes) * self.merge**2)


class Glm4vVideos(_Glm):
    """Videos of ``Glm4vVideoProcessor``: each group of frames is an image, with its second after it."""

    kind = "video"
    classes = ("Glm4vVideoProcessor",)

    def _read(self, given: Parameters, folder: Folder) -> None:
        given.must("do_sample_frames", True, True, "the rule is for frames that are sampled")
        self.read_sampling(given)
        self.placeholder = folder.token("video_token", "<|video|>")
        self.image = folder.token("image_token", "<|image|>")

    def read_sampling(self, given: Parameters) -> None:
        self.fps = given.number("fps", 2)
        self.longest = given.integer("max_duration", 300)

    def time(self, seconds: float) -> str:
        """Return the text after a group of frames."""
        return str(int(seconds))

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"<|begin_of_image|>{self.image}<|end_of_image|>{self.time(0)}",)

    def numbers(self, total: int, fps: float) -> list[int]:
        """Return the numbers of the frames that are sampled: an even number of them."""
        seconds, last = total / fps, total - 1
        if seconds <= self.longest:
            asked = np.ceil(np.arange(max(math.floor(seconds * self.fps), 1)) * fps / self.fps)
        elif int(self.longest * self.fps) >= total:
            asked = np.arange(total)
        else:
            asked = np.ceil(np.linspace(0, seconds, int(self.longest * self.fps), endpoint=True) * fps)
        return _evened(np.minimum(last, asked.astype(np.int64)))

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        return {NO_RATE: ~(sizes.fps > 0), NONE: self._sampled(sizes) < 1, **super().refusals(sizes)}

    def _sampled(self, sizes: Sizes) -> Int64s:
        clips = list(zip(sizes.frames.tolist(), rate(sizes).tolist(), strict=True))
        known = {clip: len(self.numbers(*clip)) for clip in set(clips)}
        return np.array([known[clip] for clip in clips], np.int64)

    def count(self, sizes: Sizes) -> Int64s:
        frames = self._sampled(sizes)
        groups = -(-frames // self.temporal)
        return groups * (self._each(sizes, frames) + 2)

    def vision(self, sizes: Sizes) -> Vision:
        frames = self._sampled(sizes)
        return in_pictures(-(-frames // self.temporal), self._each(sizes, frames) * self.merge**2)

    def written(self, sizes: Sizes, text: Count) -> Int64s:
        return by_clip(sizes, self._times, text)

    def _times(self, total: int, fps: float) -> list[str]:
        frames = self.numbers(total, fps)
        groups = -(-len(frames) // self.temporal)
        times = [number / fps for number in frames[::2]][:groups]
        return [self.time(seconds) for seconds in [*times, *times[-1:] * (groups - len(times))]]


class Glm46vVideos(Glm4vVideos):
    """Videos of ``Glm46VVideoProcessor``: 3 groups of frames a second of a short one, and 1 or one half of longer."""

    classes = ("Glm46VVideoProcessor",)

    def read_sampling(self, given: Parameters) -> None:
        """The processor's ``fps`` and ``max_duration`` are not used."""

    def time(self, seconds: float) -> str:
        return f"{seconds:.1f} seconds"

    def numbers(self, total: int, fps: float) -> list[int]:
        seconds = total / fps
        short = min(seconds, 2400)
        each = 3 if short <= 30 else 1 if short <= 300 else 0.5
        wanted = min(int(short * each * self.temporal), 640)
        last = total - 1
        chosen: list[int] = []
        if total < wanted:
            chosen = np.linspace(0, last, wanted, dtype=int).tolist()
        else:
            step, end, current = 1 / (self.temporal * each), int(seconds), 0.0
            for number, at in enumerate((np.arange(total) * (1 / fps)).tolist()):
                if at >= current:
                    current += step
                    chosen.append(number)
                    if current >= end:
                        break
        if len(chosen) < wanted:
            first, stop = (chosen[0], chosen[-1]) if chosen else (0, max(last, 0))
            chosen = np.linspace(first, stop, wanted, dtype=int).tolist()
        elif len(chosen) > wanted:
            chosen = np.linspace(0, last, wanted, dtype=int).tolist()
        return _evened(np.array(chosen, np.int64))


def _evened(numbers: Int64s) -> list[int]:
    """Return the numbers once each, in their order, and the last one again if they are odd."""
    once = list(dict.fromkeys(numbers.tolist()))
    return once + once[-1:] * (len(once) % 2)
