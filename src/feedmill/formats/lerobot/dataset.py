"""Read LeRobot datasets, versions 2.x and 3.x: robot episodes, one sample per frame.

Layout::

    meta/info.json                      codebase_version, fps, features, total_episodes, total_frames, splits,
                                        data_path, video_path (templates), chunks_size (v2)
    v2: meta/episodes.jsonl             {"episode_index": 0, "tasks": [...], "length": 120}
        meta/tasks.jsonl                {"task_index": 0, "task": "..."}
        data/chunk-000/episode_000000.parquet
        videos/chunk-000/<camera>/episode_000000.mp4
    v3: meta/episodes/chunk-000/file-000.parquet    also: data/file_index, dataset_from_index,
                                                    videos/<camera>/file_index and from_timestamp, ...
        meta/tasks.parquet
        data/chunk-000/file-000.parquet             several episodes per file
        videos/<camera>/chunk-000/file-000.mp4

A sample's parts are the columns of the frame, ``task`` (the text of its ``task_index``), ``subtask`` (that of its
``subtask_index`` in ``meta/subtasks.parquet``), and one part per camera.
Images stored in columns are decoded as images. From videos, the frame at the sample's time is decoded on access,
uint8[H, W, 3], or uint16[H, W, 1] of gray of 9 to 16 bits. Depth maps (``is_depth_map``) are millimeters,
float32[H, W, 1]. `raw` returns frames as PNG, depth in whole millimeters as gray of 16 bits. The key is
``EPISODE/FRAME``, six digits each. Splits are ranges of episodes.

With windows (`Episodic.windowed`), parts have the frames around the sample's one: columns are arrays
``[k, ...]``, features of shape ``[1]`` are ``[k]``, cameras ``[k, H, W, C]`` (``[H, W, C]`` for one frame), and
``NAME_is_pad`` is bool[k]. Frames outside the episode repeat its first or last one.

Rejected: path templates that lead out of the folder, numbers of frames that differ between files and ``meta``, and
features without a column.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import DataError, FeedmillError, MissingExtra, NotFound
from feedmill.formats.arrowtypes.reading import values
from feedmill.formats.avvideo import FrameBatch, FrameRequest, Frames, as_png
from feedmill.formats.base import Indices
from feedmill.formats.columns import ColumnFile, ParquetFile, load_pyarrow
from feedmill.formats.content import content_of_files
from feedmill.formats.episodes import PAD, Episodic
from feedmill.formats.format import OpenRequest
from feedmill.formats.lerobot.depth import FORM, depth_of_frame, depth_of_image, depths_of_codes, is_depth
from feedmill.formats.lerobot.meta import (
    AGAIN,
    INFO,
    Episodes,
    episode_columns,
    episode_values,
    episodes_v2,
    episodes_v3,
    gone,
    read_info,
    splits_of,
    subtasks_v3,
    tasks_v2,
    tasks_v3,
)  # fmt: skip
from feedmill.formats.offsets import Extents, Int64s, hash_words
from feedmill.formats.rows import PIXELS, Film, Lazy, to_bytes
from feedmill.formats.tables.dataset import TableDataset
from feedmill.storage import Store

LONG = 1_000_000
"""Frames of an episode from which on its data file is opened with the dataset."""
_HERE = np.zeros(1, np.int64)
"""The window of a part without one: the sample's own frame."""
OPEN_BYTES = 64 << 20
"""Bytes of memory of the data files that are kept open: each takes some kilobytes an episode."""


