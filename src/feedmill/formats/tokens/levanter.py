"""Caches of Levanter (`TreeCache`, of Marin too), read: documents of tokens in arrays of Zarr 3.

Layout: the folder of a split, with a folder for each field of its rows::

    shard_ledger.json        total_num_rows, shard_rows, is_finished, metadata of the processor
    input_ids/offsets/       int64: the number of rows, then the end of each row in the data
    input_ids/data/          the tokens of all rows, int32
    assistant_masks/...      of chats: 1 for tokens that the assistant wrote
    sources_len/...          of prompts with responses: tokens of the prompt, one number per row

An array has a length of 2^54 and files of 2^27 numbers, of which only those with content exist: ``c/0``, ``c/1``, ...
The meaning of both kinds of masks is certain, so they are the loss mask. Other fields (``attention_mask``,
``loss_weights``) are named as left out.

Rejected: caches that are not finished, rows and ledgers that disagree, lost files, and arrays as
`feedmill.formats.tokens.zarr.meta` describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.content import content_of_files
from feedmill.formats.extents import Extents
from feedmill.formats.format import Wanted
from feedmill.formats.sample import Source
from feedmill.formats.tokens.base import Int64s, TokenDataset, TokenShard
from feedmill.formats.tokens.levanter_ledger import LEDGER, Ledger, read_ledger
from feedmill.formats.tokens.levanter_loss import FieldMasks, LengthMasks
from feedmill.formats.tokens.levanter_rows import AGAIN, JaggedField
from feedmill.formats.tokens.zarr.array import ZarrArray
from feedmill.formats.tokens.zarr.meta import NAME
from feedmill.storage import Store

FORMAT = "levanter"
TOKENS, MASK, LENGTHS = "input_ids", "assistant_masks", "sources_len"
_TEMPORARY = ("___temp", "__shards__")
"""Folders in which Levanter builds parts of a cache; they remain if it is killed after the last step."""
_STEP = 1 << 24


class LevanterCache(TokenDataset):
    """The rows of a cache as documents.

    Args:
        store: the folder of the cache.
        name: path or URL as the user gave it.

    Attributes:
        beside: fields of the rows that are neither tokens nor a loss mask.

    Raises:
        ConfigError: the cache is not finished, or has no tokens.
        DataError: the ledger, an array or its files are corrupt or missing.
    """

    def __init__(self, store: Store, name: str) -> None:
        ledger = read_ledger(store)
        sizes = {entry.path: entry.size for entry in store.files()}
        end = f"/data/{NAME}"
        fields = {path.removesuffix(end) for path in sizes if path.endswith(end)}
        fields = {field for field in fields if field.partition("/")[0] not in _TEMPORARY}
        key = str(ledger.metadata.get("input_ids_key") or TOKENS)
        if key not in fields:
            raise ConfigError(
                f"the cache has no field {key!r} of tokens (it has {', '.join(sorted(fields)) or 'none'})",
                file=store.locate(LEDGER),
                kind="no-tokens",
                fix="Only caches of text, chats and prompts are token data.",
            )
        self._field = _field(store, key, sizes, ledger)
        self._mask = next((name for name in (MASK, LENGTHS) if name in fields and name != key), None)
        self._loss_field = None if self._mask is None else _field(store, self._mask, sizes, ledger)
        self.beside = fields - {key, self._mask}
        self._sizes = sizes
        paths = [path for field in self._fields for path in field.paths()]
        shard = TokenShard(
            LEDGER,
            self._field.data.meta.dtype,
            0,
            self._field.tokens,
            ledger.rows,
            self._field.load_bounds,
            None if self._mask is None else self._load_loss,
            facts=(key, self._mask or "", partial(content_of_files, store, paths)),
            remarks=_remarks(self.beside, sizes),
        )
        super().__init__(store, [shard], name=name, format=FORMAT, about=ledger.about)

    @property
    def _fields(self) -> list[JaggedField]:
        return [self._field] if self._loss_field is None else [self._field, self._loss_field]

    def own_gather(self) -> ChunkGather:
        return ChunkGather(self._field.data)

    @cached_property
    def masks(self) -> FieldMasks | LengthMasks | None:
        if self._loss_field is None:
            return None
        kind = FieldMasks if self._mask == MASK else LengthMasks
        return kind(self.store, self.shards, self._loss_field)

    def _load_loss(self) -> npt.NDArray[np.bool_]:
        """Return the loss mask of all tokens, bool[tokens]."""
        assert self.masks is not None
        bounds = np.zeros(1, np.int64), np.array([self.tokens], np.int64)
        return self.masks.spans(0, *bounds)[0]

    def loss_mask(self) -> dict[str, int] | None:
        if self.masks is None:
            return None
        learned = 0
        for first in range(0, self.tokens, _STEP):
            (part,) = self.masks.spans(0, np.array([first]), np.array([min(first + _STEP, self.tokens)]))
            learned += int(np.count_nonzero(part))
        return {"files": 1, "tokens_in_loss": learned}

    def _blocks(self, number: int, first: Int64s, stop: Int64s) -> list[bytes]:
        lengths = stop - first
        to = np.cumsum(lengths) - lengths
        out = np.empty(int(lengths.sum()), self.shards[number].dtype)
        self._field.data.copy(first, stop, to, out)
        return [out[low:high].tobytes() for low, high in zip(to.tolist(), (to + lengths).tolist(), strict=True)]

    def _extents(self, indices: Sequence[int] | Int64s, starts: Any, lengths: Any) -> Sequence[Extents]:
        if self.store.is_local:
            return ()
        shard, local = self.places(indices)
        first, stop = self._tokens_of(0, local)
        if starts is not None and lengths is not None:
            first, stop = first + starts, np.minimum(stop, first + starts + lengths)
        data = self._field.data
        found = [Extents(self.store, self._field.files, *data.extents(first, stop))]
        if self.masks is not None:
            found += self.masks.extents(np.arange(len(shard)), shard, first, stop)
        return found

    def _find_costs(self, by: str) -> Int64s | None:  # noqa: ARG002 - chunks are compressed, so documents have no bytes
        return None

    def locate(self, index: int) -> Source:
        """Return the file that has the document's first token; its chunks are compressed, so the whole file."""
        number = self._checked(index)
        bounds = self.shards[0].bounds
        first = min(int(bounds[number]), max(int(bounds[-1]) - 1, 0))
        file = first // self._field.data.meta.stored
        path = self._field.data.path(file) if self.tokens else LEDGER
        return Source(self.url, path, 0, self._sizes[path], number, str(number), (TOKENS,))

    def verify(self) -> Sequence[FeedmillError]:
        """Read the bounds, and decode all chunks; return the problems."""
        found = list(super().verify())
        for field in self._fields:
            for number, error in field.data.verify(field.tokens):
                if error is not None:
                    found.append(error)
                elif field is self._field:
                    found.append(_never_written(field, number))
        if self.masks is not None and not found:
            try:
                self.loss_mask()
            except FeedmillError as error:
                found.append(error)
        return found

    def describe(self) -> dict[str, Any]:
        paths = [path for field in self._fields for path in field.paths()]
        return {**super().describe(), "bytes": sum(self._sizes[path] for path in paths)}


