"""The base of all token formats: documents are ranges of flat files of token ids.

A format provides the offset of the tokens of each file, their type and the bounds of its documents (`TokenShard`).
`TokenDataset` implements the rest: documents by number, spans of documents in bulk, lengths without reading tokens.
A format's writer is a `TokenWriter`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError, FeedmillError, NotFound
from feedmill.formats.base import Dataset, Indices, Opened, Sample, Source, no_such_key, number_of
from feedmill.formats.extents import Extents
from feedmill.formats.offsets import hash_words, read_records
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store

Int64s = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.integer[Any]]


COUNTED = -1
"""Number of documents of a shard that is unknown until its bounds are loaded."""


class TokenShard:
    """One file of tokens, and the documents in it.

    Args:
        path: the file in its store.
        dtype: stored type of a token, including byte order.
        offset: bytes before the first token.
        tokens: number of tokens.
        documents: number of documents; `COUNTED` if the bounds must be loaded first, None if the format's index of
            documents is missing.
        load_bounds: returns int64[documents + 1], ascending: the first token of each document, then the end of the
            last one. Called once, when first needed; a memory map if the format allows it.
        load_loss: returns bool or uint8[tokens]: 1 for tokens that contribute to the loss. None if there is no mask.
        facts: strings for the fingerprint, in addition to path, counts and size, that distinguish this file from others
            of the same size; or functions that return them, called when the fingerprint is first needed. They must
            not change when the file is copied.
        verify: raises `DataError` if the bounds are corrupt; for checks that are too slow for each opening.
        remarks: problems found and fixed by `load_bounds`, for `TokenDataset.describe`.
    """

    __slots__ = (
        "_bounds",
        "_documents",
        "_words",
        "dtype",
        "facts",
        "load_bounds",
        "load_loss",
        "offset",
        "path",
        "remarks",
        "tokens",
        "verify",
    )

    def __init__(
        self,
        path: str,
        dtype: np.dtype[Any],
        offset: int,
        tokens: int,
        documents: int | None,
        load_bounds: Callable[[], Int64s],
        load_loss: Callable[[], npt.NDArray[Any]] | None = None,
        facts: tuple[str | Callable[[], str], ...] = (),
        remarks: list[str] | None = None,
        verify: Callable[[], None] | None = None,
    ) -> None:
        self.path, self.dtype, self.offset, self.tokens = path, dtype, offset, tokens
        self.load_bounds, self.load_loss, self.facts = load_bounds, load_loss, facts
        self.verify = verify
        self.remarks = [] if remarks is None else remarks
        self._documents = documents
        self._bounds: Int64s | None = None
        self._words: str | None = None

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        # Another process loads or maps the bounds itself.
        return None, {name: None if name == "_bounds" else getattr(self, name) for name in self.__slots__}

    @property
    def indexed(self) -> bool:
        """Return whether there is an index of documents, without loading it."""
        return self._documents is not None

    @property
    def counted(self) -> bool:
        """Return whether the bounds must be loaded to know the number of documents."""
        return self._documents == COUNTED

    @property
    def documents(self) -> int | None:
        """Return the number of documents; None if the index of documents is missing."""
        return len(self.bounds) - 1 if self.counted else self._documents

    @property
    def bounds(self) -> Int64s:
        """Return the bounds of documents, int64[documents + 1], see `load_bounds`."""
        if self._bounds is None:
            self._bounds = self.load_bounds()
        return self._bounds

    @property
    def loaded(self) -> bool:
        """Return whether the bounds are loaded."""
        return self._bounds is not None

    @property
    def words(self) -> str:
        """Return the string for the fingerprint, which does not require the bounds."""
        if self._words is None:
            facts = " ".join(fact if isinstance(fact, str) else fact() for fact in self.facts)
            self._words = f"{self.path} {self.dtype.str} {self.tokens} {self._documents} {facts}"
        return self._words


@dataclass(frozen=True, slots=True)
class Form:
    """How documents are stored.

    Attributes:
        format: name of the format.
        token_size: bytes per token.
        tokenizer: a tokenizer's name, for formats that keep one.
        loss: whether there is a loss mask.
    """

    format: str
    token_size: int
    tokenizer: str | None = None
    loss: bool = False


class VocabularySizes(NamedTuple):
    """Sizes of a vocabulary, which determine the size of a token.

    Attributes:
        size, base: entries of the vocabulary, with and without added tokens.
        largest: an id that must fit.
    """

    size: int
    base: int
    largest: int


class TokenFormat(ABC):
    """A token format as a target of writing, named by its `feedmill.formats.format.TargetFormat`."""

    @abstractmethod
    def dtype(self, sizes: VocabularySizes) -> np.dtype[Any]:
        """Return the type of a token by the format's own rule."""

    def sized(self, token_size: int) -> np.dtype[Any]:
        """Return the type of a token of this many bytes."""
        return np.dtype(f"<u{token_size}")

    def largest(self, form: Form, tokens: int | Int64s, documents: int | Int64s) -> Any:  # noqa: ARG002
        """Return the bytes of the largest file with these numbers of tokens and documents, or a little more.

        It does not decrease with either number. Both are numbers, or int64[n] for an array of results.
        """
        return tokens * form.token_size

    @abstractmethod
    def open(self, store: Store, path: str, form: Form) -> AbstractContextManager[TokenWriter]:
        """Open the writer of one file, which is published if the block ends without an error."""


