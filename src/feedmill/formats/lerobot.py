"""LeRobot data sets on disk, versions 2.x and 3.x: robot episodes, one sample a frame.

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
        data/chunk-000/file-000.parquet             several episodes a file
        videos/<camera>/chunk-000/file-000.mp4

A sample's parts are the columns of the frame, ``task`` (the words of its ``task_index``), and one part a camera: images
stored in the columns are decoded as such; of videos, the frame at the sample's time is decoded when it is asked for,
uint8[H, W, 3] (`raw` gives it as PNG). The key is ``EPISODE/FRAME``, six digits each. Splits are ranges of episodes.

Refused: templates that lead out of the folder, numbers of frames that differ between files and ``meta``, features that
have no column.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import orjson

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.base import no_such_key
from feedmill.formats.columns import ColumnFile, ParquetFile, values
from feedmill.formats.frames import Frames, as_png
from feedmill.formats.offsets import Int64s, hash_words
from feedmill.formats.rows import Lazy
from feedmill.formats.tables import TableDataset, open_columns
from feedmill.storage import Store

INFO = "meta/info.json"
_FIELD = re.compile(r"\{(\w+)(?::0?(\d*)d)?\}")
_AGAIN = "Download the data set again."
MOST_OPEN = 4096


@dataclass(slots=True)
class Episodes:
    """What ``meta`` says of the episodes, in the order of their frames.

    Attributes:
        number, length: int64[episodes].
        file: int64[episodes], the data file of each, as a number in `files`.
        videos: camera -> (path, seconds at which the episode begins) of each.
    """

    number: Int64s
    length: Int64s
    file: Int64s
    files: list[str]
    videos: dict[str, list[tuple[str, float]]] = field(default_factory=dict)


class LeRobotDataset(TableDataset):
    """The frames of episodes."""

    format: ClassVar[str] = "lerobot"

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        info: Mapping[str, Any],
        episodes: Episodes,
        tasks: Mapping[int, str],
        split: str | None,
        chosen: range,
    ) -> None:
        self.info, self.episodes, self.tasks = info, episodes, tasks
        length = episodes.length
        rows = np.bincount(episodes.file, length, len(episodes.files)).astype(np.int64)  # of each whole file
        wanted = np.zeros(len(length), bool)
        wanted[chosen.start : chosen.stop] = True
        counts = np.bincount(episodes.file[wanted], length[wanted], len(episodes.files)).astype(np.int64)
        file_starts = np.cumsum(rows) - rows
        starts = np.cumsum(length) - length
        self._episode_starts = starts[wanted] - (starts[wanted][0] if wanted.any() else 0)
        self._chosen = np.flatnonzero(wanted)
        kept = np.flatnonzero(counts)
        first = int(starts[wanted][0]) if wanted.any() else 0
        self._skipped = np.maximum(first - file_starts[kept], 0)  # rows of the first file that lie before the split
        self._sample_counts = counts[kept]
        files = [episodes.files[n] for n in kept.tolist()]
        columns = _Files(store, files, rows[kept])
        super().__init__(store, files, name=name, split=split, columns=columns)
        self._frames = Frames(store, 0.5 / float(info["fps"]))
        self._splits = _splits(store, info, len(length))
        self._known: str | None = None
        self._check_columns()

    def _counted(self) -> Int64s:
        return np.asarray(self._sample_counts, np.int64)

    def _stored(self, file: int, local: Int64s) -> Int64s:
        return np.asarray(local + self._skipped[file], np.int64)

    def _check_columns(self) -> None:
        for name, feature in self.info["features"].items():
            if feature.get("dtype") != "video" and name not in self.names and self.files:
                raise DataError(
                    f"{INFO} has the feature {name!r}, but the data has no such column",
                    file=self.store.locate(self.files[0]),
                    record=name,
                    kind="no-column",
                    fix=_AGAIN,
                )

    def _episode(self, index: int) -> tuple[int, int]:
        """Place among the episodes, and number of the frame in it, of a sample."""
        at = int(np.searchsorted(self._episode_starts, index, side="right")) - 1
        return int(self._chosen[at]), index - int(self._episode_starts[at])

    def _rows(self, file: int, local: Int64s) -> list[dict[str, Any]]:
        out = super()._rows(file, local)
        for at, row in zip(local.tolist(), out, strict=True):
            episode, frame = self._episode(int(self._starts[file]) + at)
            if "task_index" in row:
                row["task"] = self.tasks.get(row["task_index"])
            time = row.get("timestamp")
            seconds = frame / float(self.info["fps"]) if time is None else float(time)
            for camera, places in self.episodes.videos.items():
                path, begins = places[episode]
                make = partial(self._frames.at, path, begins + seconds)
                row[camera] = Lazy(make, lambda make=make: as_png(make()))  # type: ignore[misc]
        return out

    def _key(self, file: int, local: int) -> str:
        episode, frame = self._episode(int(self._starts[file]) + local)
        return f"{int(self.episodes.number[episode]):06d}/{frame:06d}"

    def find(self, key: str) -> int:
        match = re.fullmatch(r"(\d{6,})/(\d{6,})", key, re.ASCII)
        places = np.flatnonzero(self.episodes.number[self._chosen] == int(match[1])) if match else np.zeros(0, int)
        if match is None or not len(places) or int(match[2]) >= self.episodes.length[self._chosen[places[0]]]:
            raise no_such_key(self.url, key)
        return int(self._episode_starts[places[0]]) + int(match[2])

    def _word(self, file: int) -> str:
        return self.files[file]

    def fingerprint(self) -> str:
        if self._known is None:
            sizes = {entry.path: entry.size for entry in self.store.files("data")}
            words = [f"{path} {sizes.get(path, -1)}" for path in self.files]
            features = orjson.dumps(self.info["features"], option=orjson.OPT_SORT_KEYS).decode()
            lengths = self.episodes.length[self._chosen].tobytes().hex()
            self._known = hash_words([features, lengths, self._chosen[:1].tobytes().hex(), *words])
        return self._known

    def fingerprint_of_first(self, count: int) -> str | None:  # noqa: ARG002
        return None

    def verify(self) -> Sequence[FeedmillError]:
        """Read every block once, and look for the video files."""
        found = list(super().verify())
        for path in sorted({path for places in self.episodes.videos.values() for path, _ in places}):
            if not self.store.exists(path):
                found.append(_gone(self.store, path))
        return found

    @property
    def splits(self) -> Mapping[str, int]:
        return {name: int(self.episodes.length[part.start : part.stop].sum()) for name, part in self._splits.items()}

    def describe(self) -> dict[str, Any]:
        """Plain facts for `info`."""
        cameras = [n for n, f in self.info["features"].items() if f.get("dtype") in ("video", "image")]
        splits = {
            name: {"samples": count, "shards": len(set(self.episodes.file[self._splits[name]].tolist()))}
            for name, count in self.splits.items()
        }
        return {
            **super().describe(),
            "version": self.info["codebase_version"],
            "episodes": len(self._chosen),
            "fps": self.info["fps"],
            "robot": self.info.get("robot_type"),
            "cameras": cameras,
            "tasks": len(self.tasks),
            "splits": splits,
        }


class _Files(Sequence[ColumnFile]):
    """Data files, opened when they are first read: there may be as many as episodes."""

    def __init__(self, store: Store, paths: list[str], rows: Int64s) -> None:
        self._store, self._paths, self._expected = store, paths, rows
        self._open: OrderedDict[int, ColumnFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: Any) -> Any:
        if number >= len(self._paths):
            raise IndexError(number)
        known = self._open.get(number)
        if known is None:
            path = self._paths[number]
            if not self._store.exists(path):
                raise _gone(self._store, path)
            known = ParquetFile(self._store, path)
            if len(known) != self._expected[number]:
                raise DataError(
                    f"the file holds {len(known)} frames, its episodes have {self._expected[number]}",
                    file=self._store.locate(path),
                    kind="wrong-count",
                    fix=_AGAIN,
                )
            self._open[number] = known
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        return known


def is_lerobot(store: Store) -> bool:
    """Whether the folder is a LeRobot data set."""
    return store.exists(INFO) and b'"codebase_version"' in store.read(INFO)


def open_lerobot(store: Store, url: str, split: str | None = None) -> LeRobotDataset:
    """A LeRobot data set. Raises `NotFound`, `DataError`, `ConfigError`, `MissingExtra`."""
    info = _info(store)
    new = str(info["codebase_version"]).startswith("v3")
    episodes = _episodes_v3(store, info) if new else _episodes_v2(store, info)
    frames = int(episodes.length.sum())
    for name, found in (("total_episodes", len(episodes.length)), ("total_frames", frames)):
        if info.get(name) not in (None, found):
            raise DataError(
                f"'{name}' is {info[name]}, but the episodes say {found}",
                file=store.locate(INFO),
                kind="wrong-count",
                fix=_AGAIN,
            )
    splits = _splits(store, info, len(episodes.length))
    if split is not None and split not in splits:
        have = ", ".join(map(repr, splits)) or "none"
        raise NotFound(f"there is no split {split!r}", file=url, kind="no-such-split", fix=f"It has: {have}.")
    chosen = range(len(episodes.length)) if split is None else splits[split]
    tasks = _tasks_v3(store) if new else _tasks_v2(store)
    return LeRobotDataset(store, name=url, info=info, episodes=episodes, tasks=tasks, split=split, chosen=chosen)


def _info(store: Store) -> dict[str, Any]:
    where = store.locate(INFO)
    try:
        info = orjson.loads(store.read(INFO))
    except orjson.JSONDecodeError as error:
        raise DataError(f"the file is no JSON ({error})", file=where, kind="bad-info", fix=_AGAIN) from None
    lacking = [key for key in ("codebase_version", "fps", "features", "data_path") if not info.get(key)]
    if lacking:
        raise DataError(f"it lacks {', '.join(map(repr, lacking))}", file=where, kind="bad-info", fix=_AGAIN)
    if not isinstance(info["features"], dict) or not isinstance(info["fps"], int | float) or info["fps"] <= 0:
        raise DataError("'features' must be an object, 'fps' above 0", file=where, kind="bad-info", fix=_AGAIN)
    if not str(info["codebase_version"]).startswith(("v2", "v3")):
        raise ConfigError(
            f"version {info['codebase_version']!r} is not read, v2 and v3 are",
            file=where,
            kind="unsupported",
            fix="Convert it with LeRobot's own scripts.",
        )
    return dict(info)


def _splits(store: Store, info: Mapping[str, Any], episodes: int) -> dict[str, range]:
    """Split -> range of episodes."""
    out = {}
    for name, text in (info.get("splits") or {}).items():
        match = re.fullmatch(r"(\d*):(\d*)", str(text))
        begin, end = (int(match[1] or 0), int(match[2] or episodes)) if match else (0, -1)
        if not 0 <= begin <= end <= episodes:
            raise DataError(
                f"the split {name!r} is {text!r}, expected a range of its {episodes} episodes such as '0:10'",
                file=store.locate(INFO),
                kind="bad-info",
                fix=_AGAIN,
            )
        out[str(name)] = range(begin, end)
    return out


def fill(store: Store, template: Any, **numbers: int | str) -> str:
    """A path template such as ``data/chunk-{chunk_index:03d}/file.parquet``, filled in. Only names and widths are
    understood, so that a template is no program.

    Raises:
        DataError: a name that is not known.
        ConfigError: the path leaves the folder.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in numbers:
            raise DataError(
                f"the path {template!r} has the unknown field {match[1]!r}",
                file=store.locate(INFO),
                kind="bad-info",
                fix=f"Known are {', '.join(numbers)}.",
            )
        found = numbers[match[1]]
        return f"{found:0{match[2] or 0}d}" if isinstance(found, int) else str(found)

    return store.check_path(_FIELD.sub(value, str(template)))


