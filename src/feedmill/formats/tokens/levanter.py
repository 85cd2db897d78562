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

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.content import content_of_files
from feedmill.formats.format import OpenRequest
from feedmill.formats.offsets import Extents
from feedmill.formats.sample import Source
from feedmill.formats.tokens.base import Int64s, TokenDataset, TokenShard
from feedmill.formats.tokens.gather import pieces_of
from feedmill.formats.tokens.levanter_ledger import LEDGER, Ledger, read_ledger
from feedmill.formats.tokens.masks import Bools, Masks
from feedmill.formats.tokens.zarr.meta import NAME, ZarrArray
from feedmill.storage import Store
from feedmill.storage.reasons import copy_again

FORMAT = "levanter"
TOKENS, MASK, LENGTHS = "input_ids", "assistant_masks", "sources_len"
_TEMPORARY = ("___temp", "__shards__")
"""Folders in which Levanter builds parts of a cache; they remain if it is killed after the last step."""
_STEP = 1 << 24
AGAIN = copy_again("the cache", "build it again with Levanter")


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
        extents = [Extents(self.store, self._field.files, *data.extents(first, stop))]
        if self.masks is not None:
            extents += self.masks.extents(np.arange(len(shard)), shard, first, stop)
        return extents

    def _find_costs(self, by: str) -> Int64s | None:
        return None if by == "bytes" else super()._find_costs(by)  # chunks are compressed, so documents have no bytes

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
        findings = list(super().verify())
        for field in self._fields:
            for number, error in field.data.verify(field.tokens):
                if error is not None:
                    findings.append(error)
                elif field is self._field:
                    findings.append(_never_written(field, number))
        if self.masks is not None and not findings:
            try:
                self.loss_mask()
            except FeedmillError as error:
                findings.append(error)
        return findings

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


def open_found(wanted: OpenRequest) -> LevanterCache:
    """Open the folder of a cache. Raises as `LevanterCache`."""
    return LevanterCache(wanted.store, wanted.url)


def _field(store: Store, name: str, sizes: dict[str, int], ledger: Ledger) -> JaggedField:
    """Return a field of the rows. Raises `DataError` if it has another number of rows than the ledger."""
    field = JaggedField(store, name, sizes)
    if field.rows != ledger.rows:
        raise DataError(
            f"the field has {field.rows:,} rows, the ledger {ledger.rows:,}",
            file=store.locate(f"{name}/offsets"),
            kind="bad-index",
            fix=AGAIN,
        )
    return field


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
        kind="missing-shard",
        fix=f"If these tokens are not all {data.meta.fill}, build the cache again.",
    )


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
