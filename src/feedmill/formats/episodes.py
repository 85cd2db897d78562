"""Datasets of episodes: samples are the time steps of episodes, in order, and can have windows of steps around them.

`Episodic` is what LeRobot datasets and those of recorders (`feedmill.formats.recorders`) have in common; `offsets_of`
reads the settings of windows: which steps of an episode each feature has.
"""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, did_you_mean
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.offsets import Int64s
from feedmill.formats.sample import no_such_key
from feedmill.storage import Store

TOLERANCE = 1e-4
"""Seconds by which an offset may differ from a multiple of the frame's time, as in LeRobot."""
MOST = 1 << 16
"""Most frames of a window."""
FARTHEST = 1 << 32
"""Farthest offset in frames."""
_ROUNDING = 1e-6
"""Frames by which a step that lies half-way between two may be off, as a quotient of rates is rounded."""
PAD = "_is_pad"
"""End of the name of the part that says which frames of a window lie outside the episode."""
_FORMS = (
    "Write two whole numbers for the first and the last frame, [-2, 0], or seconds as LeRobot's delta_timestamps do,"
    " [-0.2, -0.1, 0.0]."
)


class Episodic(Dataset, ABC):
    """A dataset whose samples are the steps of episodes, in order. Keys are ``EPISODE/STEP``, six digits each.

    Attributes:
        windows: the offsets in steps of the windows that parts have, int64[k] each, by part.
        names: names of the columns.
        files: paths of the data files.
        store: their store.
    """

    names: list[str]
    files: list[str]
    store: Store

    windows: Mapping[str, Int64s] = {}

    @property
    @abstractmethod
    def episode_starts(self) -> Int64s:
        """Return the number of each episode's first step in this dataset, int64[episodes]."""

    @property
    @abstractmethod
    def episode_lengths(self) -> Int64s:
        """Return the number of steps of each episode, int64[episodes]."""

    @property
    @abstractmethod
    def episode_numbers(self) -> Int64s:
        """Return the number that keys have for each episode, int64[episodes]."""

    @property
    @abstractmethod
    def features(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what is known about each column and camera, as LeRobot's ``info.json`` has it: ``dtype``, ``shape``.

        The ``dtype`` of cameras is ``image`` or ``video``.
        """

    @property
    @abstractmethod
    def task_part(self) -> str:
        """Return the part that has the task of a step as text; empty if there is none."""

    @abstractmethod
    def task_texts(self) -> Sequence[str]:
        """Return the different texts of `task_part`, in the order of their first steps, or that of the data."""

    @property
    @abstractmethod
    def fps(self) -> float | None:
        """Return the steps a second; None if the data do not say."""

    def windowed(self, windows: Mapping[str, Sequence[float]]) -> Self:
        """Return the dataset with windows of steps, see `offsets_of`. Raises `ConfigError`."""
        return self.with_offsets(offsets_of(windows, self.features, self.fps, self.url))

    def with_offsets(self, offsets: Mapping[str, Int64s]) -> Self:
        """Return the dataset with windows of these steps, int64[k] relative to the sample's one, by feature."""
        found = copy.copy(self)
        found.windows = dict(offsets)
        return found

    def with_cameras(self, names: Container[str | None]) -> Self:  # noqa: ARG002
        """Return the dataset without the videos of other cameras: they are neither fetched nor decoded."""
        return self

    def episodes_of(self, indices: Indices) -> Int64s:
        """Return the number of each sample's episode in this dataset, int64[n]."""
        return np.searchsorted(self.episode_starts, np.asarray(indices, np.int64), side="right") - 1

    def bounds(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """Return the numbers of the first and the last step of the episode of each sample, int64[n] both."""
        at = self.episodes_of(samples)
        first = self.episode_starts[at]
        return first, first + self.episode_lengths[at] - 1

    def window(self, samples: Int64s, offsets: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Return the numbers of the steps in windows of samples, int64[n, k], and which lie outside the episode."""
        first, last = self.bounds(samples)
        wanted = samples[:, None] + offsets
        inside = np.clip(wanted, first[:, None], last[:, None])
        return inside, wanted != inside

    @abstractmethod
    def numbers(self, names: Sequence[str], steps: Int64s) -> dict[str, npt.NDArray[Any]]:
        """Return numeric columns of steps by their numbers, ``[n, width]`` in the dtype in which they are stored.

        Raises:
            DataError: a column is not numeric, or its rows have several lengths or missing values.
        """

    @abstractmethod
    def columns_of(self, file: int, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Return numeric columns of all steps in a data file, which are read alone; see `numbers`."""

    @abstractmethod
    def values_of(self, name: str) -> list[Any]:
        """Return a column of all steps, which is read alone, as Python values."""

    @property
    def texts(self) -> Sequence[str]:
        """Return the parts that are text and no columns, such as ``task``."""
        return ()

    def text_values(self, name: str) -> list[str | None]:
        """Return one of `texts` of all steps."""
        raise NotImplementedError(name)

    @property
    def episode_columns(self) -> Sequence[str]:
        """Return the names of the facts about each episode."""
        return ()

    def episode_values(self, name: str) -> list[Any] | None:  # noqa: ARG002
        """Return a fact about each episode by its name; None if there is none of that name."""
        return None

    def find(self, key: str) -> int:
        match = re.fullmatch(r"(\d{6,})/(\d{6,})", key, re.ASCII)
        places = np.flatnonzero(self.episode_numbers == int(match[1])) if match else np.zeros(0, int)
        if match is None or not len(places) or int(match[2]) >= self.episode_lengths[places[0]]:
            raise no_such_key(self.url, key)
        return int(self.episode_starts[places[0]]) + int(match[2])

    def key_of(self, sample: int) -> str:
        """Return the key of a sample."""
        at = int(self.episodes_of([sample])[0])
        return f"{int(self.episode_numbers[at]):06d}/{sample - int(self.episode_starts[at]):06d}"


def offsets_of(
    windows: Mapping[str, Sequence[float]], features: Iterable[str], fps: float | None, file: str
) -> dict[str, Int64s]:
    """Return the offset in frames of each frame of a window, int64[k], by feature.

    Args:
        windows: feature -> the first and the last frame, both included, as whole numbers; or the offset of each frame
            in seconds, of which at least one is a float.
        features: names of the columns and cameras.
        fps: frames a second; None if unknown: then windows in seconds are an error.
        file: the dataset, for errors.

    Raises:
        ConfigError: a feature is unknown, or a window is none of both forms, between frames, very long or very far.
    """
    if not isinstance(windows, Mapping) or not all(isinstance(name, str) for name in windows):
        what = f"windows: expected feature -> window, found {windows!r}"
        raise ConfigError(what, file=file, kind="bad-option", fix=_FORMS)
    known, out = set(features), {}
    for name, window in windows.items():
        if name not in known:
            raise ConfigError(
                f"windows: there is no column or camera {name!r}{did_you_mean(name, sorted(known))}",
                file=file,
                kind="bad-option",
                fix=f"Features are: {', '.join(sorted(known))}.",
            )
        if name + PAD in known:
            raise ConfigError(
                f"windows: the part {name + PAD!r} would hide the column of that name",
                file=file,
                kind="bad-option",
                fix="Rename the column, or leave this window out.",
            )
        out[name] = _offsets(name, window, fps, file)
    return out


def frames_at(steps: Int64s, fps: float, rate: float | None) -> tuple[Int64s, Int64s, npt.NDArray[np.float64]]:
    """Return which frames of an episode the steps of a window are: offsets from the sample's frame.

    Args:
        steps: int64[k], offsets in steps of the window.
        fps: frames a second of the episode.
        rate: steps a second of the window; None for that of the episode.

    Returns:
        int64[k], the nearest frame of each step (the later one of two equally near ones); int64[k] and float64[k], the
        frame at or before it, and how far it lies on the way to the next frame, from 0 to 1.
    """
    if rate is None or rate == fps:
        return steps, steps, np.zeros(len(steps))
    at = steps * (fps / rate)
    whole = np.rint(at)
    at = np.where(np.abs(at - whole) <= TOLERANCE * fps, whole, at)  # frames of two clocks that agree
    low = np.floor(at)
    return np.floor(at + 0.5 + _ROUNDING).astype(np.int64), low.astype(np.int64), at - low


def _offsets(name: str, window: Sequence[float], fps: float | None, file: str) -> Int64s:
    if not isinstance(window, Sequence) or not window or not all(type(one) in (int, float) for one in window):
        raise _bad(name, f"{window!r} is not a window", file)
    if all(type(one) is int for one in window):
        if len(window) != 2 or window[0] > window[1]:
            raise _bad(name, f"{list(window)} is not a first and a last frame", file)
        _check(name, window[0], window[1], int(window[1]) - int(window[0]) + 1, file)
        return np.arange(window[0], window[1] + 1, dtype=np.int64)
    if fps is None:
        what = f"windows: {name}: {list(window)} are seconds, and the data do not say how many steps a second they have"
        raise ConfigError(what, file=file, kind="bad-option", fix="Write the first and the last step: [-2, 0].")
    frames = np.asarray(window, np.float64) * fps
    whole = np.rint(frames)
    far = np.flatnonzero(~(np.abs(frames - whole) / fps <= TOLERANCE))
    if len(far):
        raise _bad(name, f"{window[far[0]]} s lies between two frames, which are 1/{fps:g} s apart", file)
    _check(name, float(whole.min()), float(whole.max()), len(whole), file)
    return whole.astype(np.int64)


def _check(name: str, first: float, last: float, count: int, file: str) -> None:
    if count > MOST or first < -FARTHEST or last > FARTHEST:
        what = f"{count} frames from {first:g} to {last:g}: expected at most {MOST}, and none beyond {FARTHEST}"
        raise _bad(name, what, file)


def _bad(name: str, what: str, file: str) -> ConfigError:
    return ConfigError(f"windows: {name}: {what}", file=file, kind="bad-option", fix=_FORMS)
