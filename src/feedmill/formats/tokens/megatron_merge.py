"""Merge Megatron-LM's files sequence by sequence, byte for byte as its ``tools/merge_datasets.py`` does.

The general `merge` works on documents; this keeps the sequences that documents were split into, and their modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from feedmill.errors import ConfigError
from feedmill.formats.tokens.megatron import (
    BIN,
    HEADER,
    IDX,
    MAGIC,
    VERSION,
    MegatronIndex,
    code_of,
    open_megatron,
    read_header,
)
from feedmill.formats.tokens.number_files import load_numbers
from feedmill.storage import Store

_PIECE = 1 << 24
_PER_WRITE = 1 << 20


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