class TokenWriter(Protocol):
    """Writer of one dataset of tokens, created by each format's ``write_...`` context manager.

    Documents are added in order and in batches of any size. The files are published if the block ends without an error,
    the file that identifies the format last.
    """

    def add(self, tokens: Tokens, lengths: Int64s, loss: npt.NDArray[np.bool_] | None = None) -> None:
        """Append documents.

        Args:
            tokens: concatenated ids of all documents, of any integer type.
            lengths: int64[n], tokens per document; they add up to ``len(tokens)``.
            loss: bool[len(tokens)], False for tokens that do not contribute to the loss; only for formats with a mask.

        Raises:
            DataError: an id does not fit the file's token size.
        """


class TokenDataset(Dataset):
    """The documents of token files, by number, with bulk access to spans of tokens.

    A sample is one document: ``sample["input_ids"]`` is int64[n]; ``sample.raw("input_ids")`` the bytes as stored.
    Keys are the document's number in the dataset, written as a decimal.

    Args:
        store: the store of the files.
        shards: the files, in the order of the dataset.
        name: path or URL as the user gave it.
        format: the format's short name.
        about: facts for `describe` in addition to the counts (tokenizer, version, ...).
    """

    format = "tokens"

    def __init__(
        self,
        store: Store,
        shards: Sequence[TokenShard],
        *,
        name: str,
        format: str,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.store, self.shards, self.url = store, list(shards), name
        self.format = format  # type: ignore[misc]
        self._opened = Opened(about=dict(about or {}))
        missing = next((shard for shard in self.shards if not shard.indexed), None)
        self._no_index = None if missing is None else missing.path
        self.tokens = sum(shard.tokens for shard in self.shards)
        self._lengths: Int64s | None = None

    @cached_property
    def _ends(self) -> Int64s:
        """Return the number of documents up to the end of each shard, int64[shards]."""
        self.load_bounds(number for number, shard in enumerate(self.shards) if shard.counted)
        return np.cumsum([shard.documents or 0 for shard in self.shards], dtype=np.int64)

    @cached_property
    def _starts(self) -> Int64s:
        return np.concatenate((np.zeros(1, np.int64), self._ends))[:-1]

    def __len__(self) -> int:
        self.need_index()
        return int(self._ends[-1]) if len(self._ends) else 0

    def files(self) -> list[tuple[str, int, int]]:
        """Return path or URL of each file, the number of its first document in the dataset, and of its documents."""
        ends = np.append(self._starts, len(self)).tolist()
        paths = [self.store.locate(shard.path) for shard in self.shards]
        return [(path, first, last - first) for path, (first, last) in zip(paths, pairwise(ends), strict=True)]

    def need_index(self) -> None:
        """Raise `NotFound` if a file's index of documents is missing."""
        if self._no_index is not None:
            raise NotFound(
                "the index of documents is missing, so only windows can be read",
                file=self.store.locate(self._no_index),
                kind="no-index",
                fix="Open it with seq_len=..., or restore its index.",
            )

    @property
    def lengths(self) -> Int64s:
        if self._lengths is None:
            self.need_index()
            self.load_bounds(range(len(self.shards)))
            pieces = [np.diff(shard.bounds) for shard in self.shards]
            self._lengths = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
        return self._lengths

    def _find_costs(self, by: str) -> Int64s | None:
        if by != "bytes":
            return None
        self.need_index()
        pieces = [np.diff(shard.bounds) * shard.dtype.itemsize for shard in self.shards]
        return np.concatenate([np.zeros(0, np.int64), *pieces])

    def own_gather(self) -> Any:
        """Return a reader with the interface of `feedmill.formats.tokens.gather.Gather`; None if the files are flat."""
        return None

    def places(self, indices: Indices) -> tuple[Int64s, Int64s]:
        """Return shard number and document number in it, int64[n] both. Raises IndexError."""
        wanted = np.asarray(indices, np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            bad = int(wanted[(wanted < 0) | (wanted >= len(self))][0])
            raise IndexError(f"{self.url}: document {bad} of {len(self)}")
        shard = np.searchsorted(self._ends, wanted, side="right").astype(np.int64)
        return shard, wanted - (self._starts[shard] if len(wanted) else 0)

    def load_bounds(self, shards: Iterable[int]) -> None:
        """Load the bounds of several files at once, because each is a request to a remote store."""
        if not self.store.is_local:
            missing = [self.shards[number] for number in shards if not self.shards[number].loaded]
            workers = min(64, len(missing)) if len(missing) > 1 else 0
            for _ in ordered_map(lambda shard: shard.bounds, missing, workers=workers, in_flight=128):
                pass

    def extents(self, indices: Indices) -> Sequence[Extents]:
        return self._extents(indices, None, None)

    def extents_of_tokens(self, indices: Int64s, starts: Int64s, lengths: Int64s) -> Sequence[Extents]:
        """Return the byte ranges that `read_tokens` will ask remote stores for; see `Dataset.extents`."""
        return self._extents(indices, starts, lengths)

    def _extents(self, indices: Indices, starts: Int64s | None, lengths: Int64s | None) -> Sequence[Extents]:
        if self.store.is_local:
            return ()
        shard, local = self.places(indices)
        numbers = np.unique(shard).tolist()
        self.load_bounds(numbers)
        begins, ends = np.empty_like(shard), np.empty_like(shard)
        for number in numbers:
            rows = np.flatnonzero(shard == number)
            first, stop = self._tokens_of(number, local[rows])
            if starts is not None and lengths is not None:
                first, stop = first + starts[rows], np.minimum(stop, first + starts[rows] + lengths[rows])
            begins[rows], ends[rows] = self._offsets(number, first, stop)
        paths = [table.path for table in self.shards]
        return [Extents(self.store, paths, np.arange(len(shard)), shard, begins, ends)]

    def _tokens_of(self, number: int, local: Int64s) -> tuple[Int64s, Int64s]:
        """Return the first token of documents of a file, and the end of the last one, int64[n] both."""
        table = self.shards[number]
        first, stop = table.bounds[local], table.bounds[local + 1]
        if (first < 0).any() or (stop < first).any() or (stop > table.tokens).any():
            raise DataError(  # mapped bounds are not validated at opening
                "documents end before they begin, or after the last token",
                file=self.store.locate(table.path),
                kind="bad-index",
                fix="Write its index, or its '.feedmill.bounds' file, again.",
            )
        return first, stop

    def _offsets(self, number: int, first: Int64s, stop: Int64s) -> tuple[Int64s, Int64s]:
        """Return the offsets of tokens of a file, int64[n] both."""
        table = self.shards[number]
        size = table.dtype.itemsize
        return np.asarray(table.offset + first * size, np.int64), np.asarray(table.offset + stop * size, np.int64)

    def _bytes(self, indices: Indices, starts: Int64s | None, lengths: Int64s | None) -> tuple[list[bytes], Int64s]:
        """Return the stored bytes of spans of documents (whole ones without `starts`), and each one's shard."""
        shard, local = self.places(indices)
        out: list[bytes] = [b""] * len(shard)
        for number in np.unique(shard):
            rows = np.flatnonzero(shard == number)
            first, stop = self._tokens_of(number, local[rows])
            if starts is not None and lengths is not None:
                begin, end = first + starts[rows], first + starts[rows] + lengths[rows]
                wrong = np.flatnonzero((starts[rows] < 0) | (lengths[rows] < 0) | (end > stop))
                if len(wrong):
                    raise self._outside(int(np.asarray(indices)[rows[wrong[0]]]), int(stop[wrong[0]] - first[wrong[0]]))
                first, stop = begin, end
            blocks = read_records(self.store, self.shards[number].path, *self._offsets(number, first, stop))
            for row, block in zip(rows.tolist(), blocks, strict=True):
                out[row] = block
        return out, shard

    def _outside(self, document: int, length: int) -> DataError:
        return DataError(
            f"invalid span: it is outside the document's {length} tokens",
            file=self.url,
            record=str(document),
            kind="bad-span",
        )

    def read_tokens(self, indices: Int64s, starts: Int64s, lengths: Int64s) -> list[Tokens]:
        """Return tokens ``[start, start + length)`` of each document, in their stored dtype."""
        blocks, shard = self._bytes(indices, np.asarray(starts, np.int64), np.asarray(lengths, np.int64))
        return [np.frombuffer(b, self.shards[s].dtype) for b, s in zip(blocks, shard.tolist(), strict=True)]

    def read_raw(self, indices: Indices) -> list[Sample]:
        blocks, shard = self._bytes(indices, None, None)
        numbers = np.asarray(indices, np.int64).tolist()
        out = []
        for number, block, s in zip(numbers, blocks, shard.tolist(), strict=True):
            decode = partial(_decode, self.shards[s].dtype)
            out.append(
                Sample(
                    str(number),
                    block,
                    {"input_ids": (0, len(block))},
                    partial(self.locate, number),
                    decode,
                    self.subflavors,
                )
            )
        return out

    def locate(self, index: int) -> Source:
        number = self._checked(index)
        shard, local = (int(place[0]) for place in self.places([number]))
        table = self.shards[shard]
        size = table.dtype.itemsize
        begin, end = int(table.bounds[local]), int(table.bounds[local + 1])
        return Source(
            self.url, table.path, table.offset + begin * size, (end - begin) * size, number, str(number), ("input_ids",)
        )

    def find(self, key: str) -> int:
        number = number_of(key, len(self))
        if number is None:
            raise no_such_key(self.url, key)
        return number

    def fingerprint(self) -> str:
        return self.fingerprint_of_shards(len(self.shards))

    def fingerprint_of_first(self, count: int) -> str | None:
        shards = int(np.searchsorted(self._ends, count))
        if self._no_index is not None or count < 1 or shards == len(self._ends) or self._ends[shards] != count:
            return None
        return self.fingerprint_of_shards(shards + 1)

    def fingerprint_of_shards(self, shards: int) -> str:
        """Return the fingerprint of a dataset of only the first `shards` files."""
        words = ordered_map(
            lambda shard: shard.words, self.shards[:shards], workers=8 if shards > 1 else 0, in_flight=64
        )
        return hash_words(list(words))

    def verify(self) -> Sequence[FeedmillError]:
        """Read the offsets of all documents, if there is an index, and return the problems."""
        found: list[FeedmillError] = []
        for shard in self.shards if self._no_index is None else ():
            try:
                if shard.verify is not None:
                    shard.verify()
                falls = np.flatnonzero(np.diff(shard.bounds) < 0)
            except FeedmillError as error:
                found.append(error)
                continue
            if len(falls):
                found.append(
                    DataError(
                        f"{len(falls)} documents end before they begin",
                        file=self.store.locate(shard.path),
                        record=f"document {int(falls[0])}",
                        kind="bad-index",
                        fix="Write the file again, or copy it again with its index files.",
                    )
                )
        return found

    def describe(self) -> dict[str, Any]:
        samples = None if self._no_index is not None else len(self)
        remarks = [f"{shard.path}: {remark}" for shard in self.shards for remark in shard.remarks]
        if samples is None:
            remarks.append(f"{self._no_index}: the index of documents is missing, so only windows can be read")
        return {
            "format": self.format,
            "path": self.url,
            "split": self.split,
            "samples": samples,
            "tokens": self.tokens,
            "token_bytes": sorted({shard.dtype.itemsize for shard in self.shards}),
            "shards": len(self.shards),
            "bytes": sum(self.store.stat(shard.path).size for shard in self.shards),
            "indexed": self._no_index is None,
            **({"remarks": remarks} if remarks else {}),
            **self.about,
        }

    def loss_mask(self) -> dict[str, int] | None:
        """Return the number of files with a loss mask and of tokens that contribute to the loss; None without masks.

        Reads the masks. Without one, all tokens of a file contribute.
        """
        masks = [shard.load_loss() if shard.load_loss is not None else None for shard in self.shards]
        files = sum(mask is not None for mask in masks)
        if not files:
            return None
        learned = sum(
            shard.tokens if mask is None else int(np.count_nonzero(mask))
            for shard, mask in zip(self.shards, masks, strict=True)
        )
        return {"files": files, "tokens_in_loss": learned}

    @property
    def splits(self) -> Mapping[str, int]:
        return {}


def _decode(dtype: np.dtype[Any], _name: str, data: bytes) -> Int64s:
    return np.frombuffer(data, dtype).astype(np.int64)


def refuse_missing(store: Store, path: str) -> None:
    """Raise `NotFound` for a file that does not exist, which would otherwise be opened as a folder."""
    if store.exists(path):
        return
    try:
        next(iter(store.files(path)), None)
    except NotFound:  # no folder either
        raise NotFound("there is no such file", file=store.locate(path), fix="Check the path.") from None
