"""Read what pyarrow does not tell of the metadata of Arrow files: where record batches are, and how they are stored.

The metadata are flatbuffers (https://flatbuffers.dev), which pyarrow has verified. A table of one begins with the
distance to its list of fields, which has where each field is in the table, or 0.
"""

from __future__ import annotations

import numpy as np

from feedmill.formats.offsets import Int64s

_BLOCK = np.dtype([("offset", "<i8"), ("head", "<i4"), ("padding", "<i4"), ("body", "<i8")])
_BATCHES, _HEADER, _COMPRESSION, _ENDIANNESS = 3, 2, 3, 0
"""Fields of a Footer, a Message, a RecordBatch and a Schema in https://github.com/apache/arrow/blob/main/format/."""


def _unpack(data: bytes, at: int, kind: str) -> int:
    return int(np.frombuffer(data, kind, 1, at)[0])


def field(data: bytes, table: int, number: int) -> int:
    """Return where a table of a flatbuffer has a field; 0 if it has none. pyarrow has verified the flatbuffer."""
    fields, at = table - _unpack(data, table, "<i4"), 4 + 2 * number
    relative = _unpack(data, fields + at, "<u2") if at < _unpack(data, fields, "<u2") else 0
    return relative and table + relative


def batches(footer: bytes) -> Int64s:
    """Return offset and length of each record batch, int64[batches, 2], by the footer of an Arrow file."""
    at = field(footer, _unpack(footer, 0, "<u4"), _BATCHES)
    if not at:
        return np.empty((0, 2), np.int64)
    vector = at + _unpack(footer, at, "<u4")
    blocks = np.frombuffer(footer, _BLOCK, _unpack(footer, vector, "<u4"), vector + 4)
    return np.stack([blocks["offset"], blocks["head"] + blocks["body"]], axis=1)


def is_big_endian(head: bytes) -> bool:
    """Return whether the metadata of a schema says so; little-endian is the default."""
    at = field(head, _unpack(head, 0, "<u4"), _HEADER)
    at = at and field(head, at + _unpack(head, at, "<u4"), _ENDIANNESS)
    return bool(at and _unpack(head, at, "<i2"))


def is_compressed(head: bytes) -> bool:
    """Return whether the metadata of a record batch says that its buffers are compressed."""
    at = field(head, _unpack(head, 0, "<u4"), _HEADER)
    return bool(at and field(head, at + _unpack(head, at, "<u4"), _COMPRESSION))
