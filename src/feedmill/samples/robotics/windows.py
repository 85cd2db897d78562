"""Windows of time around an anchor: which steps of a sample's fields are taken, and which of them are data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

PAST_MASK, FUTURE_MASK = "past_mask", "future_mask"


@dataclass(frozen=True, slots=True)
class Window:
    """Steps around the anchor of one sample.

    Attributes:
        start, stop: the steps taken.
        anchor: the anchor's step among them.
        past_mask, future_mask: bool[stop - start], steps that are data before the anchor, and from it on; both are
            False if the episode had no such step and another was copied.
    """

    start: int
    stop: int
    anchor: int
    past_mask: npt.NDArray[np.bool_]
    future_mask: npt.NDArray[np.bool_]


def window(lowdim: Mapping[str, npt.NDArray[Any]], anchor: int, past: int | None, future: int | None) -> Window:
    """Return the window of a sample.

    Args:
        lowdim: with ``past_mask`` and ``future_mask``, bool[T].
        past, future: steps before and behind the anchor; None for all.

    Raises:
        ValueError: there are no masks, or the window is not in the sample; says which.
    """
    masks = [lowdim.get(name) for name in (PAST_MASK, FUTURE_MASK)]
    if any(mask is None or mask.ndim != 1 for mask in masks) or masks[0].shape != masks[1].shape:  # type: ignore[union-attr]
        raise ValueError("it needs past_mask and future_mask, one value for each step")
    steps = len(masks[0])  # type: ignore[arg-type]
    if not 0 <= anchor < steps:
        raise ValueError(f"its anchor is step {anchor}, and there are {steps} steps")
    start = 0 if past is None else anchor - past
    stop = steps if future is None else anchor + future + 1
    if start < 0 or stop > steps:
        raise ValueError(
            f"a window of {past} steps before and {future} behind the anchor is wanted,"
            f" it has {anchor} and {steps - anchor - 1}"
        )
    cut = [np.asarray(mask[start:stop], bool) for mask in masks]  # type: ignore[index]
    return Window(start, stop, anchor - start, cut[0], cut[1])


def joined(fields: Sequence[npt.NDArray[np.float32]], like: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Fields float32[..., T, C] side by side on their last axis; without any, float32[*like, 0]."""
    return np.concatenate(fields, axis=-1) if fields else np.zeros((*like, 0), np.float32)
