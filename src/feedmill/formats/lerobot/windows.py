"""Windows of frames around a sample, as settings: which frames of an episode each feature has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, did_you_mean
from feedmill.formats.offsets import Int64s

TOLERANCE = 1e-4
"""Seconds by which an offset may differ from a multiple of the frame's time, as in LeRobot."""
MOST = 1 << 16
"""Most frames of a window."""
FARTHEST = 1 << 32
"""Farthest offset in frames."""
PAD = "_is_pad"
"""End of the name of the part that says which frames of a window lie outside the episode."""
_FORMS = (
    "Write two whole numbers for the first and the last frame, [-2, 0], or seconds as LeRobot's delta_timestamps do,"
    " [-0.2, -0.1, 0.0]."
)


def offsets_of(
    windows: Mapping[str, Sequence[float]], features: Iterable[str], fps: float, file: str
) -> dict[str, Int64s]:
    """Return the offset in frames of each frame of a window, int64[k], by feature.

    Args:
        windows: feature -> the first and the last frame, both included, as whole numbers; or the offset of each frame
            in seconds, of which at least one is a float.
        features: names of the columns and cameras.
        fps: frames a second.
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
    return np.floor(at + 0.5).astype(np.int64), low.astype(np.int64), at - low


def _offsets(name: str, window: Sequence[float], fps: float, file: str) -> Int64s:
    if not isinstance(window, Sequence) or not window or not all(type(one) in (int, float) for one in window):
        raise _bad(name, f"{window!r} is not a window", file)
    if all(type(one) is int for one in window):
        if len(window) != 2 or window[0] > window[1]:
            raise _bad(name, f"{list(window)} is not a first and a last frame", file)
        _check(name, window[0], window[1], int(window[1]) - int(window[0]) + 1, file)
        return np.arange(window[0], window[1] + 1, dtype=np.int64)
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
