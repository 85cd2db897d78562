"""Loss masks of Levanter caches: of chats, a number per token; of prompts with responses, the prompt's length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.extents import Extents
from feedmill.formats.tokens.base import Int64s, TokenShard
from feedmill.formats.tokens.gather import pieces_of
from feedmill.formats.tokens.levanter_rows import AGAIN, JaggedField
from feedmill.formats.tokens.masks import Bools, Masks
from feedmill.storage import Store


class _OwnMasks(Masks):
    """Masks that no file has as they are: all is in terms of `spans`."""

    def __init__(self, store: Store, shards: Sequence[TokenShard], field: JaggedField) -> None:
        super().__init__(store, shards)
        self._field = field

    def rows(self, shard: int, starts: Int64s, out: npt.NDArray[Any], rows: Int64s | None = None) -> None:
        found = self.spans(shard, starts, starts + out.shape[1])
        for place, mask in zip(range(len(starts)) if rows is None else rows.tolist(), found, strict=True):
            out[place] = mask

    def flat(self, shard: int) -> None:  # noqa: ARG002
        return None

    def _bad(self, what: str) -> DataError:
        return DataError(
            f"the field cannot be the loss mask: {what}",
            file=self._store.locate(self._field.name),
            kind="bad-mask",
            fix=AGAIN,
        )


class FieldMasks(_OwnMasks):
    """``assistant_masks``: 1 for tokens in the loss, else 0. Raises `DataError` for rows of other lengths."""

    def __init__(self, store: Store, shards: Sequence[TokenShard], field: JaggedField) -> None:
        super().__init__(store, shards, field)
        if not np.array_equal(field.load_bounds(), shards[0].bounds):
            raise self._bad("its rows have other lengths than the tokens")

    def spans(self, shard: int, first: Int64s, stop: Int64s) -> list[Bools]:  # noqa: ARG002
        lengths = stop - first
        to = np.cumsum(lengths) - lengths
        found = np.empty(int(lengths.sum()), self._field.data.meta.dtype)
        self._field.data.copy(first, stop, to, found)
        if ((found != 0) & (found != 1)).any():
            wrong = int(found[(found != 0) & (found != 1)][0])
            raise self._bad(f"it has the number {wrong}, expected 0 and 1")
        mask = found != 0
        return [mask[low:high] for low, high in zip(to.tolist(), (to + lengths).tolist(), strict=True)]

    def extents(self, sample: Int64s, file: Int64s, first: Int64s, stop: Int64s) -> list[Extents]:  # noqa: ARG002
        row, number, begin, end = self._field.data.extents(first, stop)
        return [Extents(self._store, self._field.files, sample[row], number, begin, end)]


class LengthMasks(_OwnMasks):
    """``sources_len``: the first tokens of each row are not in the loss. Raises `DataError` for other than one number
    per row, and for prompts that are longer than their row."""

    def __init__(self, store: Store, shards: Sequence[TokenShard], field: JaggedField) -> None:
        super().__init__(store, shards, field)
        if not np.array_equal(field.load_bounds(), np.arange(field.rows + 1)):
            raise self._bad("expected one number per row")
        self._bounds = shards[0].bounds
        self._lengths = field.data.read(0, field.rows).astype(np.int64)
        wrong = np.flatnonzero((self._lengths < 0) | (self._lengths > np.diff(self._bounds)))
        if len(wrong):
            row = int(wrong[0])
            tokens = int(self._bounds[row + 1] - self._bounds[row])
            raise self._bad(f"row {row} of {tokens} tokens has a prompt of {int(self._lengths[row])}")

    def spans(self, shard: int, first: Int64s, stop: Int64s) -> list[Bools]:  # noqa: ARG002
        out = [np.ones(count, np.bool_) for count in (stop - first).tolist()]
        row, column, document, start, length = pieces_of(self._bounds, first, stop)
        masked = np.clip(self._lengths[document] - start, 0, length)
        for number, at, count in zip(row.tolist(), column.tolist(), masked.tolist(), strict=True):
            out[number][at : at + count] = False
        return out

    def extents(self, sample: Int64s, file: Int64s, first: Int64s, stop: Int64s) -> list[Extents]:  # noqa: ARG002
        return []
