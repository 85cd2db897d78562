"""Megatron-LM's token files (``.bin`` and ``.idx``), also read by NeMo and others.

Layout; all numbers are little-endian::

    x.bin   only concatenated token ids
    x.idx   0   9 bytes  "MMIDIDX" and two zero bytes
            9   u64      1, the version
            17  u8       type of a token: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16 (6 f64 and 7 f32 are not tokens)
            18  u64      S, number of sequences
            26  u64      K, number of document bounds: documents + 1
            34  S * i32  tokens of each sequence
                S * i64  offset of each in x.bin, in bytes
                K * i64  first sequence of each document, then S
                S * i8   mode of each sequence, only in multimodal datasets

A document is one sequence, or several if a tool split it into sentences. Whether the file has modes is only visible by
its size: with modes, it has S more bytes.

Writers choose the type by the vocabulary: Megatron-LM uses 2 bytes (u16) below 65,500 entries, datatrove up to 65,536;
both use 4 bytes (i32) above. Both write a document as one sequence, Megatron-LM a document without tokens as none.

Rejected: sizes that do not match, sequences that are not consecutive, and types that are not integers.

Merge Megatron-LM's files sequence by sequence, byte for byte as its ``tools/merge_datasets.py`` does.

The general `merge` works on documents; this keeps the sequences that documents were split into, and their modes.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError
from feedmill.formats.content import content_hash
from feedmill.formats.format import OpenRequest
from feedmill.formats.tokens.base import (
    Form,
    Int64s,
    TokenDataset,
    TokenFormat,
    Tokens,
    TokenShard,
    TokenWriter,
    VocabularySizes,
    open_files,
)
from feedmill.formats.tokens.manifest import tokenizer_words
from feedmill.formats.tokens.masks import MaskWriter, stored_mask, write_mask
from feedmill.formats.tokens.number_files import FlatFile, FlatWriter, load_numbers
from feedmill.storage import Store
from feedmill.storage.reasons import content_of, copy_again

FORMAT = "megatron"
_PER_WRITE = 1 << 20
MAGIC = b"MMIDIDX\x00\x00"
BIN, IDX = ".bin", ".idx"
HEADER = struct.Struct("<9sQBQQ")
VERSION = 1

_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_INTEGERS = {code: np.dtype(name) for code, name in _CODES.items() if "f" not in name}


def open_megatron(
    store: Store, prefix: str, url: str, *, unit: Literal["documents", "sequences"] = "documents"
) -> TokenDataset:
    """Open the files ``<prefix>.bin`` and ``<prefix>.idx``.

    Args:
        store: where they are.
        prefix: their path in the store, with or without ``.bin`` or ``.idx``.
        url: path or URL as the user gave it.
        unit: what a sample is if documents were split into sequences.

    Raises:
        NotFound: one of them is missing.
        DataError: they are corrupt or do not match.
    """
    prefix = strip(prefix)
    index = read_header(store, prefix + IDX)
    data, idx = store.stat(prefix + BIN), store.stat(prefix + IDX)
    end = 0
    if index.sequences:
        last = index.sequences - 1
        length = int.from_bytes(store.read(prefix + IDX, index.lengths_at + 4 * last, 4), "little", signed=True)
        begin = int.from_bytes(store.read(prefix + IDX, index.offsets_at + 8 * last, 8), "little", signed=True)
        end = begin + length * index.dtype.itemsize
    if end != data.size:
        raise damaged(store, prefix + BIN, f"expected {end} bytes by the index, found {data.size}", kind="truncated")
    bound = int.from_bytes(store.read(prefix + IDX, index.modes_at - 8, 8), "little", signed=True)
    if bound != index.sequences:
        raise damaged(store, prefix + IDX, f"the last document ends at sequence {bound} of {index.sequences}")
    tokens = data.size // index.dtype.itemsize
    mask = stored_mask(store, prefix + BIN, tokens)
    shard = TokenShard(
        path=prefix + BIN,
        dtype=index.dtype,
        offset=0,
        tokens=tokens,
        documents=index.documents if unit == "documents" else index.sequences,
        load_bounds=partial(_load_bounds, store, prefix + IDX, index, unit),
        load_loss=mask.load_loss,
        loss=mask.loss,
        facts=(
            partial(content_hash, store, data.path, data.size),
            partial(content_hash, store, idx.path, idx.size),
            unit,
            *mask.facts,
        ),
    )
    about = {"sequences": index.sequences, "multimodal": index.multimodal, **tokenizer_words(store, [prefix + IDX])}
    return TokenDataset(store, [shard], name=strip(url) + BIN, format=FORMAT, about=about)


def read_modes(store: Store, prefix: str) -> npt.NDArray[np.int8] | None:
    """Return the mode of each sequence, int8[sequences]; None if there are none. Raises as `read_header`."""
    index = read_header(store, strip(prefix) + IDX)
    if not index.multimodal:
        return None
    return load_numbers(store, strip(prefix) + IDX, "i1", index.modes_at, index.sequences)


def megatron_dtype(vocab_size: int, *, datatrove: bool = False) -> np.dtype[Any]:
    """Return the type of a token for a vocabulary: Megatron-LM's own rule, or datatrove's.

    >>> [megatron_dtype(size).name for size in (65_499, 65_500)]
    ['uint16', 'int32']
    >>> [megatron_dtype(size, datatrove=True).name for size in (65_536, 65_537)]
    ['uint16', 'int32']
    """
    small = vocab_size <= 65_536 if datatrove else vocab_size < 65_500
    return np.dtype("<u2" if small else "<i4")


@contextlib.contextmanager
def write_megatron(
    store: Store,
    prefix: str,
    dtype: np.dtype[Any] | str,
    *,
    loss: bool = False,
    empty_sequences: bool = True,
    sentences: bool = False,
) -> Iterator[MegatronWriter]:
    """Write ``<prefix>.bin`` and ``<prefix>.idx``, byte for byte as Megatron-LM does, with one sequence per document.

    Args:
        store: the store of the files.
        prefix: path in the store, with or without ``.bin``.
        dtype: type of a token; see `megatron_dtype`.
        loss: whether to write a loss mask beside ``<prefix>.bin``, see `masks`.
        empty_sequences: whether a document without tokens has a sequence; Megatron-LM's tools write none.
        sentences: write a sequence for each sentence: `MegatronWriter.add` gets marks of their first tokens instead of
            a loss mask.

    Raises:
        ConfigError: the format does not support the type.
    """
    prefix = strip(prefix)
    kind = np.dtype(dtype).newbyteorder("<")
    code = code_of(kind)
    if not code:
        raise ConfigError(
            f"the format does not support tokens of type {np.dtype(dtype)}",
            file=store.locate(prefix + IDX),
            kind="bad-token-size",
            fix="Use uint16 for small vocabularies, and int32 for others.",
        )
    with store.write(prefix + IDX) as index:  # the outermost one is published last
        with store.write(prefix + BIN) as file, write_mask(store, prefix + BIN, loss, prefix + IDX) as mask:
            flat = FlatFile(file, kind, store.locate(prefix + BIN))
            writer = (SentenceWriter if sentences else MegatronWriter)(flat, mask, empty_sequences)
            yield writer
            store.delete(prefix + IDX)  # readers must not see an older index with the new tokens
        writer.write_index(index, code)


class MegatronWriter(FlatWriter):
    """`TokenWriter` of Megatron-LM's files; created by `write_megatron`. Uses 4 bytes of memory per document."""

    def __init__(self, flat: FlatFile, mask: MaskWriter, empty_sequences: bool) -> None:
        super().__init__(flat)
        self._mask = mask
        self._least = 0 if empty_sequences else 1
        self._lengths: list[npt.NDArray[np.int32]] = []

    def add(self, tokens: Tokens, lengths: Int64s, loss: npt.NDArray[np.bool_] | None = None) -> None:
        """Append documents, see `TokenWriter.add`. A document must have fewer than 2^31 tokens."""
        lengths = np.asarray(lengths, np.int64)
        long = np.flatnonzero(lengths >= 2**31)
        if len(long):
            raise DataError(
                f"the document has {int(lengths[long[0]])} tokens, more than the maximum of the format, {2**31 - 1}",
                file=self._flat.where,
                record=str(self._flat.documents + int(long[0])),
                kind="too-large",
                fix="Divide it, or write another format.",
            )
        self._mask.add(len(tokens), loss)
        self._flat.add(tokens, lengths)
        self._lengths.append(lengths.astype(np.int32))

    def _sequences(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        """Return the tokens of each sequence, int32[sequences], and the sequences of each document."""
        documents = np.concatenate([np.zeros(0, np.int32), *self._lengths])
        real = documents >= self._least
        return documents[real], real

    def write_index(self, index: BinaryIO, code: int) -> None:
        """Write the ``.idx`` file."""
        lengths, counts = self._sequences()
        count = len(lengths)
        index.write(HEADER.pack(MAGIC, VERSION, code, count, len(counts) + 1))
        index.write(lengths.astype("<i4").data)
        begin = 0
        for low in range(0, count, _PER_WRITE):
            ends = begin + np.cumsum(lengths[low : low + _PER_WRITE], dtype=np.int64)
            index.write((np.concatenate(([begin], ends[:-1])) * self._flat.dtype.itemsize).astype("<i8").data)
            begin = int(ends[-1])
        index.write(bytes(8))
        before = 0
        for low in range(0, len(counts), _PER_WRITE):
            firsts = before + np.cumsum(counts[low : low + _PER_WRITE], dtype=np.int64)
            index.write(firsts.astype("<i8").data)
            before = int(firsts[-1])


class SentenceWriter(MegatronWriter):
    """`MegatronWriter` with a sequence for each sentence. Uses 4 bytes of memory per sentence and document."""

    def __init__(self, flat: FlatFile, mask: MaskWriter, empty_sequences: bool) -> None:
        super().__init__(flat, mask, empty_sequences)
        self._counts: list[npt.NDArray[np.int32]] = []

    def add(self, tokens: Tokens, lengths: Int64s, loss: npt.NDArray[np.bool_] | None = None) -> None:
        """Append documents; `loss` marks the first token of each sentence. Raises as `MegatronWriter.add`."""
        lengths = np.asarray(lengths, np.int64)
        if loss is None or len(loss) != len(tokens):
            raise ValueError("sentences need a mark for each token")
        begins = np.cumsum(lengths) - lengths
        if not loss[begins[lengths > 0]].all():
            raise ValueError("a document does not begin with a sentence")
        super().add(tokens, lengths)
        places = np.flatnonzero(loss)
        self._lengths[-1] = np.diff(np.append(places, len(tokens))).astype(np.int32)
        ends = np.searchsorted(places, begins + lengths)
        self._counts.append((ends - np.searchsorted(places, begins)).astype(np.int32))

    def _sequences(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
        none = np.zeros(0, np.int32)
        return np.concatenate([none, *self._lengths]), np.concatenate([none, *self._counts])


def _load_bounds(store: Store, path: str, index: MegatronIndex, unit: str) -> Int64s:
    lengths = load_numbers(store, path, "<i4", index.lengths_at, index.sequences)
    offsets = load_numbers(store, path, "<i8", index.offsets_at, index.sequences)
    bounds = np.zeros(index.sequences + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    wrong = np.flatnonzero((offsets != bounds[:-1] * index.dtype.itemsize) | (lengths < 0))
    if len(wrong):
        number = int(wrong[0])
        expected = int(bounds[number]) * index.dtype.itemsize
        raise damaged(
            store,
            path,
            f"the sequence of {int(lengths[number])} tokens begins at byte {int(offsets[number])}, expected"
            f" byte {expected}",
            record=str(number),
        )
    if unit == "sequences":
        return bounds
    firsts = load_numbers(store, path, "<i8", index.documents_at, index.documents + 1)
    if firsts[0] != 0 or (firsts[1:] < firsts[:-1]).any():
        raise damaged(store, path, "its documents do not begin at sequence 0 or are not consecutive")
    return np.asarray(bounds[firsts])


def open_found(wanted: OpenRequest) -> TokenDataset:
    """See `open_megatron`; files of a list, or of a folder in the order of their paths, are opened together."""
    if not wanted.name and not wanted.names:
        wanted = wanted._replace(names=tuple(entry.path for entry in wanted.store.files(suffixes=(BIN,))))
    return open_files(wanted, FORMAT, lambda one: open_megatron(one.store, one.name, one.url))


def mark(store: Store) -> str | None:
    """Return "" if a folder has an index of this format, else None: other tools have ``.bin`` files too."""
    paths = (entry.path for entry in store.files(suffixes=(IDX,)))
    return "" if any(is_megatron(store, path) for path in paths) else None


def need_megatron(store: Store, name: str) -> bool:
    """Return whether a file is Megatron-LM's: a flat ``.bin`` without ``.idx`` is not.

    Raises `ConfigError` for other kinds of ``.idx``.
    """
    if name.endswith(IDX) and store.exists(name) and not is_megatron(store, name):
        raise ConfigError(
            "this is not an index of Megatron-LM's tokens, but of lines or shards",
            file=store.locate(name),
            kind="unknown-format",
            fix="Open the file of lines or shards that it belongs to.",
        )
    return True


class Megatron(TokenFormat):
    """See `TokenFormat`."""

    def dtype(self, sizes: VocabularySizes) -> np.dtype[Any]:
        """See `TokenFormat`."""
        return megatron_dtype(sizes.size)

    def sized(self, token_size: int) -> np.dtype[Any]:
        """See `TokenFormat`."""
        return np.dtype("<i4" if token_size == 4 else f"<u{token_size}")

    def largest(self, form: Form, tokens: int | Int64s, documents: int | Int64s) -> Any:
        """See `TokenFormat`; the index has 20 bytes per document."""
        return np.maximum(tokens * form.token_size, HEADER.size + 8 + 20 * documents)

    def open(self, store: Store, path: str, form: Form) -> AbstractContextManager[TokenWriter]:
        """See `TokenFormat`."""
        kind = "<u2" if form.token_size == 2 else "<i4"
        return write_megatron(store, path[:-4], kind, loss=form.loss, empty_sequences=False, sentences=form.sentences)


WRITER = Megatron()


class MegatronIndex(NamedTuple):
    """Header of an ``.idx`` file, and the offsets of its arrays.

    Attributes:
        dtype: type of a stored token.
        sequences, documents: numbers of sequences and documents.
        multimodal: whether each sequence has a mode.
        lengths_at, offsets_at, documents_at, modes_at: offsets of the arrays: int32[sequences] tokens,
            int64[sequences] bytes into the ``.bin``, int64[documents + 1] sequences, int8[sequences].
    """

    dtype: np.dtype[Any]
    sequences: int
    documents: int
    multimodal: bool

    @property
    def lengths_at(self) -> int:
        """Offset in bytes of the lengths, int32[sequences]."""
        return HEADER.size

    @property
    def offsets_at(self) -> int:
        """Offset in bytes of where sequences begin in the ``.bin``, int64[sequences]."""
        return HEADER.size + 4 * self.sequences

    @property
    def documents_at(self) -> int:
        """Offset in bytes of the sequences at which documents begin, int64[documents + 1]."""
        return HEADER.size + 12 * self.sequences

    @property
    def modes_at(self) -> int:
        """Offset in bytes of the modes, int8[sequences]; they exist only if it is `multimodal`."""
        return self.documents_at + 8 * (self.documents + 1)


def strip(path: str) -> str:
    """Return the prefix of a path that may end in ``.bin`` or ``.idx``."""
    return path[:-4] if path.endswith((BIN, IDX)) else path


def is_megatron(store: Store, path: str) -> bool:
    """Return whether a file that ends in ``.idx`` is of this format; other tools have index files of that name."""
    return store.exists(path) and store.stat(path).size >= HEADER.size and store.read(path, 0, len(MAGIC)) == MAGIC


def read_header(store: Store, path: str) -> MegatronIndex:
    """Return the header of an ``.idx`` file, checked against its size.

    Raises:
        NotFound: there is no such file.
        DataError: the file has another format, is truncated, or its token type is not an integer.
    """
    size = store.stat(path).size
    head = store.read(path, 0, min(size, HEADER.size))
    if not head.startswith(MAGIC):
        what = f"it begins with {head[:9]!r}, not with {MAGIC!r}: it is another kind of index"
        other = content_of(head)
        if other is not None:
            what += f" ({other.name})"
            raise DataError(what, file=store.locate(path), kind="other-format", fix=other.fix)
        raise damaged(store, path, what)
    if len(head) < HEADER.size:
        raise damaged(store, path, f"it has {size} bytes, fewer than its header ({HEADER.size})", kind="truncated")
    _, version, code, sequences, bounds = HEADER.unpack(head)
    if version != VERSION:
        raise _unsupported(store, path, f"unsupported version {version}: expected {VERSION}")
    if code not in _INTEGERS:
        raise _unsupported(store, path, f"its type of a token is {_CODES.get(code, code)}, which is not an integer")
    if not bounds:
        what = "it has no document bounds: expected one more than the number of documents"
        raise _unsupported(store, path, what)
    plain = HEADER.size + 12 * sequences + 8 * bounds
    if size not in (plain, plain + sequences):
        what = f"expected {plain} bytes for {sequences} sequences and {bounds - 1} documents, found {size}"
        raise damaged(store, path, what, kind="truncated")
    return MegatronIndex(_INTEGERS[code], sequences, bounds - 1, bool(sequences) and size == plain + sequences)


def _unsupported(store: Store, path: str, what: str) -> DataError:
    fix = "Tokenize again, or write it again as Megatron-LM does, with tokens that are integers."
    return DataError(what, file=store.locate(path), kind="unsupported", fix=fix)


def code_of(dtype: np.dtype[Any]) -> int:
    """Return the code of a type of token; 0 if the format does not support it."""
    return next((code for code, known in _INTEGERS.items() if known == dtype.newbyteorder("<")), 0)


def damaged(store: Store, path: str, what: str, *, kind: str = "bad-index", record: str | None = None) -> DataError:
    """Return the error for files that are corrupt or do not match."""
    return DataError(
        what,
        file=store.locate(path),
        record=record,
        kind=kind,
        fix="'.bin' and '.idx' belong together. " + copy_again("both files", "tokenize again"),
    )


_PIECE = 1 << 24


@dataclass(frozen=True, slots=True)
class Merged:
    """Counts of a merge: files, documents and sequences, and bytes of tokens."""

    files: int
    documents: int
    sequences: int
    bytes: int


def merge_megatron(
    source: Store, prefixes: Sequence[str], target: Store, prefix: str, *, multimodal: bool = False
) -> Merged:
    """Write the sequences of several pairs of files to one pair.

    Args:
        source, prefixes: the files, in the order in which they are merged.
        target, prefix: the files to write. The index is published last.
        multimodal: the files have the mode of each sequence.

    Raises:
        ConfigError: the files have different types of tokens, or have modes and should not, or the reverse.
        NotFound, DataError: a file is missing or corrupt.
    """
    indices = [read_header(source, name + IDX) for name in prefixes]
    for name, index in zip(prefixes, indices, strict=True):
        open_megatron(source, name, name)  # checks the sizes, and that the last document ends with the last sequence
        if index.dtype != indices[0].dtype:
            raise ConfigError(
                f"its tokens have the type {index.dtype}, those of {prefixes[0]} have {indices[0].dtype}",
                file=source.locate(name + IDX),
                kind="bad-token-size",
                fix="Merge it with 'feedmill tokens merge --token-size 4'.",
            )
        if index.multimodal != multimodal and index.sequences:
            raise ConfigError(
                f"its sequences have {'modes' if index.multimodal else 'no modes'}",
                file=source.locate(name + IDX),
                kind="settings-differ",
                fix=f"{'Add' if index.multimodal else 'Remove'} --multimodal.",
            )
    sequences, documents = sum(index.sequences for index in indices), sum(index.documents for index in indices)
    copied = 0
    with target.write(prefix + IDX) as out:
        with target.write(prefix + BIN) as file:
            for name in prefixes:
                copied += _copy(source, name + BIN, file)
            target.delete(prefix + IDX)  # readers must not see an older index with the new tokens
        out.write(HEADER.pack(MAGIC, VERSION, code_of(indices[0].dtype), sequences, documents + 1))
        _write_arrays(source, prefixes, indices, out)
    return Merged(len(prefixes), documents, sequences, copied)


def _write_arrays(source: Store, prefixes: Sequence[str], indices: Sequence[MegatronIndex], out: BinaryIO) -> None:
    both = list(zip(prefixes, indices, strict=True))
    for name, index in both:
        out.write(load_numbers(source, name + IDX, "<i4", index.lengths_at, index.sequences).tobytes())
    before = 0
    for name, index in both:
        begins = load_numbers(source, name + IDX, "<i8", index.offsets_at, index.sequences)
        for low in range(0, index.sequences, _PER_WRITE):
            out.write((begins[low : low + _PER_WRITE] + before).astype("<i8").tobytes())
        before += source.stat(name + BIN).size
    out.write(bytes(8))
    first = 0
    for name, index in both:
        firsts = load_numbers(source, name + IDX, "<i8", index.documents_at, index.documents + 1)
        for low in range(1, index.documents + 1, _PER_WRITE):
            out.write((firsts[low : low + _PER_WRITE] + first).astype("<i8").tobytes())
        first += index.sequences
    for name, index in both:
        if index.multimodal:
            out.write(source.read(name + IDX, index.modes_at, index.sequences))


def _copy(source: Store, path: str, file: BinaryIO) -> int:
    size = source.stat(path).size
    for at in range(0, size, _PIECE):
        file.write(source.read(path, at, min(_PIECE, size - at)))
    return size
