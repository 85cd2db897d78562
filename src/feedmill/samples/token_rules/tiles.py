"""Images in tiles of the grid with the closest ratio, and videos with a tile a frame: InternVL.

Source: ``GotOcr2ImageProcessor`` (``get_optimal_tiled_canvas``), ``InternVLVideoProcessor`` and ``InternVLProcessor``
of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feedmill.errors import ConfigError
from feedmill.samples.token_rules.frames import FEWER, NONE, PAST, Sampling, past_the_last, rate, stepped
from feedmill.samples.token_rules.rule import Bools, Count, Folder, Int64s, Sizes, TokenRule


def closest_grid(height: Int64s, width: Int64s, side: int, grids: Sequence[tuple[int, int]]) -> tuple[Int64s, Int64s]:
    """Return (columns, rows) of the grid whose ratio is closest; a later one as close if the image is large enough."""
    ratio, area = width / height, width * height
    best = np.full(height.shape, np.inf)
    columns, rows = np.ones_like(height), np.ones_like(height)
    for wide, tall in grids:
        distance = np.abs(ratio - wide / tall)
        take = (distance < best) | ((distance == best) & (area > 0.5 * side * side * wide * tall))
        best = np.minimum(best, distance)
        columns, rows = np.where(take, wide, columns), np.where(take, tall, rows)
    return columns, rows


class InternVLImages(TokenRule):
    """Images of ``InternVLProcessor``, which crops to tiles unless it is called with ``crop_to_patches=False``."""

    kind = "image"
    classes = ("GotOcr2ImageProcessor",)
    always = {"crop_to_patches": True}  # noqa: RUF012 - never changed

    def __init__(self, folder: Folder) -> None:
        given = folder.image
        assert given is not None
        self.side, other = given.edges("size", {"height": 384, "width": 384}, "height", "width")
        if self.side != other:
            raise ConfigError(f"size must be square: found {self.side} x {other}", file=given.where, kind="unsupported")
        self.crops = given.flag("crop_to_patches", True)
        least, most = given.integer("min_patches", 1), given.integer("max_patches", 12)
        grids = ((wide, tall) for wide in range(1, most + 1) for tall in range(1, most + 1))
        self.grids = tuple(sorted((g for g in grids if least <= g[0] * g[1] <= most), key=lambda g: g[0] * g[1]))
        self.length = folder.processor.integer("image_seq_length", 256)
        self.start, self.end = folder.token("start_image_token", None), folder.token("end_image_token", None)
        self.placeholder = folder.token("context_image_token", None)

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"{self.start}{self.placeholder}{self.end}",)

    def count(self, sizes: Sizes) -> Int64s:
        if not self.crops:
            return np.full(len(sizes), self.length + 2)
        columns, rows = closest_grid(sizes.height, sizes.width, self.side, self.grids)
        tiles = columns * rows
        return 2 + self.length * np.where(tiles > 1, tiles + 1, 1)


class InternVLVideos(TokenRule):
    """Videos of ``InternVLProcessor``: a line of text for each frame, which is one tile."""

    kind = "video"
    classes = ("InternVLVideoProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.video
        assert given is not None
        self.sampling = _Shifted(given, samples=False)
        if self.sampling.samples and self.sampling.wanted is None and self.sampling.fps is None:
            raise given.wrong("num_frames", "given, as do_sample_frames is true", None)
        shift = given.get("initial_shift", True)
        if not isinstance(shift, bool | int | float) or shift < 0:
            raise given.wrong("initial_shift", "true, false or a number of frames", shift)
        self.sampling.shift = shift
        self.length = folder.processor.integer("image_seq_length", 256)
        self.start, self.end = folder.token("start_image_token", None), folder.token("end_image_token", None)
        self.placeholder, self.image = folder.token("video_token", None), folder.token("context_image_token", None)

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"Frame1: {self.start}{self.image}{self.end}",)

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        frames = self.sampling.count(sizes)
        first = np.arange(len(sizes)) - sizes.number
        return {
            **self.sampling.refusals(sizes),
            "another video of its sample has another number of frames": frames != frames[first],
        }

    def count(self, sizes: Sizes) -> Int64s:
        return self.sampling.count(sizes) * (self.length + 2)

    def written(self, sizes: Sizes, text: Count) -> Int64s:
        frames = self.sampling.count(sizes)
        most = int(frames.max(initial=0))
        lines = [text(f"{'' if number == 1 else chr(10)}Frame{number}: ") for number in range(1, most + 1)]
        return np.concatenate([[0], np.cumsum(lines)]).astype(np.int64)[frames]


class _Shifted(Sampling):
    """Frames in the middle of equal parts, or from another first one.

    Attributes:
        shift: the first frame; True for the middle of the first part.
    """

    shift: bool | float = True

    def _wanted(self, sizes: Sizes) -> Int64s:
        if self.wanted is not None:
            return np.full(len(sizes), self.wanted)
        assert self.fps is not None
        return np.asarray((sizes.frames / rate(sizes) * self.fps).astype(np.int64))

    def count(self, sizes: Sizes) -> Int64s:
        if not self.samples:
            return sizes.frames
        wanted = np.clip(self._wanted(sizes), 1, sizes.frames)
        shift = sizes.frames / wanted / 2 if self.shift is True else float(self.shift)
        return np.maximum(0, stepped(sizes.frames, wanted, shift))

    def refusals(self, sizes: Sizes) -> dict[str, Bools]:
        if not self.samples:
            return {}
        wanted = self._wanted(sizes)
        out = super().refusals(sizes)
        out[FEWER] = wanted > sizes.frames
        out[NONE] = (wanted < 1) | (self.count(sizes) < 1)
        if not self.shift:
            out[PAST] = past_the_last(sizes.frames, np.clip(wanted, 1, sizes.frames))
        return out
