"""Images in tiles of the grid with the closest ratio, and videos with a tile a frame: InternVL.

Source: ``GotOcr2ImageProcessor`` (``get_optimal_tiled_canvas``), ``InternVLVideoProcessor`` and ``InternVLProcessor``
of transformers.

Images of Idefics3 and SmolVLM: tiles of one size in rows, then the whole picture as one tile more.

Source: ``Idefics3ImageProcessor`` and ``Idefics3Processor`` of transformers.

Images of Llama 4: tiles of the canvas that fits best, with a mark between tiles and after rows, and an overview.

Source: ``get_best_fit`` of ``Llama4ImageProcessor``, and ``Llama4Processor`` of transformers. Scales are float32 there,
and ties between canvases depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feedmill.errors import ConfigError
from feedmill.samples.token_rules.frames import FEWER, NONE, PAST, Sampling, past_the_last, rate, stepped
from feedmill.samples.token_rules.rule import Bools, Count, Folder, Int64s, Sizes, TokenRule, Vision, in_pictures


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
        given = folder.of("image")
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
        self._patches = folder.patches(14, self.side, self.side)

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"{self.start}{self.placeholder}{self.end}",)

    def _pictures(self, sizes: Sizes) -> Int64s:
        if not self.crops:
            return np.ones(len(sizes), np.int64)
        columns, rows = closest_grid(sizes.height, sizes.width, self.side, self.grids)
        tiles = columns * rows
        return np.where(tiles > 1, tiles + 1, 1)

    def count(self, sizes: Sizes) -> Int64s:
        return 2 + self.length * self._pictures(sizes)

    def vision(self, sizes: Sizes) -> Vision | None:
        return None if self._patches is None else in_pictures(self._pictures(sizes), self._patches)


class InternVLVideos(TokenRule):
    """Videos of ``InternVLProcessor``: a line of text for each frame, which is one tile."""

    kind = "video"
    classes = ("InternVLVideoProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("video")
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
        self._patches = folder.patches(14, *given.edges("size", {"height": 384, "width": 384}, "height", "width"))

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

    def vision(self, sizes: Sizes) -> Vision | None:
        return None if self._patches is None else in_pictures(self.sampling.count(sizes), self._patches)


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


_LARGEST = 4096
"""``MAX_IMAGE_SIZE`` of transformers."""


class Idefics3Images(TokenRule):
    """Images of ``Idefics3Processor`` and ``SmolVLMProcessor``."""

    kind = "image"
    classes = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")

    def __init__(self, folder: Folder) -> None:
        given = folder.of("image")
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
        self._patches = folder.patches(32, self.tile, self.tile)

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

    def vision(self, sizes: Sizes) -> Vision | None:
        rows, columns = self.grid(sizes)
        return None if self._patches is None else in_pictures(rows * columns + 1, self._patches)

    def written(self, sizes: Sizes, text: Count) -> Int64s:
        """A newline after each row, and one more before the whole picture, which is one text with that of the last."""
        rows, _ = self.grid(sizes)
        return np.where(rows > 0, (rows - 1) * text("\n") + text("\n\n"), 0)


_AT_ONCE = 1 << 16


def canvases(most: int) -> list[tuple[int, int]]:
    """Return (rows, columns) of tiles in the processor's order: by ratio, as it occurs from `most` tiles down."""
    groups: dict[float, list[tuple[int, int]]] = {}
    for tiles in range(most, 0, -1):
        for rows in (n for n in range(1, tiles + 1) if tiles % n == 0):
            groups.setdefault(rows / (tiles // rows), []).append((rows, tiles // rows))
    return [pair for group in groups.values() for pair in group]


class Llama4Images(TokenRule):
    """Images of ``Llama4Processor``."""

    kind = "image"
    classes = ("Llama4ImageProcessor",)

    def __init__(self, folder: Folder) -> None:
        given = folder.of("image")
        given.must("resize_to_max_canvas", False, False, "the rule is for the smallest canvas")
        self.side, other = given.edges("size", {"height": 336, "width": 336}, "height", "width")
        if self.side != other:
            raise ConfigError(f"size must be square: found {self.side} x {other}", file=given.where, kind="unsupported")
        self.most = given.integer("max_patches", 16)
        patch = folder.processor.integer("patch_size", 14)
        ratio = folder.processor.number("pixel_shuffle_ratio", 0.5)
        self.patches = (self.side // patch) ** 2
        self.length = self.patches // round(1 / ratio**2)
        self.placeholder = folder.processor.text("fake_image_token", "<|image|>")

    @property
    def texts(self) -> tuple[str, ...]:
        return ("<|image_start|><|image|><|patch|><|image_end|>",)

    def count(self, sizes: Sizes) -> Int64s:
        rows, columns = self._grid(sizes)
        tiles = rows * columns
        return np.where(tiles > 1, tiles * self.length + rows * (columns - 1) + rows, 0) + self.length + 3

    def vision(self, sizes: Sizes) -> Vision:
        rows, columns = self._grid(sizes)
        return in_pictures(np.where(rows * columns > 1, rows * columns + 1, 1), self.patches)

    def _grid(self, sizes: Sizes) -> tuple[Int64s, Int64s]:
        """Return rows and columns of tiles, int64[n] both."""
        out = np.empty((2, len(sizes)), np.int64)
        for start in range(0, len(sizes), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            out[:, part] = self._some(sizes.height[part], sizes.width[part])
        return out[0], out[1]

    def _some(self, height: Int64s, width: Int64s) -> tuple[Int64s, Int64s]:
        tall, wide = np.array(canvases(self.most), np.int64).T * self.side
        scale = np.minimum(
            tall.astype(np.float32) / height.astype(np.float32)[:, None],
            wide.astype(np.float32) / width.astype(np.float32)[:, None],
        )
        enlarging = np.where(scale >= 1, scale, np.inf).min(1)
        shrinking = np.where(scale < 1, scale, -np.inf).max(1)
        chosen = np.where(np.isfinite(enlarging), enlarging, shrinking)
        area = np.where(scale == chosen[:, None], tall * wide, np.iinfo(np.int64).max)
        best = area.argmin(1)
        return tall[best] // self.side, wide[best] // self.side
