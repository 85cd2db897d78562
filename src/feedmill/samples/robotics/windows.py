"""Select the steps of a sample's fields in a window of time around an anchor, with masks of the real data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

PAST_MASK, FUTURE_MASK = "past_mask", "future_mask"


@dataclass(frozen=True, slots=True)
class Window:
    """Window of steps around the anchor of one sample.

    Attributes:
        start, stop: The range of steps.
        anchor: The anchor's step within the window.
        past_mask, future_mask: bool[stop - start], true for data before the anchor, and from the anchor on. Both are
            False for padding: a copy of another step, where the episode had none.
    """

    start: int
    stop: int
    anchor: int
    past_mask: npt.NDArray[np.bool_]
    future_mask: npt.NDArray[np.bool_]


def window(lowdim: Mapping[str, npt.NDArray[Any]], anchor: int, past: int | None, future: int | None) -> Window:
    """Return the window of a sample.

    Args:
        lowdim: Fields with ``past_mask`` and ``future_mask``, bool[T].
        anchor: The anchor's step in the sample.
        past, future: Number of steps before and after the anchor; None for all.

    Raises:
        ValueError: The masks are missing or invalid, or the window exceeds the sample.
    """
    masks = [lowdim.get(name) for name in (PAST_MASK, FUTURE_MASK)]
    if any(mask is None or mask.ndim != 1 for mask in masks) or masks[0].shape != masks[1].shape:  # type: ignore[union-attr]
        raise ValueError("past_mask and future_mask are required, with one value for each step")
    steps = len(masks[0])  # type: ignore[arg-type]
    if not 0 <= anchor < steps:
        raise ValueError(f"the anchor is step {anchor}, but the sample has {steps} steps")
    start = 0 if past is None else anchor - past
    stop = steps if future is None else anchor + future + 1
    if start < 0 or stop > steps:
        raise ValueError(
            f"the sample is too short for a window of {past} steps before and {future} after the anchor:"
            f" it has {anchor} and {steps - anchor - 1}"
        )
    cut = [np.asarray(mask[start:stop], bool) for mask in masks]  # type: ignore[index]
    return Window(start, stop, anchor - start, cut[0], cut[1])


def joined(fields: Sequence[npt.NDArray[np.float32]], like: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Concatenate fields float32[..., T, C] on their last axis; without fields return float32[*like, 0]."""
    return np.concatenate(fields, axis=-1) if fields else np.zeros((*like, 0), np.float32)
