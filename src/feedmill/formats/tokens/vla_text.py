"""VLA Foundry's shards of tokenized text: WebDataset tars of sequences of one length, and a manifest.

Layout::

    shard-000000.tar      members <key>.json.gz, each the gzip of a JSON array of sequence length + 1 token ids
    manifest.jsonl        one {"shard": "shard-000000", "num_sequences": n} per line; appears last

All documents are concatenated and cut into sequences that do not overlap. A training program predicts tokens 2 to n + 1
from 1 to n, and drops shorter sequences. So the tokens after the last whole sequence are dropped and counted. Members
have no time and VLA Foundry's own owner: the same documents give the same bytes.

Shards are published one by one, and the manifest last: shards without a manifest are left by an interrupted run.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tokens.base import Int64s, Tokens
from feedmill.storage import Store

MANIFEST = "manifest.jsonl"
SEQUENCES = 8192
"""Default number of sequences per shard."""

_SHARD = re.compile(r"shard-[0-9]{6,}\.tar")
_BLOCK, _RECORD = 512, 10_240
_GZIP = 31  # zlib's wbits for a gzip header without a time
_LEVEL = 1  # zlib's level: ISA-L is faster, but its output can differ between runs


def shard_name(number: int) -> str:
    """Return the name of a shard without ``.tar``, as in the manifest."""
    return f"shard-{number:06d}"


def shard_files(store: Store, folder: str) -> list[str]:
    """Return the shards in a folder of the store: only files whose names have the form of `shard_name`."""
    try:
        files = list(store.files(folder, suffixes=(".tar",)))
    except NotFound:
        return []
    return [entry.path for entry in files if _SHARD.fullmatch(entry.path.removeprefix(f"{folder}/"))]


@contextlib.contextmanager
def write_vla_text(store: Store, folder: str, length: int, sequences: int = SEQUENCES) -> Iterator[VlaTextWriter]:
    """Write a folder of shards. The manifest is published if the block ends without an error.

    Args:
        length: tokens per sequence: the sequence length of the training program plus 1.
        sequences: sequences per shard.

    Raises:
        ConfigError: a number is too small.
    """
    if length < 2 or sequences < 1:
        raise ConfigError(
            f"invalid shards of {sequences} sequences of {length} tokens",
            file=store.locate(folder),
            kind="bad-option",
            fix="Use a sequence length of 1 or more, and at least one sequence per shard.",
        )
    with ExitStack() as stack:
        writer = VlaTextWriter(store, folder, length, sequences, stack)
        yield writer
        writer.finish()


class VlaTextWriter:
    """`TokenWriter` of these shards; created by `write_vla_text`.

    Attributes:
        sequences: number of sequences written so far.
    """

    def __init__(self, store: Store, folder: str, length: int, most: int, stack: ExitStack) -> None:
        self._store, self._folder, self._length, self._most, self._stack = store, folder, length, most, stack
        self._rest: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._counts: list[int] = []
        self._shard: BinaryIO | None = None
        self.sequences = 0

    @property
    def left_over(self) -> int:
        """Return the number of tokens that do not fill a sequence yet."""
        return len(self._rest)

    def add(self, tokens: Tokens, lengths: Int64s, loss: npt.NDArray[np.bool_] | None = None) -> None:  # noqa: ARG002
        """Append documents, see `TokenWriter.add`."""
        if loss is not None:
            raise ConfigError(
                "this format cannot store a loss mask",
                file=self._store.locate(self._folder),
                kind="unsupported",
                fix="Write another token format, or remove the mask.",
            )
        together = np.concatenate((self._rest, tokens.astype(np.int64)))
        whole = len(together) // self._length * self._length
        for sequence in together[:whole].reshape(-1, self._length):
            self._write(sequence)
        self._rest = together[whole:].copy()

    def finish(self) -> None:
        """End the last shard, remove later shards of an earlier run, and write the manifest."""
        self._close()
        names = [shard_name(number) for number in range(len(self._counts))]
        kept = {f"{self._folder}/{name}.tar" for name in names}
        self._forget()
        for path in shard_files(self._store, self._folder):
            if path not in kept:
                self._store.delete(path)
        lines = [
            orjson.dumps({"shard": name, "num_sequences": count}).replace(b'":', b'": ').replace(b',"', b', "') + b"\n"
            for name, count in zip(names, self._counts, strict=True)
        ]
        self._store.write_bytes(f"{self._folder}/{MANIFEST}", b"".join(lines))

    def _write(self, sequence: npt.NDArray[np.int64]) -> None:
        if self._shard is None:
            path = f"{self._folder}/{shard_name(len(self._counts))}.tar"
            self._shard = self._stack.enter_context(self._store.write(path))
            self._counts.append(0)
        text = orjson.dumps(sequence, option=orjson.OPT_SERIALIZE_NUMPY)
        data = zlib.compress(text, _LEVEL, _GZIP)
        self._shard.write(member_header(f"{self.sequences:09d}.json.gz", len(data)))
        self._shard.write(data)
        self._shard.write(bytes(-len(data) % _BLOCK))
        self._counts[-1] += 1
        self.sequences += 1
        if self._counts[-1] == self._most:
            self._close()

    def _close(self) -> None:
        if self._shard is None:
            return
        self._shard.write(bytes(2 * _BLOCK))
        self._shard.write(bytes(-self._shard.tell() % _RECORD))
        self._forget()  # readers must not see an older manifest with new shards
        self._shard = None
        self._stack.close()

    def _forget(self) -> None:
        if self._store.exists(f"{self._folder}/{MANIFEST}"):
            self._store.delete(f"{self._folder}/{MANIFEST}")


def member_header(name: str, size: int) -> bytes:
    """Return the tar header of a member, as VLA Foundry's writer writes it, but with a fixed time."""
    import tarfile

    info: Any = tarfile.TarInfo(name)
    info.size, info.mode, info.uname, info.gname = size, 0o444, "bigdata", "bigdata"
    header: bytes = info.tobuf(tarfile.USTAR_FORMAT)
    return header
