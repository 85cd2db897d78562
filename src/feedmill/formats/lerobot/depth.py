"""Depth maps of LeRobot datasets: 12-bit codes in videos, or images of 16 bits, as millimeters.

The codes of a video divide the range from ``depth_min`` to ``depth_max`` evenly, or evenly in the logarithm of the
depth plus ``shift``; all are meters, in the ``info`` of the feature. As in LeRobot, arithmetic is that of float32, and
the result is rounded to whole millimeters.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError, MissingExtra
from feedmill.formats.lerobot.meta import AGAIN, INFO
from feedmill.storage import Store

FORM = "gray12le"
"""FFmpeg's name of the pixels that have the codes."""
_CODES = 1 << 12
_DEFAULTS = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5}

Depths = npt.NDArray[np.float32]


def is_depth(feature: Mapping[str, Any]) -> bool:
    """Return whether a camera has depth maps."""
    infos = [info for key in ("info", "video_info") if isinstance(info := feature.get(key), dict)]
    return any(info.get(key) for info in infos for key in ("is_depth_map", "video.is_depth_map"))


def depths_of_codes(store: Store, name: str, feature: Mapping[str, Any]) -> Depths:
    """Return the depth of each code in millimeters, float32[4096]. Raises `DataError` for settings that give none."""
    info = feature.get("info") or {}
    found = {key: info.get(f"video.{key}") for key in (*_DEFAULTS, "use_log")}
    given: dict[str, Any] = {key: d if found[key] is None else found[key] for key, d in _DEFAULTS.items()}
    uses_log = found["use_log"] is None or found["use_log"]
    try:
        low, high, shift = (float(value) for value in given.values())
        ends = np.asarray([low, high], np.float64)
        ends = np.log(ends + shift) if uses_log and low + shift > 0 < high + shift else ends
        if not np.isfinite(ends).all() or (uses_log and low + shift <= 0) or low >= high:
            raise ValueError
    except (TypeError, ValueError):
        raise DataError(
            f"the depth range of {name!r} is {given}: expected numbers with depth_min below depth_max",
            file=store.locate(INFO),
            kind="bad-index",
            fix=AGAIN,
        ) from None
    depth = np.arange(_CODES, dtype=np.float32) * np.float32((ends[1] - ends[0]) / (_CODES - 1)) + np.float32(ends[0])
    if uses_log:
        depth = np.exp(depth) - np.float32(shift)
    return np.rint(depth.clip(np.float32(low), np.float32(high)) * np.float32(1000)).clip(0, 65535)


def depth_of_frame(codes: npt.NDArray[Any], depths: Depths) -> Depths:
    """Return a depth map in millimeters, float32[H, W, 1], of the codes of a frame."""
    found: Depths = depths[np.minimum(codes, _CODES - 1)]
    return found


def depth_of_image(data: bytes, feature: Mapping[str, Any]) -> Depths:
    """Return a depth map, float32[H, W, 1], of an image file: in millimeters, or as stored if its unit is not known.

    Raises:
        DataError: the bytes are not an image of one channel.
        MissingExtra: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("depth maps need Pillow", "media") from None
    try:
        with Image.open(io.BytesIO(data)) as image:
            found = np.asarray(image, np.float32)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"the depth map cannot be decoded ({error})", kind="bad-media", fix=AGAIN) from None
    if found.ndim != 2:
        raise DataError(f"the depth map has the shape {found.shape}: expected one channel", kind="bad-media", fix=AGAIN)
    unit = (feature.get("info") or {}).get("depth_unit")
    return (found * np.float32(1000) if unit == "m" else found)[..., None]
