"""Positions of windows over the flat tokens of files, and the documents in them; reading them is in `windows`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from feedmill.formats.base import Indices, numbers_inside
from feedmill.formats.tokens.base import Int64s, TokenDataset
from feedmill.formats.tokens.gather import resets_from_bounds, resets_from_eos

Tail = Literal["drop", "pad"]
Resets = tuple[Int64s, Int64s]


class WindowLayout:
    """The arithmetic of windows; see `feedmill.formats.tokens.windows.WindowDataset` for the rules.

    Attributes:
        tokens: the files; `url` is theirs.
        width, stride: tokens per window, and from one window to the next.
        across: windows can extend over the ends of files.
        tail: handling of the tokens after the last whole window.
        eos: id after which a document begins; None if starts come from the index.
    """

    tokens: TokenDataset
    url: str
    width: int
    stride: int
    across: bool
    tail: Tail
    eos: int | None
    _files: Int64s  # the first token of each file in all tokens, and the end
    _sizes: Int64s  # tokens of each file
    _ends: Int64s  # windows up to the end of each file

    def _count(self, sizes: Int64s) -> Int64s:
        """Return the number of windows up to the end of each file, int64."""
        whole = np.where(sizes >= self.width, (sizes - self.width) // self.stride + 1, 0)
        if self.tail == "pad":
            whole += (whole * self.stride < sizes) & ((whole == 0) | ((whole - 1) * self.stride + self.width < sizes))
        return np.cumsum(whole, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def begins(self, indices: Indices) -> tuple[Int64s, Int64s]:
        """Return the number of the file and of the first token in it, int64[n] both. Raises IndexError."""
        wanted = numbers_inside(indices, len(self), self.url, "window")
        if self.across:
            at = wanted * self.stride
            file = np.searchsorted(self._files, at, side="right") - 1
            return file, at - self._files[file]
        if len(self._ends) == 1:
            return np.zeros(len(wanted), np.int64), wanted * self.stride
        file = np.searchsorted(self._ends, wanted, side="right")
        first = np.where(file > 0, self._ends[file - 1], 0)
        return file, (wanted - first) * self.stride

    def _pieces(self, file: int, start: int) -> list[tuple[int, int, int]]:
        """Return the pieces of a window: file, first token, number of tokens."""
        left, pieces = self.width, []
        while left and file < len(self._files) - 1:
            count = min(left, int(self._files[file + 1] - self._files[file]) - start)
            pieces += [(file, start, count)] if count else []
            left -= count
            file, start = file + 1 if self.across else len(self._files), 0
        return pieces

    def documents_of(self, index: int) -> list[tuple[int, int]]:
        """Return the documents of which a window has tokens: the file, and the document's number in it.

        Raises:
            NotFound: a file has no index of documents.
        """
        self.tokens.need_index()
        documents = []
        (file,), (start,) = self.begins([index])
        for number, first, count in self._pieces(int(file), int(start)):
            bounds = self.tokens.shards[number].bounds
            ends = np.searchsorted(bounds, first, "right") - 1, np.searchsorted(bounds, first + count, "left")
            documents += [(number, one) for one in range(*map(int, ends)) if bounds[one] < bounds[one + 1]]
        return documents

    def windows_of(self, file: int, document: int) -> Sequence[int]:
        """Return the windows that have tokens of a document of a file. Raises as `documents_of`."""
        self.tokens.need_index()
        low, high = (int(end) for end in self.tokens.shards[file].bounds[document : document + 2])
        before = 0 if self.across or not file else int(self._ends[file - 1])
        count = len(self) if self.across else int(self._ends[file]) - before
        shift = int(self._files[file]) if self.across else 0
        first, stop = self._overlapping(file, low + shift, high + shift)
        return range(before + first, before + max(first, min(stop, count)))

    def _overlapping(self, file: int, low: int, high: int) -> tuple[int, int]:  # noqa: ARG002
        """Return the first window of a file that has tokens of [low, high), and the end of such windows."""
        return max(0, -(-(low - self.width + 1) // self.stride)), -(-high // self.stride)

    def resets(self, indices: Indices, tokens: npt.NDArray[Any]) -> Resets:
        """Return the starts of documents inside windows, from `eos` or the index: row and position in it, int64[k].

        Raises `NotFound` if neither is known.
        """
        if self.eos is not None:
            return resets_from_eos(tokens, self.eos)
        return self._index_resets(indices)

    def _index_resets(self, indices: Indices) -> Resets:
        """Return `resets` from the index. Raises `NotFound` if a file has no index."""
        self.tokens.need_index()
        file, start = self.begins(indices)
        if len(self.tokens.shards) == 1:
            return resets_from_bounds(self.tokens.shards[0].bounds, start, self.width)
        rows, places = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for number in np.unique(file).tolist():
            mine = np.flatnonzero(file == number)
            row, place = resets_from_bounds(self.tokens.shards[number].bounds, start[mine], self.width)
            rows.append(mine[row])
            places.append(place)
        if self.across:
            for over in np.flatnonzero(start + self.width > np.diff(self._files)[file]).tolist():
                at = 0
                for number, first, count in self._pieces(int(file[over]), int(start[over])):
                    if at:  # a file begins with a document, and the first piece was handled above
                        _, place = resets_from_bounds(self.tokens.shards[number].bounds, np.array([first]), count)
                        more = np.concatenate((np.zeros(1, np.int64), place)) + at
                        rows.append(np.full(len(more), over))
                        places.append(more)
                    at += count
                if at < self.width:  # padding is not part of the last document
                    rows.append(np.array([over]))
                    places.append(np.array([at]))
        row, place = np.concatenate(rows), np.concatenate(places)
        order = np.lexsort((place, row))
        return row[order], place[order]

    def attention(self, indices: Indices) -> Int64s:
        """Return the sum of the squared lengths of the documents in each window, int64[n].

        Documents are located by the index. Without one, a window counts as one document, regardless of `eos`. Padding
        belongs to no document.
        """
        numbers = np.asarray(indices, np.int64)
        real = self._real(numbers) if self.tail == "pad" else np.full(len(numbers), self.width, np.int64)
        if not all(shard.indexed for shard in self.tokens.shards):
            return real * real
        row, place = self._index_resets(numbers)
        inside = place < real[row]  # the rest is padding
        row, place = row[inside], place[inside]
        # Each window's first document begins at 0, the others at their starts; each ends at the next start.
        first = np.arange(len(numbers)) + np.searchsorted(row, np.arange(len(numbers)))
        begins = np.zeros(len(row) + len(numbers), np.int64)
        begins[np.arange(len(row)) + row + 1] = place
        ends = np.append(begins[1:], 0)
        ends[np.append(first[1:], len(begins)) - 1] = real
        lengths = ends - begins
        return np.add.reduceat(lengths * lengths, first) if len(numbers) else lengths

    def _real(self, numbers: Int64s) -> Int64s:
        """Return the number of tokens of windows that are not padding, int64[n]."""
        file, start = self.begins(numbers)
        left = int(self._files[-1]) - self._files[file] if self.across else np.diff(self._files)[file]
        return np.minimum(left - start, self.width)

    def _left_out(self) -> int:
        """Return the number of tokens after the last window of each file, and between windows with a larger stride."""
        counts = np.diff(np.concatenate((np.zeros(1, np.int64), self._ends)))
        sizes = self._files[-1:] if self.across else np.diff(self._files)
        seen = np.where(counts > 0, (counts - 1) * min(self.stride, self.width) + self.width, 0)
        return int(np.maximum(sizes - seen, 0).sum())

    def _in_one_piece(self, file: Int64s, start: Int64s) -> bool:
        """Return whether each window is a range of tokens of one file."""
        return not (self.across or self.tail == "pad") or bool((start + self.width <= self._sizes[file]).all())
