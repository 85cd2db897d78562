"""Images and videos of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and the Omni models: patches of the resized picture.

Source: ``Qwen2VLImageProcessor``, ``Qwen2VLVideoProcessor`` and ``Qwen3VLVideoProcessor`` of transformers. Limits of
pixels belong to the checkpoint: those of Qwen3-VL are other ones in the same class.

Sound of Qwen2-Audio, Qwen2.5-Omni and Qwen3-Omni: mel frames of Whisper's features, halved by convolutions.

Source: ``WhisperFeatureExtractor``, ``Qwen2AudioProcessor``, ``Qwen2_5OmniProcessor`` and ``Qwen3OmniMoeProcessor`` of
transformers. Qwen3-Omni pads to the longest clip of a batch, where another clip may cost one token more: the rule is
for a clip that is processed alone.
"""

from __future__ import annotations

import numpy as np

from feedmill.samples.token_rules.frames import FEWER, NO_RATE, PAST, by_clip, past_the_last, rate, stepped
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


def resized(height: Int64s, width: Int64s, factor: int, low: int, high: int | Int64s) -> tuple[Int64s, Int64s]:
    """Return the size in multiples of `factor` and within limits of pixels (``smart_resize``). Ties round to even."""
    to_height, to_width = np.rint(height / factor) * factor, np.rint(width / factor) * factor
    return _within(height, width, to_height, to_width, to_height * to_width, height * width, factor, low, high)


def volume_resized(
    frames: Int64s, height: Int64s, width: Int64s, factor: int, low: int, high: int | Int64s, temporal: int
) -> tuple[Int64s, Int64s]:
    """Return the size where the limits count the pixels of all frames. A side below `factor` is scaled up first."""
    height, width = enlarged(height, width, factor)
    to_height, to_width = np.rint(height / factor) * factor, np.rint(width / factor) * factor
    volume = np.rint(frames / temporal) * temporal * to_height * to_width
    return _within(height, width, to_height, to_width, volume, frames * height * width, factor, low, high)


def enlarged(height: Int64s, width: Int64s, factor: int) -> tuple[Int64s, Int64s]:
    small = (height < factor) | (width < factor)
    scale = np.maximum(factor / height, factor / width)
    return (
        np.where(small, (height * scale).astype(np.int64), height),
        np.where(small, (width * scale).astype(np.int64), width),
    )


def _within(
    height: Int64s,
    width: Int64s,
    to_height: Int64s,
    to_width: Int64s,
    volume: Int64s,
    stored: Int64s,
    factor: int,
    low: int,
    high: int | Int64s,
) -> tuple[Int64s, Int64s]:
    down = volume > high
    up = ~down & (volume < low)
    scale = np.sqrt(stored / high)
    to_height = np.where(down, np.maximum(factor, np.floor(height / scale / factor) * factor), to_height)
    to_width = np.where(down, np.maximum(factor, np.floor(width / scale / factor) * factor), to_width)
    scale = np.sqrt(low / stored)
    to_height = np.where(up, np.ceil(height * scale / factor) * factor, to_height)
    to_width = np.where(up, np.ceil(width * scale / factor) * factor, to_width)
    return to_height.astype(np.int64), to_width.astype(np.int64)


def pixel_limits(given: Parameters, low: int, high: int) -> tuple[int, int]:
    """Return the least and most pixels: ``size``, which the older ``min_pixels`` and ``max_pixels`` override."""
    limits = []
    for edge, older, default in (("shortest_edge", "min_pixels", low), ("longest_edge", "max_pixels", high)):
        if given.values.get(older) is not None:
            limits.append(given.integer(older, None))
        else:
            limits += given.edges("size", {edge: default}, edge)
    return limits[0], limits[1]


