"""Windows over the flat tokens of files, of any token format.

Window i of a file with T tokens holds the tokens ``[i * stride, i * stride + width)``; there are
``(T - width) // stride + 1`` of them. The tokens after the last one are dropped (``tail="drop"``), or fill one more
window (``"pad"``). The rules of other tools are settings of this one:

    Modalities, reuse_last_target   width seq_len + 1, stride seq_len
    Modalities, without             width seq_len,     stride seq_len
    datatrove                       width seq_len + 1, stride seq_len + 1

Each file has its own windows; with ``across`` the files are one stream. Windows are computed, so opening takes the same
time for any number of them: `WindowLayout` has where they lie, and the documents in them. The windows of `BlockDataset`
begin with documents instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset, Indices, numbers_inside
from feedmill.formats.batches import INPUTS, TARGETS, Batch, Columns, Shifted, Want
from feedmill.formats.costs import LOSS_TOKENS
from feedmill.formats.offsets import Extents, hash_words
from feedmill.formats.sample import Sample, Source, no_such_key, number_of
from feedmill.formats.tokens.base import Int64s, TokenDataset, samples_per_block
from feedmill.formats.tokens.gather import (
    Gather,
    boundaries_from,
    positions_from,
    resets_from_bounds,
    resets_from_eos,
)
from feedmill.formats.tokens.masks import Masks
from feedmill.formats.tokens.shifted import shifted
from feedmill.formats.tokens.window import Window
from feedmill.jobs.buffers import empty
from feedmill.kernels.order.blocks import greedy_blocks

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


_WINDOWS = 1 << 16
"""Windows whose masks are counted at once."""


class WindowDataset(WindowLayout, Dataset):
    """Windows of `width` tokens, one every `stride` tokens.

    A sample has ``input_ids``, `dtype`[width]. Optional fields are ``positions``, int64[width] (position of each token
    in the part of its document that is in the window), and ``boundaries``, int64[k + 1] (0, the starts of further
    documents, width). With ``tail="pad"`` it also has ``tokens``, the number of tokens that are not padding. If a file
    has a loss mask, it has ``loss_mask``, bool[width]: which tokens contribute to the loss. Padding does not. Keys are
    the window's number as a decimal.

    Args:
        tokens: the files.
        width: tokens per window, at least 2.
        stride: tokens from one window to the next; default: `width`.
        across: windows can extend over the ends of files.
        tail: handling of the tokens after the last whole window: ``drop``, or ``pad`` for one more window.
        pad: id that pads that window.
        positions, boundaries: also return these fields.
        eos: id after which a document begins, for positions and boundaries; default: starts come from the index.
        dtype: type of ``input_ids``; None for the stored type (the widest of the files').

    Raises:
        ConfigError: the settings are invalid, or there are no windows.
    """

    format = "windows"

    def __init__(
        self,
        tokens: TokenDataset,
        *,
        width: int,
        stride: int | None = None,
        across: bool = False,
        tail: Tail = "drop",
        pad: int | None = None,
        positions: bool = False,
        boundaries: bool = False,
        eos: int | None = None,
        dtype: npt.DTypeLike = np.int64,
    ) -> None:
        self.tokens, self.url, self.width = tokens, tokens.url, width
        self.stride = width if stride is None else stride
        self.across, self.tail, self.pad, self.eos = across, tail, pad, eos
        self.positions, self.boundaries = positions, boundaries
        self._check()
        self.dtype = _native(tokens) if dtype is None else np.dtype(dtype)
        self._check_dtype(self.dtype)
        try:
            np.full(1, 0 if pad is None else pad, self.dtype)
        except OverflowError:
            raise ConfigError(
                f"pad={pad} does not fit tokens of type {self.dtype}",
                file=self.url,
                fix="Use another id, or a wider dtype such as int64.",
            ) from None
        self._gather = tokens.own_gather() or Gather(tokens.store, tokens.shards)
        sizes = [shard.tokens for shard in tokens.shards]
        self._files = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
        self._sizes = np.diff(self._files)
        self._ends = self._count(np.asarray([sum(sizes)] if across else sizes, np.int64))
        if not len(self):
            raise ConfigError(
                f"no file has a whole window of {width} tokens (the largest has {max(sizes, default=0)})",
                file=self.url,
                kind="too-few-samples",
                fix="Use a smaller seq_len, or tail='pad'.",
            )

    def _check(self) -> None:
        wrong = None
        if self.width < 2 or self.stride < 1:
            wrong = f"windows of {self.width} tokens every {self.stride} tokens are invalid"
        elif self.tail not in get_args(Tail) or (self.tail == "pad") != (self.pad is not None):
            wrong = f"tail={self.tail!r} with pad={self.pad} is invalid"
        if wrong:
            raise ConfigError(
                wrong,
                file=self.url,
                fix="Use a width of 2 or more, a stride of 1 or more, and tail='drop', or tail='pad' with pad=<id>.",
            )

    def _check_dtype(self, dtype: np.dtype[Any]) -> None:
        stored = _native(self.tokens)
        if not np.can_cast(stored, dtype, "safe"):
            raise ConfigError(
                f"not every token of type {stored} fits {dtype}",
                file=self.url,
                fix="Use int64, or dtype=None for the stored type.",
            )

    def gather(self, indices: Indices, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return the tokens of many windows in one array.

        Args:
            indices: int64[n] window numbers.
            out: integers[n, width] to fill, for example the numpy view of a pinned tensor; default: a new array of the
                dataset's `dtype`.

        Raises:
            IndexError: there is no such window.
            ConfigError: `out` has another shape.
        """
        file, start = self.begins(indices)
        if out is None:
            out = empty((len(file), self.width), self.dtype)
        elif out.shape != (len(file), self.width):
            raise ConfigError(f"the array has the shape {out.shape}, expected {(len(file), self.width)}")
        else:
            self._check_dtype(out.dtype)
        self._fill(file, start, out, self._gather, self.pad)
        return out

    def masks(self, indices: Indices) -> npt.NDArray[np.bool_] | None:
        """Return which tokens of windows contribute to the loss, bool[n, width]; None if no file has a loss mask."""
        if self.tokens.masks is None:
            return None
        file, start = self.begins(indices)
        out = empty((len(file), self.width), np.bool_)
        self._fill(file, start, out, self.tokens.masks, pad=False)
        return out

    def _fill(
        self, file: Int64s, start: Int64s, out: npt.NDArray[Any], source: Gather | Masks, pad: int | None
    ) -> None:
        if len(self._files) == 2 and (not len(start) or int(start.max()) + self.width <= int(self._files[1])):
            source.rows(0, start, out)
            return
        whole = start + self.width <= self._sizes[file]
        for number in np.unique(file[whole]).tolist():
            rows = np.flatnonzero((file == number) & whole)
            source.rows(number, start[rows], out, rows)
        for row in np.flatnonzero(~whole).tolist():  # beyond the end of a file or of the data
            self._fill_pieces(int(file[row]), int(start[row]), out[row : row + 1], source, pad)

    def _fill_pieces(
        self, file: int, start: int, out: npt.NDArray[Any], source: Gather | Masks, pad: int | None
    ) -> None:
        at = 0
        for number, first, count in self._pieces(file, start):
            source.rows(number, np.array([first]), out[:, at : at + count])
            at += count
        if at < self.width:
            out[:, at:] = pad

    def _loss_lengths(self) -> Int64s:
        """Return the tokens of each window that contribute to the loss, int64[len]. Reads the masks."""
        masks = self.tokens.masks
        if masks is None:
            return self._real(np.arange(len(self))) if self.tail == "pad" else self.lengths
        out = np.empty(len(self), np.int64)
        for low in range(0, len(self), _WINDOWS):
            numbers = np.arange(low, min(low + _WINDOWS, len(self)))
            out[numbers] = self._count_loss(masks, numbers)
        return out

    def _count_loss(self, masks: Masks, numbers: Int64s) -> Int64s:
        """Return the tokens of windows that contribute to the loss, int64[n]; the windows ascend."""
        file, start = self.begins(numbers)
        if self.across and not self._in_one_piece(file, start):
            out = np.zeros(len(numbers), np.int64)
            for row, (number, first) in enumerate(zip(file.tolist(), start.tolist(), strict=True)):
                for piece, begin, count in self._pieces(number, first):
                    out[row] += int(masks.counts(piece, np.array([begin]), np.array([begin + count]))[0])
            return out
        out = np.empty(len(numbers), np.int64)
        for number in np.unique(file).tolist():
            rows = np.flatnonzero(file == number)
            stop = np.minimum(start[rows] + self.width, self._sizes[number])
            out[rows] = masks.counts(number, start[rows], stop)
        return out

    def _find_costs(self, by: str) -> Int64s | None:
        if by == LOSS_TOKENS:
            return self._loss_lengths()
        sizes = {shard.dtype.itemsize for shard in self.tokens.shards}
        if by != "bytes" or len(sizes) != 1:
            return None
        (size,) = sizes
        if self.tail == "pad":
            return self._real(np.arange(len(self))) * size
        return np.broadcast_to(np.int64(self.width * size), (len(self),))

    def read_batch(self, indices: Indices, want: Want) -> Batch | None:
        if want == "fields" or self.view is not None or self.boundaries:
            return super().read_batch(indices, want)
        numbers = np.asarray(indices, np.int64)
        if isinstance(want, Shifted) and (found := self._shifted(numbers, want)) is not None:
            return found
        tokens = self.gather(numbers)
        columns: Columns = {"__key__": list(map(str, numbers.tolist())), "input_ids": tokens}
        if (masks := self.masks(numbers)) is not None:
            columns["loss_mask"] = masks
        if self.tail == "pad":
            columns["tokens"] = self._real(numbers)
        if self.positions:
            columns["positions"] = positions_from(self.resets(numbers, tokens), tokens.shape)
        return columns

    def _shifted(self, numbers: Int64s, want: Shifted) -> Columns | None:
        """Return inputs and targets of windows; None where plain columns have to do."""
        if want.key != "input_ids" or self.dtype != np.int64 or self.eos is not None or self.tail == "pad":
            return None
        file, start = self.begins(numbers)
        if not self._in_one_piece(file, start):
            return None
        pair = shifted(self._gather, self.tokens.masks, file, start, self.width, want.ignore, len(self._sizes) == 1)
        if pair is None:
            return None
        columns: Columns = {INPUTS: pair[0], TARGETS: pair[1]}
        if self.positions:
            row, place = self._index_resets(numbers)
            columns["positions"] = positions_from((row, place), (len(numbers), self.width))
            if want.borders:
                pair[1][row, place - 1] = want.ignore
        return columns

    def read_raw(self, indices: Indices) -> list[Sample]:
        numbers = np.asarray(indices, np.int64)
        tokens = self.gather(numbers)
        values: list[dict[str, Any]] = [{"input_ids": row} for row in tokens]
        if (masks := self.masks(numbers)) is not None:
            for value, row in zip(values, masks, strict=True):
                value["loss_mask"] = row
        subflavors = self.subflavors
        if self.tail == "pad":
            for value, count in zip(values, self._real(numbers).tolist(), strict=True):
                value["tokens"] = count
        if self.positions or self.boundaries:
            resets = self.resets(numbers, tokens)
            if self.positions:
                for value, row in zip(values, positions_from(resets, tokens.shape), strict=True):
                    value["positions"] = row
            if self.boundaries:
                for value, row in zip(values, boundaries_from(resets, tokens.shape), strict=True):
                    value["boundaries"] = row
        return [
            Window(
                str(number),
                value,
                partial(self.locate, number),
                partial(self._stored, number),
                subflavors,
                owner=self,
                number=number,
            )
            for number, value in zip(numbers.tolist(), values, strict=True)
        ]

    @property
    def is_remote(self) -> bool:
        return self.tokens.is_remote

    @property
    def shuffle_block(self) -> int | None:
        return samples_per_block(self.width)

    def extents(self, indices: Indices) -> Sequence[Extents]:
        store, shards = self.tokens.store, self.tokens.shards
        if store.is_local:
            return ()
        first, start = self.begins(indices)
        begin = self._files[first] + start  # offset in the tokens of all files
        end = np.minimum(begin + self.width, self._files[-1] if self.across else self._files[first + 1])
        counts = np.searchsorted(self._files, end, side="left") - first  # the files that contain a part of a window
        window = np.repeat(np.arange(len(first)), counts)
        file = np.arange(len(window)) + np.repeat(first - np.cumsum(counts) + counts, counts)
        low, high = self._files[file], self._files[file + 1]
        low, high = np.maximum(begin[window], low) - low, np.minimum(end[window], high) - low
        if (self.positions or self.boundaries) and self.eos is None:
            self.tokens.need_index()
            self.tokens.load_bounds(np.unique(file).tolist())
        offset, size = (
            np.asarray(column, np.int64)[file]
            for column in zip(*((shard.offset, shard.dtype.itemsize) for shard in shards), strict=True)
        )
        paths = [shard.path for shard in shards]
        extents = [Extents(store, paths, window, file, offset + low * size, offset + high * size)]
        return extents if self.tokens.masks is None else [*extents, *self.tokens.masks.extents(window, file, low, high)]

    def before(self, index: int, most: int) -> npt.NDArray[Any]:
        """Return the last `most` tokens before a window that belong to its first document.

        Raises:
            NotFound: neither the index nor `eos` locates documents.
        """
        file, start = (int(place[0]) for place in self.begins([index]))
        low = max(start - most, 0)
        if self.eos is None:
            self.tokens.need_index()
            bounds = self.tokens.shards[file].bounds
            low = max(low, int(bounds[int(np.searchsorted(bounds, start, side="right")) - 1]))
        out: npt.NDArray[Any] = np.empty((1, start - low), self.dtype)
        self._gather.rows(file, np.array([low]), out)
        if self.eos is not None:
            ends = np.flatnonzero(out[0] == self.eos)
            out = out[:, int(ends[-1]) + 1 :] if len(ends) else out
        return out.reshape(-1)

    def _stored(self, index: int) -> bytes:
        file, start = (int(place[0]) for place in self.begins([index]))
        out = []
        for number, first, count in self._pieces(file, start):
            table = self.tokens.shards[number]
            size = table.dtype.itemsize
            out.append(self.tokens.store.read(table.path, table.offset + first * size, count * size))
        return b"".join(out)

    def locate(self, index: int) -> Source:
        number = self._checked(index)
        file, start = (int(place[0]) for place in self.begins([number]))
        table = self.tokens.shards[file]
        size = table.dtype.itemsize
        count = min(self.width, table.tokens - start)
        return Source(
            self.url, table.path, table.offset + start * size, count * size, number, str(number), ("input_ids",)
        )

    def find(self, key: str) -> int:
        number = number_of(key, len(self))
        if number is None:
            raise no_such_key(self.url, key)
        return number

    @property
    def lengths(self) -> Int64s:
        """Return tokens per window, int64[len]: a broadcast number, which takes no memory."""
        return np.broadcast_to(np.int64(self.width), (len(self),))

    def _rule(self) -> str:
        return f"{self.format} {self.width} {self.stride} {self.across} {self.tail} {self.pad}"

    def fingerprint(self) -> str:
        return hash_words([self._rule(), self.tokens.fingerprint_of_shards(len(self.tokens.shards))])

    def fingerprint_of_first(self, count: int) -> str | None:
        files = int(np.searchsorted(self._ends, count))
        if self.across or count < 1 or files == len(self._ends) or self._ends[files] != count:
            return None
        return hash_words([self._rule(), self.tokens.fingerprint_of_shards(files + 1)])

    def describe(self) -> dict[str, Any]:
        return {
            "format": f"{self.tokens.format} ({self.format})",
            "path": self.url,
            "split": self.split,
            "samples": len(self),
            "tokens": self.tokens.tokens,
            "window": self.width,
            "stride": self.stride,
            "tokens_left_out": self._left_out(),
            "shards": len(self.tokens.shards),
            "bytes": sum(self.tokens.store.stat(shard.path).size for shard in self.tokens.shards),
            "indexed": all(shard.indexed for shard in self.tokens.shards),
            **self.tokens.about,
            **self.about,
        }


def _native(tokens: TokenDataset) -> np.dtype[Any]:
    """Return the widest type in which tokens are stored, in this machine's byte order."""
    dtypes = [shard.dtype.newbyteorder("=") for shard in tokens.shards]
    return max(dtypes, key=lambda dtype: dtype.itemsize, default=np.dtype(np.int64))


class BlockDataset(WindowDataset):
    """Blocks of `block_size` tokens, each of which begins with a document; no block spans two files.

    They are the Megatron-style blocks of Modalities, as documented. The class in Modalities does not work: it counts
    starts from the wrong byte, confuses lengths in tokens with bytes, and loses its position after a document that is
    longer than a block. This class implements the rule in its comments; see `feedmill.kernels.order.blocks`. Opening
    takes as long as reading the bounds of documents.

    Args:
        tokens: the files, with their index of documents.
        block_size: tokens per block, at least 2.
        options: ``positions``, ``boundaries``, ``eos`` and ``dtype`` as for `WindowDataset`.

    Raises:
        NotFound: a file has no index of documents.
        ConfigError: the settings are invalid, or there are no blocks.
    """

    format = "blocks"

    def __init__(self, tokens: TokenDataset, *, block_size: int, **options: Any) -> None:
        tokens.need_index()
        self._starts: list[Int64s] = []
        super().__init__(tokens, width=block_size, **options)

    def _count(self, sizes: Int64s) -> Int64s:  # noqa: ARG002
        self._starts = [greedy_blocks(shard.bounds, self.width) for shard in self.tokens.shards]
        return np.cumsum([len(starts) for starts in self._starts], dtype=np.int64)

    def begins(self, indices: Indices) -> tuple[Int64s, Int64s]:
        wanted = numbers_inside(indices, len(self), self.url, "block")
        file = np.searchsorted(self._ends, wanted, side="right").astype(np.int64)
        start = np.empty(len(wanted), np.int64)
        for number in np.unique(file).tolist():
            mine = file == number
            before = int(self._ends[number - 1]) if number else 0
            start[mine] = self._starts[number][wanted[mine] - before]
        return file, start

    def _overlapping(self, file: int, low: int, high: int) -> tuple[int, int]:
        first, stop = np.searchsorted(self._starts[file], (low - self.width + 1, high))
        return int(first), int(stop)

    def _left_out(self) -> int:
        """Return the number of tokens in no block: truncated ends of documents, and the end of each file."""
        seen = 0
        for starts in self._starts:
            gaps = np.diff(starts)
            seen += int(np.minimum(gaps, self.width).sum()) + (self.width if len(starts) else 0)
        return self.tokens.tokens - seen
