"""Documents of cells in plain NumPy, see `feedmill.kernels.order.cells`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def members(codes: npt.NDArray[np.uint16], cell: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the documents of a cell, ascending."""
    return np.flatnonzero(codes == cell)


def before(codes: npt.NDArray[np.uint16], cell: int, number: int) -> int:
    """Return how many documents of a cell have a lower number."""
    return int((codes[:number] == cell).sum())