def _cameras(info: Mapping[str, Any]) -> list[str]:
    return [name for name, feature in info["features"].items() if feature.get("dtype") == "video"]


def _lines(store: Store, path: str) -> list[dict[str, Any]]:
    if not store.exists(path):
        raise _gone(store, path)
    out = []
    for number, line in enumerate(store.read(path).splitlines(), 1):
        try:
            if line.strip():
                out.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            raise DataError(
                f"line {number} is no JSON ({error})", file=store.locate(path), kind="bad-line", fix=_AGAIN
            ) from None
    return out


def _episodes_v2(store: Store, info: Mapping[str, Any]) -> Episodes:
    path = "meta/episodes.jsonl"
    rows = _lines(store, path)
    try:
        numbers = [int(row["episode_index"]) for row in rows]
        lengths = [int(row["length"]) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"an episode lacks {error}", file=store.locate(path), kind="bad-line", fix=_AGAIN) from None
    size = int(info.get("chunks_size") or 1000)
    files = [fill(store, info["data_path"], episode_chunk=number // size, episode_index=number) for number in numbers]
    videos = {
        camera: [
            (fill(store, info.get("video_path"), episode_chunk=n // size, episode_index=n, video_key=camera), 0.0)
            for n in numbers
        ]
        for camera in _cameras(info)
    }
    return Episodes(np.asarray(numbers, np.int64), np.asarray(lengths, np.int64), np.arange(len(rows)), files, videos)


def _tasks_v2(store: Store) -> dict[int, str]:
    return {int(row["task_index"]): str(row["task"]) for row in _lines(store, "meta/tasks.jsonl")}


def _episodes_v3(store: Store, info: Mapping[str, Any]) -> Episodes:
    cameras = _cameras(info)
    columns = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    for camera in cameras:
        columns += [f"videos/{camera}/{name}" for name in ("chunk_index", "file_index", "from_timestamp")]
    table = _table(store, [e.path for e in store.files("meta/episodes", suffixes=(".parquet",))], columns)
    order = np.argsort(np.asarray(table["episode_index"], np.int64), kind="stable")
    table = {name: [found[n] for n in order.tolist()] for name, found in table.items()}
    named: dict[str, int] = {}
    places = zip(table["data/chunk_index"], table["data/file_index"], strict=True)
    paths = [fill(store, info["data_path"], chunk_index=chunk, file_index=file) for chunk, file in places]
    file = np.asarray([named.setdefault(path, len(named)) for path in paths], np.int64)
    if (np.diff(file) < 0).any():
        raise DataError(
            "its episodes are not in the order of the data files",
            file=store.locate("meta/episodes"),
            kind="bad-info",
            fix=_AGAIN,
        )
    videos = {
        camera: [
            (fill(store, info.get("video_path"), video_key=camera, chunk_index=c, file_index=f), float(t))
            for c, f, t in zip(*(table[name] for name in columns if name.startswith(f"videos/{camera}/")), strict=True)
        ]
        for camera in cameras
    }
    return Episodes(
        np.asarray(table["episode_index"], np.int64), np.asarray(table["length"], np.int64), file, list(named), videos
    )


def _tasks_v3(store: Store) -> dict[int, str]:
    path = "meta/tasks.parquet"
    if not store.exists(path):
        raise _gone(store, path)
    (opened,) = open_columns(store, [path], ParquetFile)
    words = next((name for name in opened.schema.names if name != "task_index"), "task")
    table = _table(store, [path], ["task_index", words])
    return {int(n): str(task) for n, task in zip(table["task_index"], table[words], strict=True)}


def _table(store: Store, paths: list[str], columns: list[str]) -> dict[str, list[Any]]:
    """Columns of small Parquet files, one after the other."""
    out: dict[str, list[Any]] = {name: [] for name in columns}
    if not paths:
        raise _gone(store, "meta/episodes/chunk-000/file-000.parquet")
    for path in paths:
        opened = ParquetFile(store, path)
        lacking = [name for name in columns if name not in opened.schema.names]
        if lacking:
            raise DataError(
                f"it lacks the column {lacking[0]!r}", file=store.locate(path), kind="no-column", fix=_AGAIN
            )
        for block in range(len(opened.ends)):
            table, _ = opened.read(block, columns)
            for name in columns:
                out[name] += values(table.column(name))
    return out


def _gone(store: Store, path: str) -> NotFound:
    return NotFound(
        "the data set lacks this file", file=store.locate(path), kind="missing-shard", fix="Download it again."
    )
