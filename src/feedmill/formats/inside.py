"""Numbers of samples that were requested from a dataset, checked before anything is read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def numbers_inside(indices: npt.ArrayLike, count: int, url: str, noun: str = "sample") -> npt.NDArray[np.int64]:
    """Return the numbers as int64[n]. Raises `IndexError` for one that is negative or not below `count`."""
    wanted = np.asarray(indices, np.int64)
    if len(wanted) and int(wanted.view(np.uint64).max()) >= count:  # negative numbers are large there
        bad = int(wanted[(wanted < 0) | (wanted >= count)][0])
        raise IndexError(f"{url}: {noun} {bad} of {count}")
    return wanted
