"""Read a file of documents into segments of signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.curation.attribute_set import digest_ids, fingerprint
from feedmill.curation.near.options import NearOptions
from feedmill.curation.near.parallel import go_on
from feedmill.documents.file import DocumentFile
from feedmill.documents.lines import read_blocks
from feedmill.documents.rows import bad_row, ids_of, parse_texts
from feedmill.formats.signatures import Arrays, read_marker, segment_name, write_arrays, write_marker
from feedmill.kernels.hashing import shingles_compiled
from feedmill.kernels.hashing.shingles import characters, permutations
from feedmill.storage import Store, open_store

SEGMENT = 32 << 20
"""Minimum number of bytes of text in a segment, except the last one of a file."""


@dataclass(frozen=True, slots=True)
class SketchTask:
    """File of documents to sign, and the folder of signatures."""

    file: DocumentFile
    options: NearOptions
    folder: str

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
        xxh3: Hash of the stored bytes; empty in signatures of earlier versions.
    """

    rows: int
    ids: str
    digest: str
    segments: list[int]
    empty: int
    xxh3: str = ""


def sketch(task: SketchTask) -> Sketched:
    """Read a file into segments, unless an earlier run did.

    Raises:
        DataError: A row is not a document or has no id, or the compressed data is corrupt.
    """
    work, own = open_store(task.folder), task.fingerprint
    done = read_marker(work, f"segments/{own}.json")
    if done is not None:
        return Sketched(**done)
    digest, content = digest_ids([]), xxhash.xxh3_128()
    rows, empty, segments, segment, read = 0, 0, list[int](), _Segment(), list[str]()
    for lines in read_blocks(task.file, fields=("id", "text"), hashed=read.append):
        go_on()
        parsed = parse_texts(lines, task.file.name, rows + 1)
        ids = ids_of(parsed, task.file.name, rows + 1)
        if not all(ids):
            raise bad_row(b"-", "the row has no 'id'", task.file.name, rows + 1 + ids.index(b""))
        digest_ids(ids, digest)
        content.update(lines if lines.endswith(b"\n") else lines + b"\n")
        empty += segment.add(ids, [row.text.encode() for row in parsed], task.options)
        rows += len(ids)
        if segment.size >= SEGMENT:
            segments.append(segment.write(work, segment_name(own, len(segments))))
            segment = _Segment()
    if segment.ids:
        segments.append(segment.write(work, segment_name(own, len(segments))))
    found = Sketched(rows, digest.hexdigest(), content.hexdigest(), segments, empty, read[0])
    write_marker(work, f"segments/{own}.json", {name: getattr(found, name) for name in Sketched.__slots__})
    return found


def signatures(texts: Sequence[bytes], options: NearOptions) -> Arrays:
    """Return the arrays of a segment for UTF-8 texts, without the ids (see `feedmill.formats.signatures`)."""
    bands, rows = options.shape
    count = len(texts)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    data = np.frombuffer(b"".join(texts) + bytes(8), np.uint8)
    keys, digests = np.empty((bands, count), np.uint64), np.empty(count, np.uint64)
    ends, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
    sets = np.empty(len(data) // 2 + count + 1, np.uint64)
    table = characters(options.lower, options.punctuation)
    a, b = permutations(bands * rows)
    shingles_compiled.sketch(data, offsets, options.ngram, *table, a, b, keys, sets, ends, digests, lengths)
    used = sets[: ends[-1] if count else 0].copy()
    return {"keys": keys, "digests": digests, "sets": used, "ends": ends, "lengths": lengths}


@dataclass(slots=True)
class _Segment:
    """Blocks of a file, collected until they are written as a segment."""

    size: int = 0
    ids: list[bytes] = field(default_factory=list)
    blocks: list[Arrays] = field(default_factory=list)

    def add(self, ids: list[bytes], texts: list[bytes], options: NearOptions) -> int:
        """Add documents. Return the number of documents without words."""
        block = signatures(texts, options)
        self.blocks.append(block)
        self.ids += ids
        self.size += sum(map(len, texts))
        return int(np.count_nonzero(np.diff(block["ends"], prepend=0) == 0))

    def write(self, work: Store, name: str) -> int:
        """Write the segment. Return its number of documents."""
        arrays = {
            key: np.concatenate([block[key] for block in self.blocks], axis=-1)
            for key in ("keys", "digests", "sets", "lengths")
        }
        sizes = np.concatenate([np.diff(block["ends"], prepend=0) for block in self.blocks])
        ends: npt.NDArray[np.int64] = np.cumsum(sizes, dtype=np.int64)
        ids = np.frombuffer(b"".join(self.ids), np.uint8)
        id_ends = np.cumsum([len(one) for one in self.ids], dtype=np.int64)
        write_arrays(work, name, {**arrays, "ends": ends, "ids": ids, "id_ends": id_ends})
        return len(self.ids)
