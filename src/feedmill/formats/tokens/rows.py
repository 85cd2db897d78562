"""Token ids in rows: Parquet, Arrow, JSONL, MDS and others with a column of ids, as token data.

Every row is a document; its ids are a list of integers, or bytes of integers (MDS). A column ``labels`` (-100 for
tokens without loss, otherwise equal to the ids) or ``loss_mask`` beside it is the loss mask. All lengths are read when
the dataset is opened: they define windows and rows of packing. Tokens are read from the rows when needed, so random
windows cost as much as random rows; `feedmill convert` makes a token file.

Rejected: rows without ids, ids that are not integers, negative ids, labels of another length or other ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.base import Dataset, Indices
from feedmill.formats.offsets import Extents, hash_words
from feedmill.formats.sample import Sample, Source, locate
from feedmill.formats.tokens.base import Int64s, TokenDataset, Tokens, TokenShard
from feedmill.formats.tokens.gather import pieces_of

COLUMNS = ("input_ids", "tokens")
"""Names of columns that are token ids, in the order in which they are looked for."""
LABELS, MASK, WITHOUT_LOSS = "labels", "loss_mask", -100
BYTES = 8
"""Bytes per id of a column of bytes by default, as LLM Foundry writes them."""
_BLOCK = 1024


def column_of(rows: Dataset) -> str | None:
    """Return the name of the column of token ids of a dataset; None if it has none or is empty."""
    names = _names(rows)
    return next((name for name in COLUMNS if name in names), None)


class TokenRows(TokenDataset):
    """The rows of a dataset as documents of tokens.

    Args:
        rows: the dataset, not decoded.
        column: the column of token ids.
        token_size: bytes per id of a column of bytes.

    Attributes:
        beside: names of columns that are neither ids nor a loss mask.

    Raises:
        ConfigError: there is no such column.
        DataError: a row has no list of integers.
    """

    def __init__(self, rows: Dataset, column: str, token_size: int | None = None) -> None:
        # Without a decoder, values that are lists would be bytes.
        self.rows, self.column, self._token_size = rows.opened_as(decode=_same), column, token_size or BYTES
        names = _names(rows)
        if column not in names:
            raise ConfigError(
                f"there is no column {column!r} of token ids",
                file=rows.url,
                kind="no-tokens",
                fix=f"Pass the name of one of its columns: {', '.join(sorted(names)) or 'none'}.",
            )
        self.beside = names - {column}
        self._mask = next((name for name in (LABELS, MASK) if name in names), None)
        self.beside -= {self._mask}
        lengths = self._all_lengths()
        bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        shard = TokenShard(
            rows.url.rstrip("/").rpartition("/")[2],
            np.dtype(np.int64),
            0,
            int(bounds[-1]),
            len(lengths),
            partial(_as_is, bounds),
            None if self._mask is None else self._load_loss,
            facts=(rows.fingerprint, column, str(self._token_size)),
        )
        store: Any = getattr(rows, "store", None)
        super().__init__(store, [shard], name=rows.url, format=f"{rows.format} rows", about={"column": column})

    def own_gather(self) -> RowGather:
        return RowGather(self)

    def _all_lengths(self) -> Int64s:
        own = getattr(self.rows, "list_lengths", None)
        found = None if own is None else own(self.column)
        if found is not None:
            return np.asarray(found, np.int64)
        count = len(self.rows)
        blocks = (np.arange(low, min(low + _BLOCK, count)) for low in range(0, count, _BLOCK))
        return np.array([len(ids) for block in blocks for ids in self._ids(block)], np.int64)

    def _values(self, indices: Indices, column: str) -> list[Any]:
        samples = self.rows.read_raw(indices)
        if "json" in samples[0] and column not in samples[0]:
            return [orjson.loads(sample.raw("json")).get(column) for sample in samples]
        return [sample[column] for sample in samples]

    def _ids(self, indices: Indices) -> list[Int64s]:
        """Return the ids of rows. Raises `DataError` for a row that has none."""
        values = self._values(indices, self.column)
        numbers = np.asarray(indices, np.int64).tolist()
        return [self._checked_ids(value, number) for value, number in zip(values, numbers, strict=True)]

    def _checked_ids(self, value: Any, number: int) -> Int64s:
        if isinstance(value, bytes | bytearray | memoryview):
            if len(value) % self._token_size:
                raise self._bad(number, f"{len(value)} bytes are not a whole number of ids of {self._token_size} bytes")
            kind = "<i8" if self._token_size == BYTES else f"<u{self._token_size}"
            ids = np.frombuffer(value, kind)
        else:
            try:
                ids = np.asarray(value)
            except ValueError:
                raise self._bad(number, "the ids are nested lists of different lengths") from None
        if ids.shape == (0,):
            return np.zeros(0, np.int64)
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise self._bad(number, f"expected a list of integers, found {ids.dtype} of the shape {ids.shape}")
        if int(ids.min()) < 0 or int(ids.max()) >= 2**63:
            raise self._bad(number, f"the id {int(ids.min())} is negative")
        return ids.astype(np.int64)

    def _load_loss(self) -> npt.NDArray[np.bool_]:
        """Return the loss mask of all tokens, bool[tokens], from the labels or the mask of the rows."""
        assert self._mask is not None
        found = [np.zeros(0, np.bool_)]
        for low in range(0, len(self.rows), _BLOCK):
            block = np.arange(low, min(low + _BLOCK, len(self.rows)))
            pairs = zip(block.tolist(), self._ids(block), self._values(block, self._mask), strict=True)
            found += [self._loss_of(number, ids, value) for number, ids, value in pairs]
        return np.concatenate(found)

    def _loss_of(self, number: int, ids: Int64s, value: Any) -> npt.NDArray[np.bool_]:
        mask = np.asarray([] if value is None else value)
        if mask.shape != ids.shape or (len(mask) and mask.dtype.kind not in "iubf"):
            raise self._bad(number, f"{self._mask!r} has the shape {mask.shape}, the ids have {ids.shape}")
        if self._mask == MASK:
            return np.asarray(mask, np.bool_)
        loss = mask != WITHOUT_LOSS
        if (mask[loss] != ids[loss]).any():
            raise self._bad(
                number, f"a label is neither {WITHOUT_LOSS} nor the id of its token: shifted labels are unsupported"
            )
        return np.asarray(loss, np.bool_)

    def _bad(self, number: int, what: str) -> FeedmillError:
        error = DataError(
            f"{self.column!r} cannot be read as token ids: {what}",
            kind="no-tokens",
            fix="Correct the row, or name another column with tokens=NAME.",
        )
        return locate(error, self.rows.locate(number), record=f"row {number}")

    def read_tokens(self, indices: Int64s, starts: Int64s, lengths: Int64s) -> list[Tokens]:
        wanted = np.asarray(indices, np.int64)
        unique, place = np.unique(wanted, return_inverse=True)
        ids = self._ids(unique) if len(unique) else []
        out: list[Tokens] = []
        for number, at, start, length in zip(
            wanted.tolist(), place.tolist(), np.asarray(starts).tolist(), np.asarray(lengths).tolist(), strict=True
        ):
            if start < 0 or length < 0 or start + length > len(ids[at]):
                raise self._outside(number, len(ids[at]))
            out.append(ids[at][start : start + length])
        return out

    def read_raw(self, indices: Indices) -> list[Sample]:
        numbers = np.asarray(indices, np.int64).tolist()
        found = []
        for number, ids in zip(numbers, self._ids(numbers) if numbers else [], strict=True):
            data = ids.astype("<i8").tobytes()
            parts: Mapping[str, tuple[int, int]] = {"input_ids": (0, len(data))}
            where = partial(self.locate, number)
            found.append(Sample(str(number), data, dict(parts), where, _decode, self.subflavors))
        return found

    def _find_values(self, by: str, *, texts: bool) -> npt.NDArray[Any] | None:
        return self.rows.values(by, texts=texts)

    @property
    def cost_fields(self) -> Sequence[str]:
        return self.rows.cost_fields

    def costs_advice(self, by: str) -> str:
        return self.rows.costs_advice(by)

    def locate(self, index: int) -> Source:
        return self.rows.locate(index)

    @property
    def is_remote(self) -> bool:
        return self.rows.is_remote

    def _extents(self, indices: Indices, starts: Int64s | None, lengths: Int64s | None) -> Sequence[Extents]:  # noqa: ARG002
        return self.rows.extents(indices)

    def fingerprint_of_shards(self, shards: int) -> str:  # noqa: ARG002
        return hash_words([self.rows.fingerprint(), self.column, str(self._token_size)])

    def verify(self) -> Sequence[FeedmillError]:
        return self.rows.verify()

    def describe(self) -> dict[str, Any]:
        facts = self.rows.describe()
        return {**facts, "format": self.format, "tokens": self.tokens, "indexed": True, **self.about}


class RowGather:
    """Reader of ranges of the tokens of rows, with the interface of `feedmill.formats.tokens.gather.Gather`."""

    def __init__(self, tokens: TokenRows) -> None:
        self._tokens = tokens

    def rows(self, shard: int, starts: Int64s, out: npt.NDArray[Any], rows: Int64s | None = None) -> None:
        """See `Gather.rows`."""
        bounds = self._tokens.shards[shard].bounds
        row, column, document, first, length = pieces_of(bounds, starts, starts + out.shape[1])
        places = row if rows is None else rows[row]
        found = self._tokens.read_tokens(document, first, length)
        for place, at, ids in zip(places.tolist(), column.tolist(), found, strict=True):
            out[place, at : at + len(ids)] = ids

    def spans(self, shard: int, first: Int64s, stop: Int64s, to: Int64s, out: npt.NDArray[Any]) -> None:
        """See `Gather.spans`."""
        row, column, document, start, length = pieces_of(self._tokens.shards[shard].bounds, first, stop)
        found = self._tokens.read_tokens(document, start, length)
        for place, ids in zip((to[row] + column).tolist(), found, strict=True):
            out[place : place + len(ids)] = ids


def _names(rows: Dataset) -> set[str]:
    """Return the names of the columns: of the first sample, or of its JSON object."""
    if not len(rows):
        return set()
    first = rows.read_raw([0])[0]
    names = set(first)
    if names == {"json"}:
        value = orjson.loads(first.raw("json"))
        return set(value) if isinstance(value, dict) else set()
    return names


def _same(_name: str, data: bytes) -> bytes:
    return data


def _decode(_name: str, data: bytes) -> Int64s:
    return np.frombuffer(data, "<i8").astype(np.int64)


def _as_is(bounds: Int64s) -> Int64s:
    return bounds