class ChunkGather:
    """Reader of ranges of tokens, with the interface of `feedmill.formats.tokens.gather.Gather`."""

    def __init__(self, data: ZarrArray) -> None:
        self._data = data

    def rows(self, shard: int, starts: Int64s, out: npt.NDArray[Any], rows: Int64s | None = None) -> None:  # noqa: ARG002
        """See `Gather.rows`."""
        width = out.shape[1]
        places = np.arange(len(starts)) if rows is None else rows
        if out.flags.c_contiguous:
            self._data.copy(starts, starts + width, places * width, out.reshape(-1))
            return
        whole = np.empty((len(starts), width), self._data.meta.dtype)
        self._data.copy(starts, starts + width, np.arange(len(starts)) * width, whole.reshape(-1))
        out[places] = whole

    def spans(self, shard: int, first: Int64s, stop: Int64s, to: Int64s, out: npt.NDArray[Any]) -> None:  # noqa: ARG002
        """See `Gather.spans`."""
        self._data.copy(first, stop, to, out)


def open_found(wanted: Wanted) -> LevanterCache:
    """Open the folder of a cache. Raises as `LevanterCache`."""
    return LevanterCache(wanted.store, wanted.url)


def _field(store: Store, name: str, sizes: dict[str, int], ledger: Ledger) -> JaggedField:
    """Return a field of the rows. Raises `DataError` if it has another number of rows than the ledger."""
    found = JaggedField(store, name, sizes)
    if found.rows != ledger.rows:
        raise DataError(
            f"the field has {found.rows:,} rows, the ledger {ledger.rows:,}",
            file=store.locate(f"{name}/offsets"),
            kind="bad-index",
            fix=AGAIN,
        )
    return found


def _remarks(beside: set[str], sizes: dict[str, int]) -> list[str]:
    found = [f"the field {field!r} is left out" for field in sorted(beside)]
    left = sorted({path.partition("/")[0] for path in sizes} & set(_TEMPORARY))
    return found + [f"the folder {folder!r} of the build is left out" for folder in left]


def _never_written(field: JaggedField, number: int) -> DataError:
    data = field.data
    file, local = divmod(number, data.meta.per_file)
    count = min(data.meta.chunk, field.tokens - number * data.meta.chunk)
    return DataError(
        f"its chunk {local} was never written: {count:,} tokens read as {data.meta.fill}",
        file=data.store.locate(data.path(file)),
        record=f"chunk {local}",
        kind="empty-chunk",
        fix=f"If these tokens are not all {data.meta.fill}, build the cache again.",
    )