class QwenImages(TokenRule):
    """Images of ``Qwen2VLImageProcessor``."""

    kind = "image"
    classes = ("Qwen2VLImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("image")
        given.must("do_resize", True, True, "the rule is for resized images")
        self.patch, self.merge = given.integer("patch_size", 14), given.integer("merge_size", 2)
        self.low, self.high = pixel_limits(given, 56 * 56, 28 * 28 * 1280)
        self.placeholder = folder.token("image_token", "<|image_pad|>")

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        return {_STEEP: ratio_above(sizes, 200)}

    def count(self, sizes: Sizes) -> Int64s:
        height, width = resized(sizes.height, sizes.width, self.patch * self.merge, self.low, self.high)
        return (height // self.patch) * (width // self.patch) // self.merge**2

    def vision(self, sizes: Sizes) -> Vision:
        return in_pictures(1, self.count(sizes) * self.merge**2)


class Qwen2Videos(TokenRule):
    """Videos of ``Qwen2VLVideoProcessor``. Limits count the pixels of one frame."""

    kind = "video"
    classes = ("Qwen2VLVideoProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("video")
        given.must("do_resize", True, True, "the rule is for resized frames")
        self.patch, self.merge = given.integer("patch_size", 14), given.integer("merge_size", 2)
        self.temporal = given.integer("temporal_patch_size", 2)
        self.low, self.high = pixel_limits(given, 128 * 28 * 28, 28 * 28 * 768)
        self.capped = given.flag("cap_pixels_per_frame", False)
        self.most_tokens = given.integer("max_video_tokens", 128_000)
        self.samples_frames = given.flag("do_sample_frames", False)
        self.least, self.most = given.integer("min_frames", 4), given.integer("max_frames", 768)
        self.wanted, self.fps = given.maybe("num_frames", given.integer), given.maybe("fps", given.number)
        if self.samples_frames and (self.wanted is None) == (self.fps is None):
            raise given.wrong("fps", "given without num_frames, or not, as do_sample_frames is true", self.fps)
        self.placeholder = folder.token("video_token", "<|video_pad|>")

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        out = {_STEEP: ratio_above(sizes, 200)}
        if not self.samples_frames:
            return out
        if self.wanted is not None:
            out[FEWER] = sizes.frames < self._even(self.wanted)
        else:
            out[NO_RATE] = ~(sizes.fps > 0)
            out[f"it has fewer than {self.temporal} frames"] = sizes.frames < self.temporal
        out[PAST] = past_the_last(sizes.frames, self._wanted(sizes))
        return out

    def _even(self, frames: int) -> int:
        return round(frames / self.temporal) * self.temporal

    def sampled(self, sizes: Sizes) -> Int64s:
        """Return the frames that are sampled, int64[n]. The step is a float64, so there may be one more than wanted."""
        return stepped(sizes.frames, self._wanted(sizes)) if self.samples_frames else sizes.frames

    def _wanted(self, sizes: Sizes) -> Int64s:
        total = sizes.frames
        if self.wanted is not None:
            wanted = np.full(len(total), self._even(self.wanted))
        else:
            assert self.fps is not None
            top = np.minimum(self.most, total) // self.temporal * self.temporal
            asked = np.minimum(np.minimum(np.maximum(total / rate(sizes) * self.fps, self.least), top), total)
            wanted = np.floor(asked / self.temporal).astype(np.int64) * self.temporal
        return np.asarray(np.maximum(wanted, 1))

    def count(self, sizes: Sizes) -> Int64s:
        frames, factor = self.sampled(sizes), self.patch * self.merge
        high = np.full(len(frames), self.high)
        if self.capped:
            share = int(self.most_tokens * factor * factor * 0.9) * self.temporal // frames
            high = np.maximum(np.minimum(high, share), int(self.low * 1.05))
        height, width = resized(sizes.height, sizes.width, factor, self.low, high)
        return np.asarray(
            -(-frames // self.temporal) * ((height // self.patch) * (width // self.patch) // self.merge**2)
        )

    def vision(self, sizes: Sizes) -> Vision:
        groups = -(-self.sampled(sizes) // self.temporal)
        return in_pictures(groups, self.count(sizes) // groups * self.merge**2)


class Omni2Videos(Qwen2Videos):
    """Videos of ``Qwen2_5OmniProcessor``, without their sound: the limits of its files are not used."""

    always = {  # noqa: RUF012 - never changed
        "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28},
        "min_pixels": None,
        "max_pixels": None,
    }


class Omni3Videos(Qwen2Videos):
    """Videos of ``Qwen3OmniMoeProcessor``, without their sound: the limits of its files are not used."""

    always = {  # noqa: RUF012 - never changed
        "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32},
        "min_pixels": None,
        "max_pixels": None,
    }


class Qwen3Videos(TokenRule):
    """Videos of ``Qwen3VLVideoProcessor``: each group of frames has a time before it, and marks around it.

    Limits count the pixels of all frames that are sampled.
    """

    kind = "video"
    classes = ("Qwen3VLVideoProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("video")
        given.must("do_resize", True, True, "the rule is for resized frames")
        self.patch, self.merge = given.integer("patch_size", 16), given.integer("merge_size", 2)
        self.temporal = given.integer("temporal_patch_size", 2)
        edges = {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768}
        self.low, self.high = given.edges("size", edges, "shortest_edge", "longest_edge")
        self.capped = given.flag("cap_pixels_per_frame", False)
        self.most_tokens = given.integer("max_video_tokens", 768)
        self.samples_frames = given.flag("do_sample_frames", True)
        self.least, self.most = given.integer("min_frames", 4), given.integer("max_frames", 768)
        self.wanted = given.maybe("num_frames", given.integer)
        if self.samples_frames and self.wanted is not None and given.values.get("fps", 2) is not None:
            raise given.wrong("num_frames", "null, as frames are sampled by fps", self.wanted)
        self.fps = given.number("fps", 2)
        self.placeholder = folder.token("video_token", "<|video_pad|>")
        self.start = folder.token("vision_start_token", "<|vision_start|>")
        self.end = folder.token("vision_end_token", "<|vision_end|>")

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"<0.0 seconds>{self.start}{self.placeholder}{self.end}",)

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        height, width = enlarged(sizes.height, sizes.width, self.patch * self.merge)
        frames = self.sampled(sizes)
        return {
            NO_RATE: ~(sizes.fps > 0),  # transformers takes 24, with a warning
            _STEEP: ratio_above(Sizes(height=height, width=width), 200),
            f"it has fewer than {self.temporal} frames": frames < self.temporal,
        }

    def sampled(self, sizes: Sizes) -> Int64s:
        total = sizes.frames
        if not self.samples_frames:
            return total
        if self.wanted is not None:
            return np.full(len(total), self.wanted)
        wanted = (total / rate(sizes) * self.fps).astype(np.int64)
        return np.minimum(np.minimum(np.maximum(wanted, self.least), self.most), total)

    def count(self, sizes: Sizes) -> Int64s:
        frames, factor = self.sampled(sizes), self.patch * self.merge
        high = np.full(len(frames), self.high)
        if self.capped:
            share = np.minimum(self.most_tokens * factor * factor, self.high // frames)
            high = np.maximum(share, int(self.low * 1.05)) * frames
        height, width = volume_resized(
            frames,
            sizes.height,
            sizes.width,
            factor,
            self.low,
            high,
            self.temporal,
        )
        groups = -(-frames // self.temporal)
        soft = groups * ((height // self.patch) * (width // self.patch) // self.merge**2)
        return soft + 2 * groups

    def vision(self, sizes: Sizes) -> Vision:
        groups = -(-self.sampled(sizes) // self.temporal)
        return in_pictures(groups, (self.count(sizes) // groups - 2) * self.merge**2)

    def written(self, sizes: Sizes, text: Count) -> Int64s:
        """The times before groups of frames."""
        return by_clip(sizes, self._times, text)

    def _times(self, total: int, fps: float) -> list[str]:
        frames = int(self.sampled(Sizes.of(frames=[total], fps=[fps]))[0])
        return stamps(total, fps, frames, self.temporal)


def stamps(total: int, fps: float, frames: int, temporal: int = 2) -> list[str]:
    """Return the times that stand before the groups of `frames` frames of a video."""
    at = list(range(total)) if frames == total else np.linspace(0, total - 1, frames).round().astype(np.int64).tolist()
    at += at[-1:] * (-len(at) % temporal)
    times = [number / fps for number in at]
    return [f"<{(times[i] + times[i + temporal - 1]) / 2:.1f} seconds>" for i in range(0, len(times), temporal)]


class _WhisperAudio(TokenRule):
    kind = "audio"
    classes = ("WhisperFeatureExtractor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("audio")
        self.rate = given.integer("sampling_rate", 16_000)
        self.hop = given.integer("hop_length", 160)
        self.most = given.integer("chunk_length", 30) * self.rate
        self.padding = given.integer("n_fft", 400) // 2
        self.placeholder = folder.token("audio_token", "<|AUDIO|>")


class QwenAudio(_WhisperAudio):
    """Sound of ``Qwen2AudioProcessor`` and ``Qwen2_5OmniProcessor``; a clip longer than a chunk is cut."""

    def count(self, sizes: Sizes) -> Int64s:
        frames = -(-np.minimum(sizes.samples, self.most) // self.hop)
        return ((frames - 1) // 2 + 1 - 2) // 2 + 1


class Qwen3OmniAudio(_WhisperAudio):
    """Sound of ``Qwen3OmniMoeProcessor``, which cuts nothing."""

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        return {f"it is not longer than the padding of {self.padding} samples": sizes.samples <= self.padding}

    def count(self, sizes: Sizes) -> Int64s:
        frames = sizes.samples // self.hop
        rest = (frames % 100 - 1) // 2 + 1
        return ((rest - 1) // 2 + 1 - 1) // 2 + 1 + frames // 100 * 13
