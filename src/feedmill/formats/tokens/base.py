"""The base of all token formats: documents are ranges of flat files of token ids.

A format provides the offset of the tokens of each file, their type and the bounds of its documents (`TokenShard`).
`TokenDataset` implements the rest: documents by number, spans of documents in bulk, lengths without reading tokens.
As a target of writing, a format is a `TokenFormat`, which opens a `TokenWriter`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.base import Dataset, Indices, Opened, numbers_inside
from feedmill.formats.costs import LOSS_TOKENS
from feedmill.formats.format import OpenRequest
from feedmill.formats.kept import digest_of, kept_costs
from feedmill.formats.offsets import Extents, hash_words, read_records
from feedmill.formats.sample import Sample, Source, no_such_key, number_of
from feedmill.formats.tokens.shard import COUNTED as COUNTED
from feedmill.formats.tokens.shard import Int64s as Int64s
from feedmill.formats.tokens.shard import Tokens as Tokens
from feedmill.formats.tokens.shard import TokenShard as TokenShard
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Store

if TYPE_CHECKING:
    from feedmill.formats.tokens.gather import Gather
    from feedmill.formats.tokens.masks import Masks
    from feedmill.formats.tokens.shifted import FlatSpans


@dataclass(frozen=True, slots=True)
class Form:
    """Storage form of documents.

    Attributes:
        format: name of the format.
        token_size: bytes per token.
        tokenizer: a tokenizer's name, for formats that keep one.
        loss: whether there is a loss mask.
        sentences: whether a document has a sequence for each sentence: `TokenWriter.add` gets marks of their first
            tokens instead of a loss mask. Only Megatron-LM's format can store them.
        sequence, shard: for ``vla-text``: tokens per sequence, and sequences per shard.
    """

    format: str
    token_size: int
    tokenizer: str | None = None
    loss: bool = False
    sentences: bool = False
    sequence: int = 0
    shard: int = 0


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
            loss: bool[len(tokens)], False for tokens that do not contribute to the loss; only if the writer was opened
                for a mask. None: all tokens contribute.

        Raises:
            DataError: an id does not fit the file's token size.
        """


_BLOCK_TOKENS, _LEAST_BLOCK, _LARGEST_BLOCK = 1 << 21, 1 << 8, 1 << 12
"""Tokens of a block of the block shuffle, 4 MiB of the smallest type, and the bounds of its samples."""
COUNTS = ("sequences",)
"""Facts of a dataset that are numbers of something in its files, and add up."""


