"""Ranges of an array of one dimension, read chunk by chunk through a bounded cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.offsets import Int64s, read_records
from feedmill.formats.rows import BlockCache
from feedmill.formats.tokens.zarr.meta import read_meta
from feedmill.kernels.rows import copy_spans
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

ABSENT = -1
"""Begin of a chunk that was never written."""
_CACHE, _INDICES = 64 << 20, 16 << 20
_TOGETHER = 16
"""Chunks whose stored bytes are in memory at once."""
_AGAIN = copy_again("the folder", "write it again")


class ZarrArray:
    """An array of integers. Thread-safe.

    Args:
        store, folder: the folder with ``zarr.json``.
        sizes: bytes of the files of the store by path, so that no file needs a request for its size.
    """

    def __init__(self, store: Store, folder: str, sizes: Mapping[str, int]) -> None:
        self.store, self.folder, self.meta = store, folder, read_meta(store, folder)
        self._sizes = sizes
        self._make_caches()

    def _make_caches(self) -> None:
        self._chunks, self._indices = BlockCache(_CACHE), BlockCache(_INDICES)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_chunks", "_indices")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_caches()

    def path(self, file: int) -> str:
        """Return the path of a stored file."""
        return f"{self.folder}/{self.meta.key % file}"

    def files(self, length: int) -> list[str]:
        """Return the paths of the files of the first `length` numbers.

        Raises:
            DataError: one is missing, or the array is shorter. Zarr reads such a file as fill values, but a lost file
                and one that was never written look alike.
        """
        if length > self.meta.length:
            raise DataError(
                f"the array has {self.meta.length:,} numbers, expected {length:,}",
                file=self.store.locate(self.folder),
                kind="truncated",
                fix=_AGAIN,
            )
        paths = [self.path(file) for file in range(-(-length // self.meta.stored))]
        for number, path in enumerate(paths):
            if path not in self._sizes:
                first = number * self.meta.stored
                raise DataError(
                    f"the file is missing: the numbers from {first:,} to {min(first + self.meta.stored, length):,} of"
                    f" the array would all be {self.meta.fill}",
                    file=self.store.locate(path),
                    kind="missing-shard",
                    fix=_AGAIN,
                )
        return paths

    def read(self, first: int, stop: int) -> npt.NDArray[Any]:
        """Return the numbers ``[first, stop)``. Raises as `copy`."""
        out = np.empty(stop - first, self.meta.dtype)
        self.copy(np.array([first]), np.array([stop]), np.zeros(1, np.int64), out)
        return out

    def copy(self, first: Int64s, stop: Int64s, to: Int64s, out: npt.NDArray[Any]) -> None:
        """Copy ranges to places of an array. A chunk is decoded once for all ranges.

        Args:
            first, stop: int64[n], ranges inside the array.
            to: int64[n], where each begins in `out`.
            out: integers[m] that any number fits.

        Raises:
            DataError: a chunk is corrupt, truncated or missing.
        """
        row, chunk, begin, end = self._pieces(first, stop)
        if not len(row):
            return
        order = np.argsort(chunk, kind="stable")
        row, chunk, begin, end = row[order], chunk[order], begin[order], end[order]
        numbers, low = np.unique(chunk, return_index=True)
        high = np.append(low[1:], len(chunk))
        places = to[row] + begin - first[row]
        base = chunk * self.meta.chunk
        for number, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            if number % _TOGETHER == 0:
                decoded = self.decoded(numbers[number : number + _TOGETHER])
            copy_spans(next(decoded), begin[a:b] - base[a:b], end[a:b] - begin[a:b], places[a:b], out)

    def extents(self, first: Int64s, stop: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return range number, number of the file, begin and end in it of the chunks of ranges, int64[m] each."""
        row, chunk, _, _ = self._pieces(first, stop)
        file, begin, end = self.places(chunk)
        real = begin != ABSENT
        return row[real], file[real], begin[real], end[real]

    def _pieces(self, first: Int64s, stop: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return the parts of ranges in each chunk: number of range and chunk, first number and end, int64[m] each."""
        size = self.meta.chunk
        low = first // size
        count = np.where(stop > first, (stop - 1) // size - low + 1, 0)
        row = np.repeat(np.arange(len(first)), count)
        chunk = np.arange(len(row)) + (low - np.cumsum(count) + count)[row]
        return row, chunk, np.maximum(first[row], chunk * size), np.minimum(stop[row], (chunk + 1) * size)

    def decoded(self, numbers: Int64s) -> Iterator[npt.NDArray[Any]]:
        """Yield the numbers of chunks (ascending, different), in native byte order; do not change them.

        Their stored bytes are read before the first is decoded.
        """
        missing = np.array([number not in self._chunks for number in numbers.tolist()], np.bool_)
        blocks = dict(zip(numbers[missing].tolist(), self._stored(numbers[missing]), strict=True))
        for number in numbers.tolist():
            yield self._chunks.get(number, partial(self._decode, number, blocks.pop(number, None)))

    def _stored(self, numbers: Int64s) -> list[bytes | None]:
        """Return the stored bytes of chunks; None for those that were never written."""
        file, begin, end = self.places(numbers)
        out: list[bytes | None] = [None] * len(numbers)
        for each in np.unique(file).tolist():
            rows = np.flatnonzero((file == each) & (begin != ABSENT))
            blocks = read_records(self.store, self.path(each), begin[rows], end[rows])
            for row, block in zip(rows.tolist(), blocks, strict=True):
                out[row] = block
        return out

    def _decode(self, number: int, block: bytes | None) -> tuple[npt.NDArray[Any], int]:
        """Return a chunk, and its bytes in memory."""
        meta = self.meta
        if block is None:  # also for one that another thread removed from the cache meanwhile
            block = self._stored(np.array([number]))[0]
        if block is None:
            found = np.full(meta.chunk, meta.fill, meta.dtype)
            return found, found.nbytes
        try:
            data = meta.pipeline.decode(block, meta.chunk * meta.dtype.itemsize)
        except ValueError as error:
            raise self._corrupt(number, str(error)) from None
        found = np.frombuffer(data, meta.dtype.newbyteorder(meta.pipeline.order)).astype(meta.dtype, copy=False)
        return found, found.nbytes

    def places(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the file of chunks, begin and end in it, int64[n] each; `ABSENT` for what was never written.

        Reads the indices of the files, which are kept.
        """
        file, local = np.divmod(numbers, self.meta.per_file)
        begin, end = np.full(len(file), ABSENT, np.int64), np.full(len(file), ABSENT, np.int64)
        for each in np.unique(file).tolist():
            rows = np.flatnonzero(file == each)
            index = self._indices.get(each, partial(self._load_index, each))
            begin[rows], end[rows] = index[local[rows], 0], index[local[rows], 1]
        return file, begin, end

    def _load_index(self, file: int) -> tuple[Int64s, int]:
        """Return begin and end of the chunks of a file, int64[chunks, 2], and their bytes in memory."""
        path, meta = self.path(file), self.meta
        if path not in self._sizes:
            raise DataError("the file is missing", file=self.store.locate(path), kind="missing-shard", fix=_AGAIN)
        size = self._sizes[path]
        if meta.table is None:
            return np.array([[0, size]], np.int64), 16
        body = meta.per_file * 16
        length = body + (meta.table.overhead or 0)
        if length > size:
            raise self._bad_index(path, f"the file has {size:,} bytes, its index alone has {length:,}")
        data = self.store.read(path, size - length if meta.at_end else 0, length)
        try:
            numbers = np.frombuffer(meta.table.decode(data, body), f"{meta.table.order}u8").reshape(-1, 2)
        except ValueError as error:
            raise self._bad_index(path, f"the index of its chunks is corrupt: {error}") from None
        absent = (numbers == np.iinfo(np.uint64).max).all(axis=1)
        begin, count = numbers[:, 0].astype(np.uint64), numbers[:, 1].astype(np.uint64)
        outside = ~absent & ((begin > size) | (count > size) | (begin + count > size) | (count == 0))
        if outside.any():
            number = int(np.flatnonzero(outside)[0])
            raise self._bad_index(
                path, f"its chunk {number} has {int(count[number]):,} bytes from {int(begin[number]):,}, of {size:,}"
            )
        found = np.full(numbers.shape, ABSENT, np.int64)
        found[~absent, 0], found[~absent, 1] = begin[~absent], (begin + count)[~absent]
        return found, found.nbytes

    def verify(self, length: int) -> Iterator[tuple[int, DataError | None]]:
        """Decode all chunks of the first `length` numbers: yield those that were never written, and the errors."""
        for number in range(-(-length // self.meta.chunk)):
            try:
                if self.places(np.array([number]))[1][0] == ABSENT:
                    yield number, None
                else:
                    self._decode(number, None)
            except DataError as error:
                yield number, error
                if error.kind == "bad-index":
                    return  # all other chunks of the file have the same error

    def _corrupt(self, number: int, what: str) -> DataError:
        file, local = divmod(number, self.meta.per_file)
        return DataError(
            f"the chunk {local} of {self.folder} cannot be read: {what}",
            file=self.store.locate(self.path(file)),
            record=f"chunk {local}",
            kind="bad-data",
            fix=_AGAIN,
        )

    def _bad_index(self, path: str, what: str) -> DataError:
        return DataError(f"{what} (array {self.folder})", file=self.store.locate(path), kind="bad-index", fix=_AGAIN)
