"""Which frames of a video a processor takes: all, a number of them, or some a second.

Source: ``default_sample_indices_fn`` of transformers, and ``sample_frames`` of its video processors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from feedmill.samples.token_rules.rule import Bools, Int64s, Parameters, Sizes

NO_RATE = "its frame rate is unknown"
FEWER = "it has fewer frames than are sampled"
NONE = "no frame is sampled"
PAST = "the frame after its last one is sampled, by rounding of the step"


class Sampling:
    """The numbers of frames to take of each video, as most video processors do: evenly.

    Args:
        given: parameters of the video processor.
        samples: default of ``do_sample_frames``.
        wanted: default of ``num_frames``; None if frames are not sampled by number.

    Attributes:
        samples: whether frames are sampled.
        wanted, fps: frames to take, or frames to take a second of the video; not both.

    Raises:
        ConfigError: both are given, which the processor refuses for each video.
    """

    def __init__(self, given: Parameters, *, samples: bool, wanted: int | None = None) -> None:
        self.samples = given.flag("do_sample_frames", samples)
        self.wanted = given.maybe("num_frames", given.integer, wanted)
        self.fps = given.maybe("fps", given.number)
        if self.samples and self.wanted is not None and self.fps is not None:
            raise given.wrong("fps", f"null, as num_frames is {self.wanted}", self.fps)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in sorted(vars(self).items()))})"

    @property
    def needs_rate(self) -> bool:
        """Return whether frames are sampled by time."""
        return self.samples and self.wanted is None and self.fps is not None

    def count(self, sizes: Sizes) -> Int64s:
        """Return the frames that are taken, int64[n]; more than there are for videos that are refused."""
        if not self.samples:
            return sizes.frames
        if self.wanted is not None:
            return np.full(len(sizes), self.wanted)
        if self.fps is None:
            return sizes.frames
        return np.asarray(np.maximum(1, (sizes.frames / rate(sizes) * self.fps).astype(np.int64)))

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        """Return reason -> bool[n]: videos for which the processor raises an error."""
        out: dict[str, Bools] = {}
        if self.needs_rate:
            out[NO_RATE] = ~(sizes.fps > 0)
        out[FEWER] = self.count(sizes) > sizes.frames
        return out

    def numbers(self, total: int, fps: float) -> Int64s:
        """Return the numbers of the frames of one video."""
        wanted = int(self.count(Sizes.of(frames=[total], fps=[fps], height=[1], width=[1]))[0])
        return np.arange(wanted) * total // wanted


def rate(sizes: Sizes) -> npt.NDArray[np.float64]:
    """Return the frames a second, with a harmless rate where it is unknown."""
    return np.where(sizes.fps > 0, sizes.fps, 24.0)


def stepped(total: Int64s, wanted: Int64s | int, shift: Int64s | npt.NDArray[np.float64] | float = 0) -> Int64s:
    """Return the numbers in ``torch.arange(shift, total, total / wanted)``: one more than wanted by rounding."""
    return np.asarray(np.ceil((total - shift) / (total / wanted)).astype(np.int64))


def past_the_last(total: Int64s, wanted: Int64s | int) -> Bools:
    """Return where the last number in ``torch.arange(0, total, total / wanted).int()`` is `total`: float32.

    The processor raises an error for such videos (findings/transformers_frame_after_the_last.sh).
    """
    steps = stepped(total, wanted)
    last = ((steps - 1) * (total / wanted)).astype(np.float32).astype(np.int64)
    return np.asarray(last >= total)


def by_clip(sizes: Sizes, texts: Callable[[int, float], list[str]], count: Callable[[str], int]) -> Int64s:
    """Return the tokens of the texts of each video, int64[n]. Few texts and few clips differ: each is counted once."""
    known: dict[str, int] = {}
    clips: dict[tuple[int, float], int] = {}
    out = np.empty(len(sizes.frames), np.int64)
    for number, clip in enumerate(zip(sizes.frames.tolist(), sizes.fps.tolist(), strict=True)):
        if clip not in clips:
            total = 0
            for text in texts(*clip):
                if text not in known:
                    known[text] = count(text)
                total += known[text]
            clips[clip] = total
        out[number] = clips[clip]
    return out
