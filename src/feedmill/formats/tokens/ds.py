"""datatrove's token files (``.ds``), as Nanotron's Nanosets read them.

Layout; all numbers are little-endian, and only the first file is required::

    x.ds            only concatenated token ids: 2 bytes each if the vocabulary with added tokens has at most 65,536
                        entries, else 4
    x.ds.index      8 bytes per document, unsigned: the number of tokens up to its end; the first begins at 0
    x.ds.loss       1 byte per token: 1 if it contributes to the loss, else 0
    x.ds.metadata   three lines of text without a final newline: tokenizer name, "|", token size; the number of
                        tokens; that number for display ("27.3 kT")

A folder stands for all its ``.ds`` files, including those in subfolders, sorted by path. Nanotron's order permutes them
by numpy's `default_rng(42)`. A document without tokens repeats the previous end.

The token size is stored only in ``.metadata``. Without it, it is derived from the size of the file and the last end in
``.index``. If both are missing, `token_size` is required: a wrong guess would read two tokens as one.

Rejected: sizes that do not match (a truncated file, an index of another file), descending ends, and files of different
token sizes in one folder.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
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
from feedmill.formats.tokens.masks import MaskWriter, write_mask
from feedmill.formats.tokens.number_files import FlatFile, FlatWriter, load_numbers
from feedmill.storage import Entry, Store
from feedmill.storage.reasons import copy_again

FORMAT = "ds"
SUFFIX, INDEX, LOSS = ".ds", ".index", ".loss"
FILE_SEED = 42
FILE_ORDERS = re.compile(r"sorted|flat|nanotron(:\d{1,10})?")
"""Orders of the files of a folder: by path, with or without subfolders; permuted as Nanotron does, with a seed."""
"""Seed of the order of files in a folder for a Nanoset, independent of the seed of the run."""

Select = Callable[[list[str]], Sequence[str]]

METADATA = ".metadata"
TOKEN_SIZES = (2, 4)
_TYPES = {size: np.dtype(f"<u{size}") for size in TOKEN_SIZES}
_UNKNOWN = "Unknown Tokenizer"
_MAGNITUDES = ["", "k", "M", "G", "T", "P", "E", "Z"]


def open_ds(
    store: Store,
    path: str,
    url: str,
    *,
    select: Select | None = None,
    recursive: bool = True,
    seed: int | None = None,
    token_size: int | None = None,
) -> TokenDataset:
    """Open one ``.ds`` file, or a folder of them.

    Args:
        store: the store of the file or folder.
        path: the file in the store, or a folder ("" for the store's own).
        url: path or URL as the user gave it.
        select: function from all paths of a folder, those in hidden folders too, to the files to read; None for all
            ``.ds`` files.
        recursive: whether to include files in subfolders.
        seed: None for files sorted by path; `FILE_SEED` for Nanotron's order.
        token_size: bytes per token, 2 or 4; required only without metadata and index.

    Raises:
        NotFound: there is no such file.
        ConfigError: the token size is unknown, or differs from that of the file.
        DataError: the files do not match.
    """
    files = _listed(store, path, recursive, url, select is not None)
    chosen = select(list(files)) if select is not None else [name for name in files if name.endswith(SUFFIX)]
    names = file_order(chosen, seed)
    if path.endswith(SUFFIX) and path in files:
        names = [path]
    shards, tokenizers = [], []
    for name in names:
        shard, tokenizer = _shard(store, files, name, token_size)
        shards.append(shard)
        if tokenizer and tokenizer not in tokenizers:
            tokenizers.append(tokenizer)
    _same_size(store, shards)
    about = {"tokenizer": tokenizers[0] if len(tokenizers) == 1 else tokenizers} if tokenizers else {}
    return TokenDataset(store, shards, name=url, format=FORMAT, about=about)


def file_order(paths: Sequence[str], seed: int | None = FILE_SEED) -> list[str]:
    """Return the ``.ds`` files of one folder in the order in which a Nanoset numbers their samples.

    Args:
        paths: the files, in any order.
        seed: datatrove's seed of the folder; None if it does not shuffle files.
    """
    row = sorted(paths)
    if seed is None:
        return row
    return [row[i] for i in np.random.default_rng(seed).permutation(len(row))]


def ds_token_size(vocab_size: int) -> int:
    """Return bytes per token by datatrove's rule; `vocab_size` includes added tokens."""
    return 2 if vocab_size <= 65_536 else 4


@contextlib.contextmanager
def write_ds(
    store: Store,
    path: str,
    token_size: int,
    *,
    tokenizer_name: str | None,
    index: bool = True,
    metadata: bool = True,
    loss: bool = False,
) -> Iterator[DsWriter]:
    """Write one ``.ds`` file and its accompanying files, byte for byte as datatrove does.

    Args:
        store, path: location; `path` ends in ``.ds``.
        token_size: bytes per token, 2 or 4; see `ds_token_size`.
        tokenizer_name: name of the tokenizer for the metadata.
        index, metadata, loss: which accompanying files to write. Others of an older file are removed.

    Raises:
        ConfigError: the token size is unsupported.
    """
    if token_size not in _TYPES:
        raise ConfigError(
            f"invalid token size {token_size}: '.ds' files have 2 or 4 bytes per token",
            file=store.locate(path),
            kind="bad-token-size",
            fix="Use 2 for vocabularies of up to 65,536 entries, and 4 for others.",
        )
    with store.write(path) as file, contextlib.ExitStack() as sides:  # the first one is published last
        ends = sides.enter_context(store.write(path + INDEX)) if index else None
        mask = sides.enter_context(write_mask(store, path, loss, path, suffix=LOSS))
        writer = DsWriter(FlatFile(file, _TYPES[token_size], store.locate(path)), ends, mask)
        yield writer
        # Readers must not see tokens of an older file with the new index, or new tokens with an older index.
        store.delete(path)
        for side, kept in ((INDEX, index), (METADATA, metadata)):
            if not kept:
                store.delete(path + side)
        if metadata:
            text = metadata_text(tokenizer_name, token_size, writer.tokens)
            store.write_bytes(path + METADATA, text.encode())


class DsWriter(FlatWriter):
    """`TokenWriter` of ``.ds`` files; created by `write_ds`."""

    def __init__(self, flat: FlatFile, ends: BinaryIO | None, mask: MaskWriter) -> None:
        super().__init__(flat)
        self._ends, self._mask = ends, mask

    def add(self, tokens: Tokens, lengths: Int64s, loss: npt.NDArray[np.bool_] | None = None) -> None:
        """Append documents, see `TokenWriter.add`. Without `loss` all tokens contribute to the loss."""
        self._mask.add(len(tokens), loss)
        ends = self._flat.add(tokens, lengths)
        if self._ends is not None:
            self._ends.write(ends.astype("<u8").data)


def _listed(store: Store, path: str, recursive: bool, url: str, every: bool) -> dict[str, Entry]:
    """Return the files of the dataset and the accompanying files, by path."""
    if path.endswith(SUFFIX):
        found = {}
        for name in (path, path + INDEX, path + LOSS, path + METADATA):
            with contextlib.suppress(NotFound):
                found[name] = store.stat(name)
        if path in found:
            return found
    folder = path.rstrip("/")
    depth = folder.count("/") + 1 if folder else 0
    entries = store.files(folder, hidden=every)
    found = {entry.path: entry for entry in entries if recursive or entry.path.count("/") == depth}
    if not every and not any(name.endswith(SUFFIX) for name in found):
        inside = ", ".join(list(found)[:4])
        raise NotFound(
            "no files match '*.ds' (" + (f"found {inside} ..." if inside else "the folder is empty") + ")",
            file=url,
            kind="no-tokens",
            fix="Check the folder and the pattern.",
        )
    return found


def _shard(store: Store, files: Mapping[str, Entry], path: str, token_size: int | None) -> tuple[TokenShard, str]:
    """Return one file, and its tokenizer's name ("" if unknown)."""
    entry, index, loss = files[path], files.get(path + INDEX), files.get(path + LOSS)
    metadata = read_metadata(store, path) if path + METADATA in files else None
    last = None if index is None else _last_end(store, index)
    size = _token_size(store, entry, metadata, last, token_size)
    tokens, rest = divmod(entry.size, size)
    if rest:
        raise _inconsistent(store, path, f"{entry.size} bytes are not a multiple of the token size of {size} bytes")
    if metadata is not None and metadata.tokens != tokens:
        raise _inconsistent(store, path, f"expected {metadata.tokens} tokens by its '.metadata', found {tokens}")
    if last is not None and last != tokens:
        raise _inconsistent(store, path, f"expected {last} tokens by its '.index', found {tokens}")
    if loss is not None and loss.size != tokens:
        raise _inconsistent(store, path, f"expected {loss.size} tokens by its '.loss', found {tokens}")
    shard = TokenShard(
        path=path,
        dtype=_TYPES[size],
        offset=0,
        tokens=tokens,
        documents=None if index is None else index.size // 8,
        load_bounds=partial(_load_bounds, store, path),
        load_loss=None if loss is None else partial(load_numbers, store, loss.path, "u1"),
        loss=None if loss is None else loss.path,
        facts=tuple(
            partial(content_hash, store, each.path, each.size) for each in (entry, index, loss) if each is not None
        ),
    )
    return shard, metadata.tokenizer if metadata else ""


def _token_size(store: Store, entry: Entry, metadata: DsMetadata | None, last: int | None, wanted: int | None) -> int:
    """Return bytes per token of one file: from its metadata, else from its index and size, else `wanted`."""
    given = metadata.token_size if metadata is not None else None
    if given is None and last is not None and last * 2 == entry.size:
        given = 2
    elif given is None and last is not None and last * 4 == entry.size:
        given = 4
    if given is None and last is not None and wanted is None:
        raise _inconsistent(store, entry.path, f"its '.index' ends at token {last}, but it has {entry.size} bytes")
    if wanted is not None and (wanted not in _TYPES or (entry.size and given is not None and given != wanted)):
        raise ConfigError(
            f"token_size={wanted} asks for {wanted} bytes per token" + (f", but it has {given}" if given else ""),
            file=store.locate(entry.path),
            kind="bad-token-size",
            fix="Remove 'token_size'." if given else "Use 2 or 4 bytes per token.",
        )
    if given is None and wanted is None and entry.size:
        raise ConfigError(
            "the token size is unknown, because there is no '.metadata' or '.index' file",
            file=store.locate(entry.path),
            kind="bad-token-size",
            fix="Pass token_size=2, or 4 if the vocabulary has more than 65,536 entries.",
        )
    return given or wanted or 2


def _last_end(store: Store, index: Entry) -> int:
    """Return the end of the last document of an index; 0 if it has none."""
    if index.size % 8:
        raise _inconsistent(store, index.path, f"{index.size} bytes are not a list of 8-byte numbers")
    return int.from_bytes(store.read(index.path, index.size - 8, 8), "little") if index.size else 0


def _load_bounds(store: Store, path: str) -> Int64s:
    ends = load_numbers(store, path + INDEX, "<i8")
    bounds = np.zeros(len(ends) + 1, np.int64)
    bounds[1:] = ends
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if len(falls):
        number = int(falls[0])
        raise DataError(
            f"the document ends at token {int(bounds[number + 1])}, before it begins ({int(bounds[number])})",
            file=store.locate(path + INDEX),
            record=str(number),
            kind="bad-index",
            fix="The index is corrupt. Restore it, or tokenize again.",
        )
    return bounds


def _same_size(store: Store, shards: Sequence[TokenShard]) -> None:
    filled = [shard for shard in shards if shard.tokens]
    other = next((shard for shard in filled if shard.dtype != filled[0].dtype), None)
    if other is not None:
        raise DataError(
            f"it has {other.dtype.itemsize} bytes per token, {filled[0].path} has {filled[0].dtype.itemsize}: they are"
            " of different tokenizers",
            file=store.locate(other.path),
            kind="bad-token-size",
            fix="Move them to separate folders.",
        )


def _inconsistent(store: Store, path: str, what: str) -> FeedmillError:
    return DataError(
        what,
        file=store.locate(path),
        kind="truncated",
        fix="It is incomplete, or its index files belong to another file. " + copy_again("all of them"),
    )


def open_found(wanted: OpenRequest) -> TokenDataset:
    """See `open_ds`; files of a list are opened together, files of a folder in the order given by `files`."""
    return open_files(wanted, FORMAT, _open_one)


def _open_one(wanted: OpenRequest) -> TokenDataset:
    order = wanted.files or "sorted"
    if not FILE_ORDERS.fullmatch(order):
        raise ConfigError(
            f"invalid value files={wanted.files!r}",
            file=wanted.url,
            fix="Use sorted, flat, nanotron or nanotron:SEED.",
        )
    kind, _, seed = order.partition(":")
    return open_ds(
        wanted.store,
        wanted.name,
        wanted.url,
        recursive=kind == "sorted",
        seed=int(seed or FILE_SEED) if kind == "nanotron" else None,
        token_size=wanted.token_size,
    )


class Ds(TokenFormat):
    """See `TokenFormat`."""

    def dtype(self, sizes: VocabularySizes) -> np.dtype[Any]:
        """See `TokenFormat`."""
        return np.dtype(f"<u{ds_token_size(sizes.size)}")

    def largest(self, form: Form, tokens: int | Int64s, documents: int | Int64s) -> Any:
        """See `TokenFormat`; the index has 8 bytes per document."""
        return np.maximum(tokens * form.token_size, 8 * documents)

    def open(self, store: Store, path: str, form: Form) -> AbstractContextManager[TokenWriter]:
        """See `TokenFormat`."""
        return write_ds(store, path, form.token_size, tokenizer_name=form.tokenizer, loss=form.loss)


WRITER = Ds()


class DsMetadata(NamedTuple):
    """Content of a ``.metadata`` file: the tokenizer's name ("" if unknown), bytes per token, number of tokens."""

    tokenizer: str
    token_size: int
    tokens: int


def read_metadata(store: Store, path: str) -> DsMetadata | None:
    """Return the metadata of a ``.ds`` file; None if there is none.

    Raises:
        DataError: the metadata is invalid.
    """
    name = path + METADATA
    if not store.exists(name):
        return None
    try:
        lines = store.read_small(name).decode().split("\n")
        tokenizer, size = lines[0].rsplit("|", 1)
        metadata = DsMetadata(tokenizer, int(size), int(lines[1]))
        if metadata.token_size not in TOKEN_SIZES:
            raise ValueError
    except (UnicodeDecodeError, ValueError, IndexError):
        raise DataError(
            "invalid metadata of token data: expected 'tokenizer|token size', with 2 or 4, then a line with the number"
            " of tokens",
            file=store.locate(name),
            kind="bad-index",
            fix="Restore it, or delete it: the token size can also be determined from the '.index'.",
        ) from None
    # without a name, datatrove writes "Unknown Tokenizer|2|2"
    return metadata._replace(tokenizer="") if tokenizer.split("|")[0] == _UNKNOWN else metadata


def metadata_text(tokenizer: str | None, token_size: int, tokens: int) -> str:
    """Return the text of a ``.metadata`` file."""
    return f"{tokenizer or _UNKNOWN}|{token_size}\n{tokens}\n{human_tokens(tokens)}"


def human_tokens(count: int) -> str:
    """Return a number of tokens in three digits and the prefixes of the metric system.

    >>> human_tokens(0), human_tokens(27_261), human_tokens(999_500), human_tokens(2_000_000_000)
    ('0.00 T', '27.3 kT', '1.00 MT', '2.00 GT')
    """
    exponent = len(str(count)) - 1
    while True:
        step, place = divmod(exponent, 3)
        text = f"{count / 10 ** (3 * step):.{2 - place}f}"
        if float(text) < 10 ** (place + 1):
            return f"{text} {_MAGNITUDES[step]}T"
        exponent += 1  # rounding can add a digit: 999.5 k is 1.00 M