class LeRobotDataset(Episodic, TableDataset):
    """The frames of episodes.

    Args:
        lenient: whether the dataset is opened although its first data files are damaged or missing; reading from them
            raises the error.
    """

    format: ClassVar[str] = "lerobot"

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        info: Mapping[str, Any],
        episodes: Episodes,
        tasks: Mapping[int, str],
        subtasks: Mapping[int, str],
        split: str | None,
        chosen: range,
        lenient: bool = False,
    ) -> None:
        self._lenient = lenient
        self.info, self.episodes, self.tasks, self.subtasks = info, episodes, tasks, subtasks
        length = episodes.length
        rows = np.bincount(episodes.file, length, len(episodes.files)).astype(np.int64)  # per complete file
        wanted = np.zeros(len(length), bool)
        wanted[chosen.start : chosen.stop] = True
        counts = np.bincount(episodes.file[wanted], length[wanted], len(episodes.files)).astype(np.int64)
        file_starts = np.cumsum(rows) - rows
        starts = np.cumsum(length) - length
        self._episode_starts = starts[wanted] - (starts[wanted][0] if wanted.any() else 0)
        self._chosen = np.flatnonzero(wanted)
        self._kept = kept = np.flatnonzero(counts)
        first = int(starts[wanted][0]) if wanted.any() else 0
        self._skipped = np.maximum(first - file_starts[kept], 0)  # rows of the first file before the split
        self._sample_counts = counts[kept]
        files = [episodes.files[n] for n in kept.tolist()]
        features = [name for name, feature in info["features"].items() if feature.get("dtype") != "video"]
        columns = _Files(store, files, rows[kept], features)
        super().__init__(store, files, name=name, split=split, columns=columns)
        self._frames = Frames(store, 0.5 / float(info["fps"]))
        depth = {name: feature for name, feature in info["features"].items() if is_depth(feature)}
        self._depths = {name: depths_of_codes(store, name, depth[name]) for name in episodes.videos if name in depth}
        self._depth_images = {name: feature for name, feature in depth.items() if feature.get("dtype") == "image"}
        self._splits = splits_of(store, info, len(length))
        self._fingerprinted: str | None = None
        if not lenient:
            for place in self._chosen[length[self._chosen] > LONG].tolist():
                self.check_file(place)  # readers need memory for as many frames as `meta` claims
        self._grids = _grids(info["features"], self.names)
        cameras = (camera for camera in episodes.videos if camera not in self._depths)
        self.suffixes = {**self.suffixes, **dict.fromkeys(cameras, PIXELS)}

    @property
    def episode_starts(self) -> Int64s:
        return self._episode_starts

    @property
    def episode_lengths(self) -> Int64s:
        return np.asarray(self.episodes.length[self._chosen], np.int64)

    @property
    def episode_numbers(self) -> Int64s:
        return np.asarray(self.episodes.number[self._chosen], np.int64)

    @property
    def fps(self) -> float:
        return float(self.info["fps"])

    @property
    def task_part(self) -> str:
        return "task" if "task_index" in self.names else ""

    def task_texts(self) -> Sequence[str]:
        return [self.tasks[number] for number in sorted(self.tasks)]

    def with_offsets(self, offsets: Mapping[str, Int64s]) -> LeRobotDataset:
        found = super().with_offsets(offsets)
        found._fingerprinted = None
        return found

    def with_cameras(self, names: Container[str | None]) -> LeRobotDataset:
        found = copy.copy(self)
        found.__dict__.pop("_video_places", None)
        found._fingerprinted = None
        videos = {name: places for name, places in self.episodes.videos.items() if name in names}
        found.episodes = dataclasses.replace(self.episodes, videos=videos)
        return found

    @property
    def features(self) -> Mapping[str, Mapping[str, Any]]:
        return {name: self.info["features"].get(name) or {} for name in (*self.names, *self.episodes.videos)}

    def numbers(self, names: Sequence[str], frames: Int64s) -> dict[str, npt.NDArray[Any]]:
        wanted = np.asarray(frames, np.int64)
        files = np.searchsorted(self._ends, wanted, side="right")
        pieces: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        order: list[Int64s] = []
        for file in np.unique(files).tolist():
            places = np.flatnonzero(files == file)
            columns, where = self._columns[file], self.store.locate(self.files[file])
            stored = self._stored(file, wanted[places] - self._starts[file])
            blocks = np.searchsorted(columns.ends, stored, side="right")
            for block in np.unique(blocks).tolist():
                here = blocks == block
                table = self._block(file, block).table
                rows = stored[here] - (int(columns.ends[block - 1]) if block else 0)
                for name in names:  # an array over the block's own memory: `arrow_rows` would copy every column
                    pieces[name].append(matrix(table.column(name), name, where)[rows])
                order.append(places[here])
        if not order:
            return {name: np.zeros((0, 0)) for name in names}
        for name, several in pieces.items():
            if len({piece.shape[1] for piece in several}) > 1:
                raise _not_numbers(name, self.url, "its files have rows of several lengths")
        back = np.argsort(np.concatenate(order), kind="stable")
        return {name: np.concatenate(several)[back] for name, several in pieces.items()}

    def columns_of(self, file: int, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        columns, stored = self._columns[file], self._stored(file, np.arange(int(self.counts[file])))
        where = self.store.locate(self.files[file])
        tables = [columns.read(block, list(names))[0] for block in range(len(columns.ends))]
        return {
            name: np.concatenate([matrix(table.column(name), name, where) for table in tables])[stored]
            for name in names
        }

    def place_in_meta(self, episode: int) -> int:
        """Return the place in `episodes` of an episode of this dataset."""
        return int(self._chosen[episode])

    @property
    def texts(self) -> list[str]:
        texts = {"task": "task_index", "subtask": "subtask_index"}
        return [name for name, column in texts.items() if column in self.names and (name == "task" or self.subtasks)]

    @cached_property
    def episode_columns(self) -> list[str]:
        return episode_columns(self.store, self.info)

    def episode_values(self, name: str) -> list[Any] | None:
        if name not in self.episode_columns:
            return None
        found = episode_values(self.store, self.info, name)
        return [found[at] for at in self._chosen.tolist()]

    def values_of(self, name: str) -> list[Any]:
        return [
            value
            for blocks, stored in self._column(name)
            for found in [[one for block in blocks for one in values(block, name)]]
            for value in (found[at] for at in stored.tolist())
        ]

    def text_values(self, name: str) -> list[str | None]:
        texts = self.tasks if name == "task" else self.subtasks
        return [texts.get(number) for number in self.values_of(f"{name}_index")]

    def _first_schema(self) -> Any:
        if not self._lenient:
            return super()._first_schema()
        for number in range(len(self._columns)):
            try:
                return self._columns[number].schema
            except MissingExtra:
                raise
            except FeedmillError:
                continue
        return None

    def _counted(self) -> Int64s:
        return np.asarray(self._sample_counts, np.int64)

    def _stored(self, file: int, local: Int64s) -> Int64s:
        return np.asarray(local + self._skipped[file], np.int64)

    def check_file(self, place: int) -> None:
        """Open the data file of an episode. Raises `NotFound`, and `DataError` if it has not the frames of ``meta``."""
        _ = self._columns[int(np.searchsorted(self._kept, self.episodes.file[place]))]

    def _episode(self, index: int) -> tuple[int, int]:
        """Return the position of a sample's episode in the dataset, and the frame's number in it."""
        at = int(np.searchsorted(self._episode_starts, index, side="right")) - 1
        return int(self._chosen[at]), index - int(self._episode_starts[at])

    def _rows(self, file: int, local: Int64s) -> list[dict[str, Any]]:
        out = super()._rows(file, local)
        requests: list[FrameRequest] = []
        frames = self._frames.request(requests)
        for at, row in zip(local.tolist(), out, strict=True):
            episode, frame = self._episode(int(self._starts[file]) + at)
            for name, dtype in self._grids:
                row[name] = None if row[name] is None else np.asarray(row[name], dtype)
            if "task_index" in row:
                row["task"] = self.tasks.get(row["task_index"])
            if self.subtasks and "subtask_index" in row:
                row["subtask"] = self.subtasks.get(row["subtask_index"])
            time = row.get("timestamp")
            seconds = frame / float(self.info["fps"]) if time is None else float(time)
            for camera, places in self.episodes.videos.items():
                if camera not in self.windows:
                    path, begins = places[episode]
                    row[camera] = Film(partial(self._frames_of, frames, [len(requests)], camera), as_png)
                    requests.append(FrameRequest(path, begins + seconds, self._form(camera)))
            for name, feature in self._depth_images.items():
                if isinstance(data := row.get(name), bytes):
                    row[name] = Lazy(partial(depth_of_image, data, feature), lambda data=data: data)  # type: ignore[misc]
        if self.windows:
            self._add_windows(local + int(self._starts[file]), out, frames, requests)
        return out

    def _add_windows(
        self, samples: Int64s, out: list[dict[str, Any]], frames: FrameBatch, requests: list[FrameRequest]
    ) -> None:
        """Replace the parts that have windows in the rows of samples, by their numbers, int64[n]."""
        windows = {name: self.window(samples, offsets) for name, offsets in self.windows.items()}
        numbers, places = np.unique(np.concatenate([w.ravel() for w, _ in windows.values()]), return_inverse=True)
        arrays = self._arrays_of(windows, numbers)
        filmed = any(name in self.episodes.videos for name in windows)
        others = [name for name in windows if name not in arrays and name not in self.episodes.videos]
        dated = filmed and "timestamp" in self.names
        table = self.arrow_rows(numbers) if others or (dated and "timestamp" not in arrays) else None
        at, fps = 0, float(self.info["fps"])
        for name, (wanted, pads) in windows.items():
            rows = places[at : at + wanted.size].reshape(wanted.shape)
            at += wanted.size
            if name in arrays:
                for row, inside in zip(out, rows, strict=True):
                    row[name] = arrays[name][inside]
            elif name in self.episodes.videos:
                times = arrays["timestamp"].tolist() if "timestamp" in arrays else None
                if dated and times is None and table is not None:
                    times = table.column("timestamp").to_pylist()
                for sample, row, inside in zip(samples.tolist(), out, rows, strict=True):
                    episode, frame = self._episode(sample)
                    path, begins = self.episodes.videos[name][episode]
                    seconds = ((numbers[inside] - sample + frame) / fps).tolist()
                    if times is not None:  # a row may lack it
                        seconds = [
                            s if times[n] is None else float(times[n]) for n, s in zip(inside, seconds, strict=True)
                        ]
                    asked = range(len(requests), len(requests) + len(inside))
                    requests += [FrameRequest(path, begins + time, self._form(name)) for time in seconds]
                    row[name] = Film(partial(self._frames_of, frames, asked, name), to_bytes)
            else:
                self._add_columns(name, table, rows, out)
            for row, pad in zip(out, pads, strict=True):
                row[name + PAD] = pad

    def _arrays_of(self, windows: Container[str], numbers: Int64s) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of numbers with windows, and the times, of frames, in the dtypes of their features."""
        arrays = {}
        for name in self.names:
            feature = self.info["features"].get(name) or {}
            if (name not in windows and name != "timestamp") or not is_numeric(feature):
                continue
            shape = tuple(feature.get("shape") or (1,))
            try:
                found = self.numbers([name], numbers)[name]
            except DataError:  # values that are missing, or of several lengths: they are given as they are
                continue
            if found.shape[1] == math.prod(shape):
                array = found.astype(str(feature["dtype"]), copy=False).reshape(-1, *shape)
                arrays[name] = array[:, 0] if shape == (1,) else array
        return arrays

    def _add_columns(self, name: str, table: Any, rows: Int64s, out: list[dict[str, Any]]) -> None:
        """Replace a column by windows of it; `rows` int64[n, k] of the table."""
        feature = self.info["features"].get(name) or {}
        stored = values(table.column(name), name)
        array = numeric_column(stored, feature)
        if array is not None and array.shape[1:] == (1,):
            array = array[:, 0]
        for row, inside in zip(out, rows, strict=True):
            if array is not None:
                row[name] = array[inside]
            elif name in self._depth_images:
                several = [stored[at] for at in inside.tolist()]
                make = partial(_depths_of_images, several, self._depth_images[name])
                row[name] = Lazy(make, lambda make=make: to_bytes(make()))  # type: ignore[misc]
            else:
                row[name] = [stored[at] for at in inside.tolist()]

    def _form(self, camera: str) -> str | None:
        """Return the pixel format in which frames of a camera are decoded; None for that of pictures."""
        return FORM if camera in self._depths else None

    def _frames_of(self, frames: FrameBatch, numbers: Sequence[int], camera: str) -> list[npt.NDArray[Any]]:
        """Return frames of a batch, ``[H, W, C]`` each; those of depth videos in millimeters."""
        pixels: list[npt.NDArray[Any]] = [frames.take(number) for number in numbers]
        if camera in self._depths:
            pixels = [depth_of_frame(codes, self._depths[camera]) for codes in pixels]
        return pixels

    def extents(self, indices: Indices) -> Sequence[Extents]:
        if self.store.is_local:
            return ()
        wanted = self._inside(indices)
        rows, owners = wanted, np.arange(len(wanted))
        if self.windows:
            parts = [wanted, *(self.window(wanted, offsets)[0].ravel() for offsets in self.windows.values())]
            counts = [1, *map(len, self.windows.values())]
            rows, owners = np.concatenate(parts), np.concatenate([owners.repeat(count) for count in counts])
        found = [extents.of_samples(owners) for extents in super().extents(rows)]
        files: list[Int64s] = []
        times: list[npt.NDArray[np.float64]] = []
        samples: list[Int64s] = []
        at = np.searchsorted(self._episode_starts, wanted, side="right") - 1
        paths, places = self._video_places
        for camera, (file, starts) in places.items():
            numbers, _ = self.window(wanted, self.windows.get(camera, _HERE))
            # By the rate: rows with the times are not read yet. A time that differs a little has the same frame.
            seconds = (numbers - self._episode_starts[at][:, None]) / float(self.info["fps"])
            episode = self._chosen[at]
            files.append(np.broadcast_to(file[episode][:, None], numbers.shape).ravel())
            times.append((starts[episode][:, None] + seconds).ravel())
            samples.append(np.repeat(np.arange(len(wanted)), numbers.shape[1]))
        if not files:
            return found
        which, begins, ends = self._frames.extents(paths, np.concatenate(files), np.concatenate(times))
        owners, of_files = np.concatenate(samples)[which], np.concatenate(files)[which]
        return [*found, Extents(self.store, paths, owners, of_files, begins, ends)]

    @cached_property
    def _video_places(self) -> tuple[list[str], dict[str, tuple[Int64s, npt.NDArray[np.float64]]]]:
        """The video files, and by camera the number of the file of each episode and where it begins in seconds."""
        numbers: dict[str, int] = {}
        places = {}
        for camera, episodes in self.episodes.videos.items():
            files = [numbers.setdefault(path, len(numbers)) for path, _ in episodes]
            places[camera] = np.asarray(files, np.int64), np.asarray([begin for _, begin in episodes], np.float64)
        return list(numbers), places

    def _find_costs(self, by: str) -> Int64s | None:
        """Return costs from the shapes of the cameras: a sample has one frame of each."""
        said = self.info["features"].items()
        cameras = {n: f for n, f in said if f.get("dtype") == "image" or n in self.episodes.videos}
        frames = [len(self.windows.get(name, _HERE)) for name in cameras]
        pixels = [_pixels(feature) for feature in cameras.values()]
        if by == "frames" and pixels:
            return np.broadcast_to(np.int64(sum(frames)), (len(self),))
        if by == "pixels" and pixels and None not in pixels:
            total = sum(count * (n or 0) for count, n in zip(frames, pixels, strict=True))
            return np.broadcast_to(np.int64(total), (len(self),))
        return super()._find_costs(by)

    def _key(self, file: int, local: int) -> str:
        episode, frame = self._episode(int(self._starts[file]) + local)
        return f"{int(self.episodes.number[episode]):06d}/{frame:06d}"

    def _file_hash(self, file: int) -> str:
        return self.files[file]

    def fingerprint(self) -> str:
        if self._fingerprinted is None:
            words = [*self.files, content_of_files(self.store, self.files)]
            features = orjson.dumps(self.info["features"], option=orjson.OPT_SORT_KEYS).decode()
            lengths = self.episodes.length[self._chosen].tobytes().hex()
            tasks = [f"{number} {task}" for number, task in (*self.tasks.items(), *self.subtasks.items())]
            windows = [f"{name} {offsets.tolist()}" for name, offsets in sorted(self.windows.items())]
            chosen = self._chosen[:1].tobytes().hex()
            self._fingerprinted = hash_words([features, lengths, chosen, *words, *tasks, *windows])
        return self._fingerprinted

    def fingerprint_of_first(self, count: int) -> str | None:  # noqa: ARG002
        return None

    def verify(self) -> Sequence[FeedmillError]:
        """Read every block once, and check that rows are those of their episodes, and that the video files exist."""
        findings = list(super().verify())
        if not findings:
            findings += filter(None, map(self._misplaced, range(len(self.files))))
        for path in sorted({path for places in self.episodes.videos.values() for path, _ in places}):
            if not self.store.exists(path):
                findings.append(gone(self.store, path))
        return findings

    def _misplaced(self, file: int) -> FeedmillError | None:
        """Return the error for a file whose rows say other episodes or frames than ``meta`` has at their places.

        Reading takes the places from ``meta``: windows of such a file would have frames of other times and episodes.
        """
        names = [name for name in ("episode_index", "frame_index") if name in self.names]
        first, end = self.shard_bounds[file : file + 2].tolist()
        samples = np.arange(first, end)
        at = self.episodes_of(samples)
        expected = {"episode_index": self.episode_numbers[at], "frame_index": samples - self.episode_starts[at]}
        try:
            stored = self.columns_of(file, names) if names else {}
        except FeedmillError as error:
            return error
        for name, column in stored.items():
            wrong = np.flatnonzero(column[:, 0] != expected[name])
            if len(wrong):
                row = int(wrong[0])
                return DataError(
                    f"{len(wrong):,} of {end - first:,} rows have another {name} than meta says: the row {row} has"
                    f" {column[row, 0]}, expected {expected[name][row]}",
                    file=self.store.locate(self.files[file]),
                    record=self.key_of(first + row),
                    kind="bad-data",
                    fix=AGAIN,
                )
        return None

    @cached_property
    def last_starts(self) -> dict[str, dict[str, float]]:
        """Return camera -> video file -> time at which the last episode in it begins, in seconds."""
        last_starts: dict[str, dict[str, float]] = {}
        for camera, places in self.episodes.videos.items():
            of = last_starts.setdefault(camera, {})
            for path, begins in places:
                of[path] = max(begins, of.get(path, begins))
        return last_starts

    @property
    def split_ranges(self) -> Mapping[str, range]:
        """Return split -> range of its episodes in the whole dataset."""
        return self._splits

    @property
    def splits(self) -> Mapping[str, int]:
        return {name: int(self.episodes.length[part.start : part.stop].sum()) for name, part in self._splits.items()}

    def describe(self) -> dict[str, Any]:
        """Return plain facts for `info`."""
        cameras = [n for n, f in self.info["features"].items() if f.get("dtype") in ("video", "image")]
        splits = {
            name: {"samples": count, "shards": len(set(self.episodes.file[self._splits[name]].tolist()))}
            for name, count in self.splits.items()
        }
        facts = super().describe()
        filmed = {path for places in self.episodes.videos.values() for path, _ in map(places.__getitem__, self._chosen)}
        if filmed and facts.get("bytes") is not None:  # one listing, instead of a request for each file
            facts["bytes"] += sum(entry.size for entry in self.store.files("videos") if entry.path in filmed)
        return {
            **facts,
            "version": self.info["codebase_version"],
            "episodes": len(self._chosen),
            "fps": self.info["fps"],
            "robot": self.info.get("robot_type"),
            "cameras": cameras,
            "tasks": len(self.tasks),
            "splits": splits,
        }


def _depths_of_images(images: Sequence[bytes], feature: Mapping[str, Any]) -> Any:
    return np.stack([depth_of_image(bytes(image), feature) for image in images])


def numeric_column(stored: Any, feature: Mapping[str, Any]) -> npt.NDArray[Any] | None:
    """Return the values of a column as an array, ``[n]`` or ``[n, ...]`` in the dtype and with the axes of its feature.

    None if the values are not numeric, or have other shapes than the feature.
    """
    try:
        found = np.asarray(stored)
        if is_numeric(feature):
            found = found.astype(str(feature["dtype"]), copy=False)
    except (OverflowError, TypeError, ValueError):  # lists of different lengths, an unknown type
        return None
    if found.dtype.kind not in "biuf":
        return None
    shape = tuple(feature.get("shape") or found.shape[1:])
    return found if found.shape[1:] == shape or (found.ndim == 1 and shape == (1,)) else None


def matrix(column: Any, name: str, where: str) -> npt.NDArray[Any]:
    """Return a column of numbers or of lists of them, nested at any depth, as ``[n, width]``; see `numbers`."""
    pyarrow = load_pyarrow()
    count = len(column)
    flat = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    if isinstance(flat, pyarrow.ChunkedArray):
        flat = pyarrow.concat_arrays(flat.chunks)
    lists = pyarrow.types.is_list, pyarrow.types.is_large_list, pyarrow.types.is_fixed_size_list
    missing = flat.null_count
    while any(kind(flat.type) for kind in lists):
        if not pyarrow.types.is_fixed_size_list(flat.type):
            lengths = np.diff(np.asarray(flat.offsets))
            if len(lengths) and (lengths != lengths[0]).any():
                sizes = ", ".join(map(str, np.unique(lengths)[:4].tolist()))
                raise _not_numbers(name, where, f"its rows have several lengths ({sizes})")
        flat = flat.flatten()
        missing += flat.null_count
    if missing:
        raise _not_numbers(name, where, f"{missing:,} of its values are missing")
    if not any(
        kind(flat.type) for kind in (pyarrow.types.is_floating, pyarrow.types.is_integer, pyarrow.types.is_boolean)
    ):
        raise _not_numbers(name, where, f"it holds {flat.type}")
    numbers: npt.NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return numbers.reshape(count, -1) if count else numbers.reshape(0, 0)


def _not_numbers(name: str, where: str, why: str) -> DataError:
    return DataError(
        f"column {name!r} is not numbers of one shape: {why}",
        file=where,
        record=name,
        kind="bad-data",
        fix="Leave the column out, or download the dataset again.",
    )


def is_numeric(feature: Mapping[str, Any]) -> bool:
    """Return whether a feature has numbers."""
    return str(feature.get("dtype")).startswith(("float", "int", "uint", "bool"))


def _grids(features: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, np.dtype[Any]]]:
    """Return features with several axes, stored as lists of lists, and their dtypes."""
    out = []
    for name, feature in features.items():
        try:
            dtype = np.dtype(str(feature.get("dtype")))
        except TypeError:
            continue  # text, images, videos
        if name in names and dtype.kind in "biuf" and len(feature.get("shape") or ()) > 1:
            out.append((name, dtype))
    return out


def _pixels(feature: Mapping[str, Any]) -> int | None:
    """Return the pixels of a camera's frame, with channels on any axis; None if its shape is unknown."""
    shape: Sequence[Any] = feature.get("shape") or ()
    if len(shape) != 3 or any(type(n) is not int or not 0 < n < 1 << 20 for n in shape):
        return None
    channels = next((n for n in (shape[2], shape[0]) if n <= 4), None)
    return None if channels is None else math.prod(shape) // channels


class _Files(Sequence[ColumnFile]):
    """Data files, opened on first access because there may be one per episode."""

    def __init__(self, store: Store, paths: list[str], rows: Int64s, features: list[str]) -> None:
        self._store, self._paths, self._expected, self._features = store, paths, rows, features
        self._open: OrderedDict[int, ParquetFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: Any) -> Any:
        if number >= len(self._paths):
            raise IndexError(number)
        known = self._open.get(number)
        if known is None:
            path = self._paths[number]
            if not self._store.exists(path):
                raise gone(self._store, path)
            known = ParquetFile(self._store, path)
            if len(known) != self._expected[number]:
                raise DataError(
                    f"the file has {len(known)} frames, but its episodes have {self._expected[number]}",
                    file=self._store.locate(path),
                    kind="wrong-count",
                    fix=AGAIN,
                )
            self._check_columns(path, known)
            self._open[number] = known
            while sum(file.nbytes for file in list(self._open.values())) > OPEN_BYTES and len(self._open) > 1:
                self._open.popitem(last=False)
        else:
            with suppress(KeyError):  # another thread may have dropped it
                self._open.move_to_end(number)
        return known

    def _check_columns(self, path: str, file: ColumnFile) -> None:
        lacking = next((name for name in self._features if name not in file.schema.names), None)
        if lacking is not None:
            raise DataError(
                f"{INFO} has the feature {lacking!r}, but the data has no such column",
                file=self._store.locate(path),
                record=lacking,
                kind="no-column",
                fix=AGAIN,
            )


def is_lerobot(store: Store) -> bool:
    """Return whether the folder is a LeRobot dataset."""
    return store.exists(INFO) and b'"codebase_version"' in store.read_small(INFO)


def open_lerobot(store: Store, url: str, split: str | None = None, *, lenient: bool = False) -> LeRobotDataset:
    """Open a LeRobot dataset. See `LeRobotDataset`. Raises `NotFound`, `DataError`, `ConfigError`, `MissingExtra`."""
    try:
        return _opened(store, url, split, lenient)
    except (AttributeError, KeyError, MemoryError, OverflowError, TypeError, ValueError) as error:
        raise DataError(
            f"the metadata of the dataset is malformed ({type(error).__name__}: {error})",
            file=store.locate(INFO.rpartition("/")[0]),
            kind="bad-index",
            fix=AGAIN,
        ) from None


def _opened(store: Store, url: str, split: str | None, lenient: bool) -> LeRobotDataset:
    info = read_info(store)
    new = str(info["codebase_version"]).startswith("v3")
    episodes = episodes_v3(store, info) if new else episodes_v2(store, info)
    frames = int(episodes.length.sum())
    for name, found in (("total_episodes", len(episodes.length)), ("total_frames", frames)):
        if info.get(name) not in (None, found):
            raise DataError(
                f"'{name}' is {info[name]}, but the episodes have {found}",
                file=store.locate(INFO),
                kind="wrong-count",
                fix=AGAIN,
            )
    splits = splits_of(store, info, len(episodes.length))
    if split is not None and split not in splits:
        have = ", ".join(map(repr, splits)) or "none"
        raise NotFound(f"there is no split {split!r}", file=url, kind="no-such-split", fix=f"Splits are: {have}.")
    chosen = range(len(episodes.length)) if split is None else splits[split]
    tasks = tasks_v3(store) if new else tasks_v2(store)
    subtasks = subtasks_v3(store) if new and "subtask_index" in info["features"] else {}
    facts: dict[str, Any] = {"name": url, "info": info, "episodes": episodes, "tasks": tasks, "subtasks": subtasks}
    return LeRobotDataset(store, split=split, chosen=chosen, lenient=lenient, **facts)


def open_found(wanted: OpenRequest) -> LeRobotDataset:
    """See `open_lerobot`."""
    return open_lerobot(wanted.store, wanted.url, wanted.split)


def mark(store: Store) -> str | None:
    """Return a mark if a folder is a LeRobot dataset, else None."""
    return "" if is_lerobot(store) else None