def samples_per_block(tokens: int) -> int:
    """Return the number of samples of a mean length that stay together in the block shuffle: a power of two.

    One that depends on tokens, not on bytes, gives the same order in every format.

    >>> [samples_per_block(tokens) for tokens in (0, 500, 2048, 2049, 4096, 100_000)]
    [4096, 4096, 1024, 1024, 512, 256]
    """
    fitting = max(1, _BLOCK_TOKENS // max(1, tokens - 1))
    return int(min(_LARGEST_BLOCK, max(_LEAST_BLOCK, 1 << fitting.bit_length() - 1)))


class TokenDataset(Dataset):
    """The documents of token files, by number, with bulk access to spans of tokens.

    A sample is one document: ``sample["input_ids"]`` is int64[n]; ``sample.raw("input_ids")`` the bytes as stored. If a
    file has a loss mask, samples also have ``loss_mask``, bool[n]: which tokens contribute to the loss. Keys are the
    document's number in the dataset, written as a decimal.

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

    @property
    def shuffle_block(self) -> int | None:
        return samples_per_block(self.tokens // max(1, len(self)))

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
                kind="not-prepared",
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
        if by == LOSS_TOKENS:
            return self._loss_lengths()
        if by != "bytes":
            return None
        self.need_index()
        pieces = [np.diff(shard.bounds) * shard.dtype.itemsize for shard in self.shards]
        return np.concatenate([np.zeros(0, np.int64), *pieces])

    def _loss_lengths(self) -> Int64s:
        """Return the tokens of each document that contribute to the loss, int64[len]. Reads the masks, once."""
        if self.masks is None:
            return self.lengths
        self.need_index()
        self.load_bounds(range(len(self.shards)))
        found = [np.zeros(0, np.int64)]
        for number, shard in enumerate(self.shards):
            first, stop = self._tokens_of(number, np.arange(len(shard.bounds) - 1))
            count = partial(self.masks.counts, number, first, stop)
            if shard.loss is None:
                found.append(count())
                continue
            what = f"{LOSS_TOKENS} {digest_of(shard.bounds)}"
            counted = kept_costs(self.store, shard.loss, what, len(first), count)
            found.append(count() if counted is None else counted)
        return np.concatenate(found)

    def own_gather(self) -> Any:
        """Return a reader with the interface of `feedmill.formats.tokens.gather.Gather`; None if the files are flat."""
        return None

    def places(self, indices: Indices) -> tuple[Int64s, Int64s]:
        """Return shard number and document number in it, int64[n] both. Raises IndexError."""
        wanted = numbers_inside(indices, len(self), self.url, "document")
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
        extents = [Extents(self.store, paths, np.arange(len(shard)), shard, begins, ends)]
        if self.masks is not None:
            sizes = np.array([table.dtype.itemsize for table in self.shards], np.int64)[shard]
            before = np.array([table.offset for table in self.shards], np.int64)[shard]
            extents += self.masks.extents(
                np.arange(len(shard)), shard, (begins - before) // sizes, (ends - before) // sizes
            )
        return extents

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

    @cached_property
    def masks(self) -> Masks | None:
        """The loss masks of the files; None if no file has one."""
        if not any(shard.load_loss is not None for shard in self.shards):
            return None
        from feedmill.formats.tokens.masks import Masks

        return Masks(self.store, self.shards)

    def _bytes(self, indices: Indices, starts: Int64s | None, lengths: Int64s | None) -> tuple[list[bytes], Int64s]:
        """Return the stored bytes of spans of documents (whole ones without `starts`), and each one's shard."""
        shard, local = self.places(indices)
        out: list[bytes] = [b""] * len(shard)
        for number, rows, first, stop in self._ranges(indices, shard, local, starts, lengths):
            for row, block in zip(rows.tolist(), self._blocks(number, first, stop), strict=True):
                out[row] = block
        return out, shard

    def _blocks(self, number: int, first: Int64s, stop: Int64s) -> list[bytes]:
        """Return the bytes of the tokens ``[first, stop)`` of a file, for each of many ranges."""
        return read_records(self.store, self.shards[number].path, *self._offsets(number, first, stop))

    def _ranges(
        self, indices: Indices, shard: Int64s, local: Int64s, starts: Int64s | None, lengths: Int64s | None
    ) -> Iterator[tuple[int, Int64s, Int64s, Int64s]]:
        """Yield each file of spans of documents: its number, the rows of its spans, their first token and their end."""
        for number in np.unique(shard).tolist():
            rows = np.flatnonzero(shard == number)
            first, stop = self._tokens_of(number, local[rows])
            if starts is not None and lengths is not None:
                begin, end = first + starts[rows], first + starts[rows] + lengths[rows]
                wrong = np.flatnonzero((starts[rows] < 0) | (lengths[rows] < 0) | (end > stop))
                if len(wrong):
                    raise self._outside(int(np.asarray(indices)[rows[wrong[0]]]), int(stop[wrong[0]] - first[wrong[0]]))
                first, stop = begin, end
            yield number, rows, first, stop

    def _outside(self, document: int, length: int) -> DataError:
        return DataError(
            f"invalid span: it is outside the document's {length} tokens",
            file=self.url,
            record=str(document),
            kind="bad-data",
        )

    def read_tokens(self, indices: Int64s, starts: Int64s, lengths: Int64s) -> list[Tokens]:
        """Return tokens ``[start, start + length)`` of each document, in their stored dtype."""
        blocks, shard = self._bytes(indices, np.asarray(starts, np.int64), np.asarray(lengths, np.int64))
        return [np.frombuffer(b, self.shards[s].dtype) for b, s in zip(blocks, shard.tolist(), strict=True)]

    def read_loss(self, indices: Int64s, starts: Int64s, lengths: Int64s) -> list[npt.NDArray[np.bool_]]:
        """Return the loss mask of the tokens that `read_tokens` returns, bool[length] each.

        Documents of files without a mask contribute to the loss in full.
        """
        return self._loss(indices, np.asarray(starts, np.int64), np.asarray(lengths, np.int64))

    def fill(
        self,
        indices: Int64s,
        starts: Int64s,
        lengths: Int64s,
        to: Int64s,
        tokens: npt.NDArray[Any],
        loss: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Copy spans of documents to flat arrays, as `read_tokens` and `read_loss` return them.

        Args:
            indices, starts, lengths: int64[n], the spans.
            to: int64[n], where each span begins in the arrays.
            tokens: integers[m] that any token fits.
            loss: bool[m]; None if the mask is not wanted.
        """
        shard, local = self.places(indices)
        for number, rows, first, stop in self._ranges(indices, shard, local, starts, lengths):
            self._gather.spans(number, first, stop, to[rows], tokens)
            if loss is None:
                continue
            if self.masks is not None:
                self.masks.fill(number, first, stop, to[rows], loss)
                continue
            for place, count in zip(to[rows].tolist(), (stop - first).tolist(), strict=True):
                loss[place : place + count] = True

    def flat_spans(self, indices: Int64s) -> list[FlatSpans] | None:
        """Return the files of documents, which are not checked to exist if there is one file.

        Returns:
            None if tokens or masks are remote, or of a kind that compiled code does not read.

        Raises:
            DataError: a file has become shorter since it was opened.
            IndexError: there is no such document.
        """
        from feedmill.formats.tokens.shifted import FlatSpans, sources_of

        single = len(self.shards) == 1
        shard, local = (None, indices) if single else self.places(indices)
        files = [0] if shard is None else np.flatnonzero(np.bincount(shard)).tolist()
        sources = sources_of(self._gather, self.masks, files)
        if sources is None:
            return None
        flat_spans = []
        for number, tokens, loss in sources:
            bounds = self.shards[number].bounds
            if bounds.dtype != np.int64 or not bounds.dtype.isnative:
                return None
            rows = None if shard is None or len(sources) == 1 else np.flatnonzero(shard == number)
            documents = None if shard is None else local if rows is None else local[rows]
            flat_spans.append(FlatSpans(tokens, loss, bounds, rows, documents))
        return flat_spans

    @cached_property
    def _gather(self) -> Gather:
        from feedmill.formats.tokens.gather import Gather

        found: Gather = self.own_gather() or Gather(self.store, self.shards)
        return found

    def _loss(self, indices: Indices, starts: Int64s | None, lengths: Int64s | None) -> list[npt.NDArray[np.bool_]]:
        shard, local = self.places(indices)
        out: list[npt.NDArray[np.bool_]] = [np.zeros(0, np.bool_)] * len(shard)
        for number, rows, first, stop in self._ranges(indices, shard, local, starts, lengths):
            if self.masks is None:
                found = [np.ones(count, np.bool_) for count in (stop - first).tolist()]
            else:
                found = self.masks.spans(number, first, stop)
            for row, mask in zip(rows.tolist(), found, strict=True):
                out[row] = mask
        return out

    def read_raw(self, indices: Indices) -> list[Sample]:
        blocks, shard = self._bytes(indices, None, None)
        masks = None if self.masks is None else self._loss(indices, None, None)
        numbers = np.asarray(indices, np.int64).tolist()
        out = []
        for row, (number, block, s) in enumerate(zip(numbers, blocks, shard.tolist(), strict=True)):
            parts = {"input_ids": (0, len(block))}
            if masks is not None:
                parts["loss_mask"] = (len(block), len(block) + len(masks[row]))
                block += masks[row].tobytes()
            out.append(
                Sample(
                    str(number),
                    block,
                    parts,
                    partial(self.locate, number),
                    partial(_decode, self.shards[s].dtype),
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
            lambda shard: shard.identity, self.shards[:shards], workers=8 if shards > 1 else 0, in_flight=64
        )
        return hash_words(list(words))

    def verify(self) -> Sequence[FeedmillError]:
        """Read the offsets of all documents, if there is an index, and return the problems."""
        found = (shard.problem(self.store) for shard in (self.shards if self._no_index is None else ()))
        return [problem for problem in found if problem is not None]

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
        files = sum(shard.load_loss is not None for shard in self.shards)
        return {"files": files, "tokens_in_loss": sum(shard.tokens_in_loss for shard in self.shards)} if files else None


def _decode(dtype: np.dtype[Any], name: str, data: bytes) -> npt.NDArray[Any]:
    return np.frombuffer(data, np.bool_) if name == "loss_mask" else np.frombuffer(data, dtype).astype(np.int64)


def refuse_missing(store: Store, path: str) -> None:
    """Raise `NotFound` for a file that does not exist, which would otherwise be opened as a folder."""
    if store.exists(path):
        return
    try:
        next(iter(store.files(path)), None)
    except NotFound:  # no folder either
        from feedmill.storage.codec import missing_file

        raise missing_file(store, path) from None


def open_files(wanted: OpenRequest, format: str, open_one: Callable[[OpenRequest], TokenDataset]) -> TokenDataset:
    """Return the dataset of a file or folder, or of a list of files in the given order."""
    if not wanted.names:
        if wanted.name:
            refuse_missing(wanted.store, wanted.name)
        return open_one(wanted)
    if wanted.files is not None:
        raise ConfigError("'files' is only for folders, found a list of files", fix="Remove it.")
    opened = []
    for name in wanted.names:
        refuse_missing(wanted.store, name)
        opened.append(open_one(wanted._replace(name=name, names=(), url=wanted.store.locate(name))))
    about: dict[str, Any] = {}
    for name in dict.fromkeys(name for dataset in opened for name in dataset.about):
        values = [dataset.about[name] for dataset in opened if name in dataset.about]
        if name in COUNTS:
            about[name] = sum(values)
            continue
        alike = all(value == values[0] for value in values)
        about[name] = values[0] if alike else list(dict.fromkeys(map(str, values)))
    shards = [shard for dataset in opened for shard in dataset.shards]
    return TokenDataset(wanted.store, shards, name=wanted.store.url, format=format, about=about)
