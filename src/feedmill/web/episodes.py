"""The episode of a robot's frame: its videos, curves of its numbers, some of its frames, and what a window covers."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.episodes import Episodic
from feedmill.formats.lerobot.dataset import LeRobotDataset, is_numeric
from feedmill.web.parts import curves
from feedmill.web.state import State

_FRAMES, _POINTS, _COLUMNS, _WIDEST = 8, 512, 6, 65_536
_AT_ONCE = 4 << 20
"""Bytes of a video that are sent for a range without an end: players ask for the next ones."""
_WINDOW = "0:15"


def episode_of(dataset: Dataset, number: int, state: State) -> dict[str, Any] | None:
    """Return the episode of a sample as plain data; None for data without episodes.

    Raises:
        ConfigError: the address has an invalid window.
    """
    if not isinstance(dataset, Episodic) or not 0 <= number < len(dataset):
        return None
    one = np.asarray([number], np.int64)
    first, last = (int(bound[0]) for bound in dataset.bounds(one))
    place = int(dataset.episodes_of(one)[0])
    length = last - first + 1
    return {
        "number": int(dataset.episode_numbers[place]),
        "frame": number - first,
        "length": length,
        "fps": dataset.fps,
        "first": first,
        "here": round((number - first) * 1000 / max(1, length - 1), 1),
        "window": _window(state, number, first, last),
        "players": _players(dataset, place, length) if isinstance(dataset, LeRobotDataset) else [],
        "strips": _strips(dataset, first, last),
        "columns": _columns(dataset, first, last),
    }


def about_episode(dataset: Dataset, number: int) -> dict[str, Any]:
    """Return the episode of a frame in short: its number, frames and seconds. The dataset has episodes."""
    assert isinstance(dataset, Episodic)
    place = int(dataset.episodes_of(np.asarray([number], np.int64))[0])
    frames = int(dataset.episode_lengths[place])
    return {
        "number": int(dataset.episode_numbers[place]),
        "frames": frames,
        "seconds": None if not dataset.fps else frames / dataset.fps,
    }


def _window(state: State, number: int, first: int, last: int) -> dict[str, Any]:
    """Return what a window around a frame covers: ``window=FIRST:LAST`` in frames, both included."""
    text = state.get("window", _WINDOW)
    low, colon, high = text.partition(":")
    try:
        begin, end = int(low), int(high)
    except ValueError:
        begin, end, colon = 0, 0, ""
    if not colon or begin > end or max(abs(begin), abs(end)) > _WIDEST:
        raise ConfigError(
            f"window={text[:40]} is no window", kind="bad-address", fix="Use FIRST:LAST in frames, such as -2:15."
        )
    inside = max(number + begin, first), min(number + end, last)
    scale = 1000 / max(1, last - first)  # as `curves` draws: the first frame at 0, the last one at 1000
    there = max(0, inside[1] - inside[0] + 1)
    left, right = (inside[0] - first - 0.5) * scale, (inside[1] - first + 0.5) * scale
    return {
        "text": f"{begin}:{end}",
        "steps": end - begin + 1,
        "inside": there,
        "outside": end - begin + 1 - there,
        "from": inside[0] - first,
        "to": inside[1] - first,
        "x": round(max(0.0, left), 1),
        "width": round(max(0.0, min(1000.0, right) - max(0.0, left)), 1) if there else 0,
    }


def _players(dataset: LeRobotDataset, place: int, length: int) -> list[dict[str, Any]]:
    """Return the part of a video file that is the episode, of each camera with videos."""
    at = dataset.place_in_meta(place)
    out = []
    for camera, places in dataset.episodes.videos.items():
        path, begins = places[at]
        out.append({"camera": camera, "file": path, "begin": begins, "end": begins + length / dataset.fps})
    return out


def _strips(dataset: Episodic, first: int, last: int) -> list[dict[str, Any]]:
    """Return samples spread over the episode, for each camera."""
    chosen = np.unique(np.linspace(first, last, min(_FRAMES, last - first + 1)).round().astype(np.int64)).tolist()
    said = dataset.features
    cameras = [n for n, feature in said.items() if feature.get("dtype") in ("video", "image")]
    return [{"camera": name, "frames": [{"at": at, "frame": at - first} for at in chosen]} for name in cameras]


def _columns(dataset: Episodic, first: int, last: int) -> list[dict[str, Any]]:
    """Return the curves of the columns of floats over the episode, actions and states first."""
    said = {
        name: feature
        for name, feature in dataset.features.items()
        if is_numeric(feature) and str(feature["dtype"]).startswith("float") and name != "timestamp"
    }
    names = sorted(said, key=lambda name: (name not in ("action", "actions", "observation.state"), name))
    frames = np.unique(np.linspace(first, last, min(_POINTS, last - first + 1)).round().astype(np.int64))
    out: list[dict[str, Any]] = []
    for name in names[:_COLUMNS]:
        try:
            values = dataset.numbers([name], frames)[name]
        except FeedmillError as error:
            out.append({"name": name, "why": error.what})
            continue
        drawn = curves(values if len(values) > 1 else np.repeat(values, 2, axis=0))
        out.append({"name": name, "width": values.shape[1], "curves": {**drawn, "steps": last - first + 1}})
    if len(names) > _COLUMNS:
        out.append({"name": f"{len(names) - _COLUMNS} more columns", "why": ", ".join(names[_COLUMNS:])})
    return out


def video_of(dataset: Dataset, state: State, wanted: tuple[int, int | None] | None) -> tuple[bytes, int, int, int]:
    """Return bytes of the video file of a frame's episode, as a player asks for them.

    Args:
        dataset: the dataset of the sample ``at``.
        state: the address, with ``at`` and ``camera``.
        wanted: first byte and end; None of the end for as much as is sent at once.

    Returns:
        The bytes, their first and end, and the size of the file.

    Raises:
        NotFound: there is no such frame or camera with videos.
    """
    number = state.number("at", 0) or 0
    camera = state.get("camera", "")
    videos = dataset.episodes.videos if isinstance(dataset, LeRobotDataset) else {}
    if camera not in videos or not 0 <= number < len(dataset):
        raise NotFound(f"there is no video of the camera {camera[:80]!r} at {number}", file=dataset.url)
    assert isinstance(dataset, LeRobotDataset)
    place = int(dataset.episodes_of([number])[0])
    path, _ = videos[camera][dataset.place_in_meta(place)]
    size = dataset.store.stat(path).size
    first, end = wanted or (0, None)
    first = min(first, size)
    stop = min(size, first + _AT_ONCE if end is None else min(end, first + _AT_ONCE))
    return dataset.store.read(path, first, stop - first), first, stop, size
