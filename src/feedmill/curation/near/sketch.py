"""Read a file of documents into segments of signatures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.curation.attribute_set import digest_ids, fingerprint
from feedmill.curation.near.parallel import go_on, spread_blocks
from feedmill.curation.options import Neardedupe
from feedmill.documents.file import DocumentFile
from feedmill.documents.lines import Block, blocks, read_blocks
from feedmill.documents.rows import parse_documents
from feedmill.formats.arrays import Arrays, write_arrays
from feedmill.formats.signatures import read_marker, segment_name, write_marker
from feedmill.jobs.memory import FULL, sized
from feedmill.kernels.hashing import shingles
from feedmill.kernels.hashing.shingles import characters, permutations
from feedmill.storage import Store, open_store

SEGMENT = 32 << 20
"""Number of bytes of signatures and ids at which a segment is complete, in a task with full room. Writing it takes them
twice."""


@dataclass(frozen=True, slots=True)
class SketchTask:
    """File of documents to sign, the folder of signatures, and the memory of a task."""

    file: DocumentFile
    options: Neardedupe
    folder: str
    room: int = FULL

    @property
    def location(self) -> str:
        """Full path or URL of the file."""
        return self.file.store().locate(self.file.path)

    @property
    def fingerprint(self) -> str:
        """Digest of the file's state and of the options that its signatures depend on."""
        signature = self.options.signature()
        used = [signature[name] for name in ("ngram", "lower", "punctuation", "bands", "rows")]
        return fingerprint(self.location, *self.file.identity[1:], used)


@dataclass(frozen=True, slots=True)
class Sketched:
    """Result of a file.

    Attributes:
        rows: Number of documents.
        ids: Digest of the ids.
        digest: Digest of the content.
        segments: Number of rows of each segment.
        empty: Number of texts without words.
        xxh3: Hash of the stored bytes.
    """

    rows: int
    ids: str
    digest: str
    segments: list[int]
    empty: int
    xxh3: str


class _Signed(NamedTuple):
    """Signatures of a block of rows: the ids as JSON, and the arrays of `signatures`."""

    ids: list[bytes]
    arrays: Arrays


def _sign(task: SketchTask, block: Block) -> _Signed:
    ids, parsed = parse_documents(block.lines, task.file.name, block.line)
    texts = [row.text.encode() for row in parsed]
    return _Signed(ids, signatures(texts, task.options))


def sketch(task: SketchTask, workers: int = 1) -> Sketched:
    """Read a file into segments, unless an earlier run did.

    Args:
        workers: Number of threads or processes that sign its blocks; see `feedmill.curation.near.parallel`.

    Raises:
        DataError: A row is not a document or has no id, or the compressed data is corrupt.
    """
    work, own = open_store(task.folder), task.fingerprint
    done = read_marker(work, f"segments/{own}.json")
    if done is not None:
        return Sketched(**done)
    digest, content = digest_ids([]), xxhash.xxh3_128()
    rows, empty, segments, segment, read = 0, 0, list[int](), _Segment(), list[str]()
    most = sized(SEGMENT, task.room)

    def source() -> Iterator[bytes]:
        for lines in read_blocks(task.file, fields=("id", "text"), hashed=read.append):
            go_on()
            content.update(lines if lines.endswith(b"\n") else lines + b"\n")
            yield lines

    with closing(spread_blocks(_sign, blocks(source()), task, workers)) as made:
        for signed in made:
            digest_ids(signed.ids, digest)
            empty += segment.add(signed)
            rows += len(signed.ids)
            if segment.size >= most:
                segments.append(segment.write(work, segment_name(own, len(segments))))
                segment = _Segment()
    if segment.blocks:
        segments.append(segment.write(work, segment_name(own, len(segments))))
    sketched = Sketched(rows, digest.hexdigest(), content.hexdigest(), segments, empty, read[0])
    write_marker(work, f"segments/{own}.json", {name: getattr(sketched, name) for name in Sketched.__slots__})
    return sketched


def signatures(texts: Sequence[bytes], options: Neardedupe) -> Arrays:
    """Return the arrays of a segment for UTF-8 texts, without the ids (see `feedmill.formats.signatures`)."""
    bands, rows = options.shape
    count = len(texts)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    data = np.frombuffer(b"".join(texts) + bytes(8), np.uint8)
    keys, digests = np.empty((bands, count), np.uint64), np.empty(count, np.uint64)
    ends, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
    sets = np.empty(len(data), np.uint64)  # pages that are not written to take no memory
    table = characters(not options.keep_case, not options.keep_punctuation, options.by == "words")
    a, b = permutations(bands * rows)
    shingles.sketch(data, offsets, options.ngram, *table, a, b, keys, sets, ends, digests, lengths)
    used = sets[: ends[-1] if count else 0].copy()
    return {"keys": keys, "digests": digests, "sets": used, "ends": ends, "lengths": lengths}


@dataclass(slots=True)
class _Segment:
    """Blocks of a file, collected until they are written as a segment."""

    size: int = 0
    blocks: list[Arrays] = field(default_factory=list)

    def add(self, signed: _Signed) -> int:
        """Add a block. Return the number of documents without words."""
        sizes = np.diff(signed.arrays.pop("ends"), prepend=0)
        ids = np.frombuffer(b"".join(signed.ids), np.uint8)
        id_sizes = np.array([len(one) for one in signed.ids], np.int64)
        block = {**signed.arrays, "sizes": sizes, "ids": ids, "id_sizes": id_sizes}
        self.blocks.append(block)
        self.size += sum(values.nbytes for values in block.values())
        return int(np.count_nonzero(sizes == 0))

    def write(self, work: Store, name: str) -> int:
        """Write the segment. Return its number of documents."""
        arrays = {key: np.concatenate([block[key] for block in self.blocks], axis=-1) for key in self.blocks[0]}
        ends: npt.NDArray[np.int64] = np.cumsum(arrays.pop("sizes"), dtype=np.int64)
        id_ends: npt.NDArray[np.int64] = np.cumsum(arrays.pop("id_sizes"), dtype=np.int64)
        write_arrays(work, name, {**arrays, "ends": ends, "id_ends": id_ends})
        return len(ends)
