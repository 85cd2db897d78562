"""Import LeRobot datasets: one sample per episode, with its columns as arrays and its videos as files.

A sample has the parts ``json`` (number, length, frames per second, robot, tasks, features), ``FEATURE.npy`` for each
numeric column, ``FEATURE.json`` for text, ``CAMERA.mp4`` for videos, and ``CAMERA.000000.png`` for images in columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import orjson

from feedmill.errors import FeedmillError, MissingExtra
from feedmill.formats.lerobot.dataset import LeRobotDataset, open_lerobot
from feedmill.formats.lerobot.episode import Episode, read_episode, read_video
from feedmill.formats.videocut import count_frames
from feedmill.importing.layouts import TRAIN, Part, Planned, Samples
from feedmill.importing.recognition import BESIDE, SPLITS, Recognized
from feedmill.importing.samples import Unusable
from feedmill.importing.scanning import Files
from feedmill.jobs.reports import LeftOut
from feedmill.samples.imageheader import image_header
from feedmill.storage import Store, join_url, open_store

_HEADER = 1200
"""Bytes that a part may take beside its content: headers of NumPy and of the tar, and padding."""
_READ = ("meta/info.json", "meta/episodes.jsonl", "meta/tasks.jsonl", "meta/tasks.parquet")
ABOUT = "a description beside LeRobot's episodes, such as statistics (samples have fps, tasks and features)"
UNUSED = "a file of no episode that the LeRobot dataset lists"


def plan_episodes(files: Files, found: Recognized, left: LeftOut, *, splits: bool) -> Samples:
    """Return one sample for each episode; episodes without their files are added to `left`.

    Completes the notes of `found`.

    Args:
        splits: whether the splits of ``meta/info.json`` are used.

    Raises:
        ConfigError: the version is not supported.
        DataError, NotFound: the description in ``meta`` is damaged or missing.
    """
    groups: dict[str, list[Planned]] = {}
    for root, folder in found.datasets:
        for split, group in _Plan(files, root, folder, left).samples(found, splits).items():
            groups.setdefault(split, []).extend(group)
    order = [name for name in (TRAIN, "val", "test") if name in groups]
    order += [name for name in groups if name not in order]
    return Samples({name: groups[name] for name in order}, "CrudeWebdataset", None, [])


class _Plan:
    """The episodes of one dataset."""

    def __init__(self, files: Files, root: int, folder: str, left: LeftOut) -> None:
        self._files, self._root, self._left = files, root, left
        self._folder = f"{folder}/" if folder else ""
        self._dataset = _opened(join_url(files.roots[root], folder) if folder else files.roots[root])
        self._there = {
            file.path.removeprefix(self._folder): file
            for file in files.files
            if file.root == root and file.path.startswith(self._folder)
        }
        self._cameras = self._chosen_cameras()
        episodes = self._dataset.episodes
        features = self._dataset.info["features"]
        items = [_item(feature) for feature in features.values()]
        self._per_frame = sum(item for item in items if item)
        self._has_others = any(item is None for item in items)
        self._base = _HEADER * (len(items) + 1) + len(orjson.dumps(features)) + _HEADER
        self._frames: dict[str, int] = {}  # of all episodes in a file
        for paths in (self._data(), *(self._videos(camera) for camera in self._cameras)):
            for path, length in zip(paths, episodes.length.tolist(), strict=True):
                self._frames[path] = self._frames.get(path, 0) + length

    def _data(self) -> list[str]:
        episodes = self._dataset.episodes
        return [episodes.files[number] for number in episodes.file.tolist()]

    def _videos(self, camera: str) -> list[str]:
        return [path for path, _ in self._dataset.episodes.videos[camera]]

    def _chosen_cameras(self) -> list[str]:
        """Return the cameras whose videos are not excluded by the user's patterns."""
        chosen = []
        for camera in self._dataset.episodes.videos:
            paths = self._videos(camera)
            excluded = paths and not any(path in self._there for path in paths)
            if not (excluded and any(self._dataset.store.exists(path) for path in paths[:1])):
                chosen.append(camera)
        return chosen

    def samples(self, found: Recognized, splits: bool) -> dict[str, list[Planned]]:
        """Return split -> samples."""
        dataset, episodes = self._dataset, self._dataset.episodes
        split_of = self._splits(found) if splits and dataset.splits else None
        groups: dict[str, list[Planned]] = {}
        data, seen = self._data(), set()
        videos = {camera: self._videos(camera) for camera in self._cameras}
        for place, number in enumerate(episodes.number.tolist()):
            name = f"{self._files.prefixes[self._root]}{self._folder}{number:06d}"
            split = TRAIN if split_of is None else split_of.get(place)
            paths = {"": data[place], **{camera: paths[place] for camera, paths in videos.items()}}
            missing = next((path for path in paths.values() if path not in self._there), None)
            if number in seen:
                self._left.add("a second episode with the same number", name)
            elif not episodes.length[place]:
                self._left.add("an episode without frames", name)
            elif split is None:
                self._left.add("an episode of no split of meta/info.json (use --split-ratio)", name)
            elif missing is not None:
                self._left.add("an episode whose file is missing", f"{name} ({missing})")
            else:
                seen.add(number)
                groups.setdefault(split, []).append(self._planned(name, place, paths))
        self._note(found)
        self._rest({*data, *chain.from_iterable(videos.values())})
        return groups

    def _planned(self, key: str, place: int, paths: Mapping[str, str]) -> Planned:
        length = int(self._dataset.episodes.length[place])
        parts = [Part(name, *self._share(path, length)) for name, path in paths.items()]
        size = self._base + length * self._per_frame + sum(part.size for part in parts[1:])
        if self._has_others:
            size += parts[0].size + length * _HEADER  # images are a part each
        return Planned(key, tuple(parts), size)

    def _share(self, path: str, length: int) -> tuple[int, int, str]:
        """Return the bytes that an episode has of a file, and the file's root and path."""
        file = self._there[path]
        return -(-file.size * length // max(self._frames[path], 1)), self._root, file.path

    def _splits(self, found: Recognized) -> dict[int, str]:
        """Return place of an episode -> split; an episode in two splits is in the first one."""
        out: dict[int, str] = {}
        twice = 0
        for name, places in self._dataset.split_ranges.items():
            for place in places:
                twice += place in out
                out.setdefault(place, SPLITS.get(name.lower(), name))
        if twice:
            found.notes.append(f"warning: {twice:,} episodes are in two splits, and imported in the first one")
        return out

    def _note(self, found: Recognized) -> None:
        dataset, info = self._dataset, self._dataset.info
        names = [name for name in info["features"] if name not in dataset.episodes.videos]
        excluded = [name for name in dataset.episodes.videos if name not in self._cameras]
        where = f" in {self._folder.rstrip('/')}" if self._folder else ""
        found.notes.append(
            f"LeRobot dataset {info['codebase_version']}{where}: {len(dataset.episodes.number):,} episodes,"
            f" {len(dataset):,} frames at {info['fps']:g} per second, robot {info.get('robot_type') or 'not named'},"
            f" {len(dataset.tasks):,} tasks"
        )
        found.notes.append(f"features {', '.join(names)}")
        found.notes.append(f"videos of {', '.join(self._cameras) or 'no camera'}")
        if excluded:
            found.notes.append(f"warning: videos of {', '.join(excluded)} are excluded")

    def _rest(self, used: set[str]) -> None:
        """Add the files that samples do not hold to `left`."""
        for path, file in self._there.items():
            if path in used or path in _READ or path.startswith("meta/episodes/"):
                continue
            name = self._files.name(file)
            if path.startswith("meta/"):
                self._left.add(ABOUT, name)
            elif path.startswith(("data/", "videos/")):
                self._left.add(UNUSED, name)
            else:
                self._left.add(BESIDE, name)


@dataclass(frozen=True, slots=True)
class EpisodeReader:
    """How episodes are read. See `feedmill.importing.samples.Reader`.

    Attributes:
        roots: folders of the files.
        prefixes: of keys, for each root.
        decode: whether videos and images are decoded in full.
    """

    requests: ClassVar[int] = 2  # an episode is read whole

    roots: tuple[str, ...]
    prefixes: tuple[str, ...]
    decode: bool

    def name(self, files: Files, planned: Planned) -> str:  # noqa: ARG002
        """Return the name of a sample for reports: its key, because files may have several episodes."""
        return planned.key

    def sample(self, stores: Sequence[Store], planned: Planned) -> list[tuple[str, Any]]:  # noqa: ARG002
        """Return the names and contents of an episode's parts. Raises as `Reader.sample`."""
        first = planned.parts[0]
        folder, _, number = planned.key.removeprefix(self.prefixes[first.root]).rpartition("/")
        root = self.roots[first.root]
        dataset = _opened(join_url(root, folder) if folder else root)
        place = int(np.flatnonzero(dataset.episodes.number == int(number))[0])
        episode = read_episode(dataset, place)
        parts = [*_parts(episode, self.decode)]
        for part in planned.parts[1:]:
            parts.append((_plain(f"{part.name}.{_suffix(part.path)}"), self._video(dataset, place, part.name)))
        return [("json", _about(dataset, place, episode, [name for name, _ in parts])), *parts]

    def _video(self, dataset: LeRobotDataset, place: int, camera: str) -> bytes:
        try:
            data = read_video(dataset, place, camera)
            if self.decode and count_frames(data) != dataset.episodes.length[place]:
                raise Unusable(f"the video of {camera}: not all of its frames decode")
        except MissingExtra:
            raise
        except FeedmillError as error:
            raise Unusable(f"the video of {camera}: {error.what}") from None
        return data


def _parts(episode: Episode, decode: bool) -> Iterator[tuple[str, Any]]:
    for name, array in episode.arrays.items():
        yield _plain(f"{name}.npy"), array
    for name, others in episode.others.items():
        yield _plain(f"{name}.json"), orjson.dumps(others, default=str)
    for camera, images in episode.files.items():
        for number, data in enumerate(images):
            yield _plain(f"{camera}.{number:06d}.{_image(camera, data, decode)}"), data


def _image(camera: str, data: bytes, decode: bool) -> str:
    """Return the suffix of an image. Raises `Unusable`."""
    header = image_header(data)
    if header is None:
        raise Unusable(f"an image of {camera} does not decode")
    if decode:
        from feedmill.samples.images import decode_image

        try:
            decode_image(data, "rgb8")
        except MissingExtra:
            raise
        except Exception:  # each codec raises its own error classes
            raise Unusable(f"an image of {camera} does not decode") from None
    return {"JPEG": "jpg"}.get(header[2], header[2].lower())


def _about(dataset: LeRobotDataset, place: int, episode: Episode, parts: Sequence[str]) -> bytes:
    if len(set(parts)) < len(parts):
        raise Unusable("two features have the same name once '/' is replaced by '_'")
    info = dataset.info
    numbers = episode.arrays.get("task_index")
    tasks = [] if numbers is None else list(dict.fromkeys(numbers.ravel().tolist()))
    return orjson.dumps(
        {
            "episode_index": episode.number,
            "length": int(dataset.episodes.length[place]),
            "fps": info["fps"],
            "robot_type": info.get("robot_type"),
            "task": dataset.tasks.get(tasks[0]) if tasks else None,
            "tasks": [{"task_index": number, "task": dataset.tasks.get(number)} for number in tasks],
            "features": info["features"],
        }
    )


def _plain(part: str) -> str:
    """Return the name of a part, which must not have a slash."""
    return part.replace("/", "_").replace("\0", "_")


def _item(feature: Mapping[str, Any]) -> int | None:
    """Return the bytes of a numeric feature in one frame, 0 for videos; None for text and images in columns."""
    if feature.get("dtype") == "video":
        return 0
    try:
        item = np.dtype(str(feature.get("dtype"))).itemsize
    except TypeError:
        return None
    return int(item * math.prod(feature.get("shape") or [1]))


def _suffix(path: str) -> str:
    return path.rpartition(".")[2].lower()


@cache
def _opened(url: str) -> LeRobotDataset:
    return open_lerobot(open_store(url), url, lenient=True)


def forget() -> None:
    """Forget datasets that an earlier import in this process opened: they may have changed."""
    _opened.cache_clear()
