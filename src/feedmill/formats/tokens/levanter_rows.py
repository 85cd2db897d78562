"""One field of the rows of a Levanter cache: flat data, and where each row ends in them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from feedmill.errors import DataError
from feedmill.formats.offsets import Int64s
from feedmill.formats.tokens.zarr.array import ZarrArray
from feedmill.formats.tokens.zarr.meta import NAME
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

AGAIN = copy_again("the cache", "build it again with Levanter")


class JaggedField:
    """A field whose rows are lists of integers.

    Args:
        store, name: the folder of the field.
        sizes: bytes of the files of the store by path.

    Attributes:
        data: the numbers of all rows.
        rows, tokens: number of rows, and of their numbers.
        files: paths of the files of the data.

    Raises:
        DataError: the arrays are corrupt, or a file is missing.
    """

    def __init__(self, store: Store, name: str, sizes: Mapping[str, int]) -> None:
        self.name = name
        self.data, self.offsets = ZarrArray(store, f"{name}/data", sizes), ZarrArray(store, f"{name}/offsets", sizes)
        self._offset_files = self.offsets.files(1)
        self.rows = int(self.offsets.read(0, 1)[0])
        if self.rows < 0:
            raise self._bad(f"it has {self.rows} rows")
        self._offset_files = self.offsets.files(self.rows + 1)
        self.tokens = int(self.offsets.read(self.rows, self.rows + 1)[0]) if self.rows else 0
        if self.tokens < 0:
            raise self._bad(f"its rows end at {self.tokens}")
        self.files = self.data.files(self.tokens)

    def load_bounds(self) -> Int64s:
        """Return where each row begins, and the end of the last one, int64[rows + 1].

        Raises:
            DataError: a row ends before it begins, or a chunk is corrupt.
        """
        bounds = self.offsets.read(0, self.rows + 1).astype(np.int64, copy=False)
        bounds[0] = 0  # the number of rows
        falls = np.flatnonzero(np.diff(bounds) < 0)
        if len(falls):
            raise self._bad(f"row {int(falls[0])} ends before it begins")
        return bounds

    def paths(self) -> list[str]:
        """Return the paths of all files of the field."""
        about = [f"{array.folder}/{NAME}" for array in (self.data, self.offsets)]
        return [*about, *self._offset_files, *self.files]

    def _bad(self, what: str) -> DataError:
        return DataError(
            f"the offsets of its rows are corrupt: {what}",
            file=self.data.store.locate(self.offsets.folder),
            kind="bad-index",
            fix=AGAIN,
        )
