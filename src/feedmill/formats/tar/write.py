"""Write tars: headers are created in bulk, and the same members give the same bytes.

Every member is a regular file with a plain ustar header (POSIX.1-2017): mode 0444, owner and group 0 without names,
time 0. So a shard depends only on its samples, and a header takes 512 bytes (1,536 with fractional times). Only data
that does not fit into ustar takes more:

* A name of more than 100 bytes is split at a slash into prefix (155) and name (100) if possible; otherwise a PAX header
  with one ``path`` record precedes the member.
* A content of 8 GiB or more has a PAX ``size`` record.

Rejected are names of more than 4,096 bytes, with a NUL, or with lone surrogates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.kernels.bounds import bounds_of

BLOCK = 512
END = bytes(2 * BLOCK)
"""End-of-archive marker."""
LONGEST_NAME = 4096
_NAME, _PREFIX = 100, 155
_OCTAL_LIMIT = 8 << 30
_PADS = [bytes(n) for n in range(BLOCK)]
_SHIFTS = np.arange(30, -1, -3)


def _blank() -> npt.NDArray[np.uint8]:
    """Return a header without name, size and checksum."""
    block = np.zeros(BLOCK, np.uint8)

    def put(at: int, text: bytes) -> None:
        block[at : at + len(text)] = np.frombuffer(text, np.uint8)

    put(100, b"0000444\x000000000\x000000000\0")
    put(124, b"00000000000\x0000000000000\0")
    put(148, b"        0")
    put(257, b"ustar\x0000")
    return block


_BLANK = _blank()
_BLANK_SUM = int(_BLANK.sum()) - 11 * ord("0")  # without the digits of the size


def encode_name(name: str) -> bytes:
    """Return a member's name as it is stored. Raises `DataError` for invalid names."""
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        raise _bad_name(name, "is not Unicode text (it has a lone surrogate)") from None
    if len(raw) > LONGEST_NAME:
        raise _bad_name(name, f"has {len(raw):,} bytes, more than the maximum of {LONGEST_NAME:,}")
    if b"\0" in raw:
        raise _bad_name(name, "has a NUL character")
    return raw


def _bad_name(name: str, why: str) -> DataError:
    shown = name if len(name) <= 80 else f"{name[:60]}..."
    return DataError(
        f"the name of the member {why}",
        record=shown.encode("utf-8", "backslashreplace").decode(),
        kind="bad-name",
        fix="Use another key.",
    )


class Members:
    """Members to be written to a tar: their headers and offsets.

    Args:
        names: encoded names, see `encode_name`.
        sizes: bytes of each content.

    Attributes:
        starts: int64[n + 1], offset of each member's first header from that of the first; the last is the end.
        data: int64[n], offset of each content.
    """

    def __init__(self, names: Sequence[bytes], sizes: Sequence[int]) -> None:
        self.sizes = np.asarray(sizes, np.int64)
        lengths = np.fromiter(map(len, names), np.int64, len(names))
        special = np.flatnonzero((lengths > _NAME) | (self.sizes >= _OCTAL_LIMIT))
        self._prefixes: dict[int, bytes] = {}
        self._extra: dict[int, bytes] = {}
        short = list(names)
        for i in special.tolist():
            short[i] = self._special(i, names[i], int(self.sizes[i]))
        extra = np.zeros(len(names), np.int64)
        for i, block in self._extra.items():
            extra[i] = len(block)
        stored = (self.sizes + (BLOCK - 1)) & -BLOCK
        self.starts = bounds_of(extra + BLOCK + stored)
        self.data = self.starts[:-1] + extra + BLOCK
        self._headers = _headers(short, self.sizes, self._prefixes)

    def _special(self, i: int, name: bytes, size: int) -> bytes:
        """Record the extension header that member `i` needs. Return the name for its own header."""
        records = b""
        if len(name) > _NAME:
            cut = _cut(name)
            if cut is None:
                records += _record(b"path", name)
                name = name[:_NAME]
            else:
                self._prefixes[i] = cut[0]
                name = cut[1]
        if size >= _OCTAL_LIMIT:
            records += _record(b"size", b"%d" % size)
        if records:
            self._extra[i] = _pax(records)
        return name

    def pieces(self, contents: Sequence[bytes]) -> list[bytes]:
        """Return the bytes of these members with their contents, as pieces to join or write in order."""
        raw = self._headers.tobytes()
        out: list[bytes] = []
        add = out.append
        extra = self._extra
        for i, content in enumerate(contents):
            if extra and i in extra:
                add(extra[i])
            add(raw[i * BLOCK : i * BLOCK + BLOCK])
            add(content)
            rest = -len(content) & (BLOCK - 1)
            if rest:
                add(_PADS[rest])
        return out


def _headers(names: Sequence[bytes], sizes: npt.NDArray[np.int64], prefixes: dict[int, bytes]) -> npt.NDArray[np.uint8]:
    """Return the members' own headers, uint8[n, 512]."""
    count = len(names)
    out = np.empty((count, BLOCK), np.uint8)
    out[:] = _BLANK
    if not count:
        return out
    out[:, :_NAME] = np.array(names, f"S{_NAME}").view(np.uint8).reshape(count, _NAME)
    # A size with a PAX record is written as zeros, so that no reader uses a truncated number.
    digits = ((np.where(sizes < _OCTAL_LIMIT, sizes, 0)[:, None] >> _SHIFTS) & 7) + ord("0")
    out[:, 124:135] = digits
    total = out[:, :_NAME].sum(axis=1, dtype=np.int64) + digits.sum(axis=1) + _BLANK_SUM
    for i, prefix in prefixes.items():
        out[i, 345 : 345 + len(prefix)] = np.frombuffer(prefix, np.uint8)
        total[i] += sum(prefix)
    out[:, 148:154] = ((total[:, None] >> _SHIFTS[-6:]) & 7) + ord("0")
    out[:, 154] = 0
    return out


def _cut(name: bytes) -> tuple[bytes, bytes] | None:
    """Return prefix and name for ustar, or None if the name cannot be split."""
    at = name.rfind(b"/", 0, _PREFIX + 1)
    if at <= 0 or len(name) - at - 1 > _NAME or at == len(name) - 1:
        return None
    return name[:at], name[at + 1 :]


def _record(key: bytes, value: bytes) -> bytes:
    """Return a PAX record ``<length> <key>=<value>\\n``; the length includes its own digits."""
    bare = len(key) + len(value) + 3
    length = bare + len(str(bare))
    length = bare + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _pax(records: bytes) -> bytes:
    """Return an extension header of type x with its records, padded."""
    header = _headers([b"././@PaxHeader"], np.asarray([len(records)], np.int64), {})[0]
    header[156] = ord("x")
    text = header[148:154]
    total = int(header.sum()) - int(header[148:156].sum()) + 8 * ord(" ")
    text[:] = np.frombuffer(b"%06o" % total, np.uint8)
    block: bytes = header.tobytes()
    return block + records + _PADS[-len(records) & (BLOCK - 1)]
