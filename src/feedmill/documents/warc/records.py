"""Divide a web archive into records, and records into blocks that can be processed in parallel.

A record is ``WARC/1.x``, header lines, an empty line, and a block of ``Content-Length`` bytes. Only that is parsed
here: the content of records is read by `feedmill.documents.warc.pages`, in any process. Memory is limited by the
largest record that is kept and by a block.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import chain
from typing import NamedTuple

from feedmill.documents.warc.stored import BEGIN, Chunk

INFO = "warcinfo"
_BLOCK = 2 << 20
_MOST = 256
_LONGEST_HEAD = 1 << 18
_END = re.compile(rb"\r?\n\r?\n")
_BLANK = re.compile(rb"[\r\n]*")
_NEXT = re.compile(rb"(?:\A|\n)(?=WARC/\d)")
_FIELD = re.compile(rb"^(content-length|warc-type|warc-target-uri)[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.I | re.M)


class Record(NamedTuple):
    """A record.

    Attributes:
        number: its number in the archive, from 0.
        offset: of its gzip member in the file; in an archive that is not gzip, of its first unpacked byte.
        position: offset of its first byte among all unpacked bytes.
        data: header and block.
    """

    number: int
    offset: int
    position: int
    data: bytes


class Fault(NamedTuple):
    """Something that is left out: `what` is wrong with the record, or the bytes, at an offset."""

    offset: int
    what: str
    url: str = ""


class Block(NamedTuple):
    """Records of an archive, in order.

    Attributes:
        items: records, and what is left out between them.
        info: the last record of type ``warcinfo`` before them, or nothing.
        skipped: number of records of types that are not read, by type.
    """

    items: list[Record | Fault]
    info: Record | None
    skipped: dict[str, int]

    def __repr__(self) -> str:
        return f"the records from byte {self.items[0].offset:,} on" if self.items else "records of other types"


def blocks(chunks: Iterator[Chunk], kinds: Collection[str], largest: int) -> Iterator[Block]:
    """Yield the records of an archive in blocks of about 2 MiB.

    Args:
        chunks: of `feedmill.documents.warc.stored.chunks`.
        kinds: types of records to read (``response``, ...). Records of type ``warcinfo`` are read as well.
        largest: largest record to read, in bytes; larger ones are faults.
    """
    splitter = _Splitter(chunks, kinds, largest)
    items, size, info = list[Record | Fault](), 0, None
    following: Record | None = None
    for item in splitter.items():
        items.append(item)
        if isinstance(item, Record):
            size += len(item.data)
            if splitter.kind == INFO:
                following = item
        if size >= _BLOCK or len(items) >= _MOST:
            yield Block(items, info, splitter.take_skipped())
            items, size, info = [], 0, following
    skipped = splitter.take_skipped()
    if items or skipped:
        yield Block(items, info, skipped)


class _Head(NamedTuple):
    size: int
    kind: str
    length: int
    url: str


class _Broken(Exception):
    """The bytes do not continue from the member at `offset` on."""

    def __init__(self, chunk: Chunk) -> None:
        self.what, self.offset = chunk.broken, chunk.offset


class _Splitter:
    """State of the division: unused bytes, and the members that begin in them as (position, offset in the file)."""

    def __init__(self, chunks: Iterator[Chunk], kinds: Collection[str], largest: int) -> None:
        self._chunks, self._kinds, self._largest = chunks, {*kinds, INFO}, largest
        self._data = bytearray()  # grows at its end and is cut at its begin without a copy
        self._position = 0  # of the first unused byte among all unpacked bytes
        self._members: list[tuple[int, int]] = []
        self._skipped: Counter[str] = Counter()
        self._number = 0
        self.kind = ""

    def take_skipped(self) -> dict[str, int]:
        """Return the number of records of other types since the last call, by type."""
        taken, self._skipped = dict(self._skipped), Counter()
        return taken

    def items(self) -> Iterator[Record | Fault]:
        while True:
            begin = -1
            try:
                if not self._skip_blank():
                    return
                begin = self._position
                if not self._begins():
                    yield Fault(self._offset, "this is not a WARC record")
                    self._seek()
                    continue
                yield from self._record()
            except _Broken as broken:
                offset = self._offset if broken.offset is None else broken.offset
                yield Fault(offset, f"the compressed data is corrupt ({broken.what})")
                if begin >= 0:
                    self._number += 1
                self._drop(len(self._data))
                self._members.clear()

    def _record(self) -> Iterator[Record | Fault]:
        offset = self._offset
        head = self._head()
        if isinstance(head, str):
            yield Fault(offset, head)
            self._drop(1)
            self._seek()
            return
        self.kind = head.kind
        number, self._number = self._number, self._number + 1
        wanted = head.kind in self._kinds
        if wanted and head.length <= self._largest:
            total = head.size + head.length
            while len(self._data) < total and self._fill():
                pass
            at = self._member_within(total)
            if at is not None:
                yield Fault(offset, "its length is wrong: another record begins within it", head.url)
                self._drop(at)
                return
            if len(self._data) < total:
                yield Fault(offset, "the record is truncated", head.url)
                self._drop(1)  # a wrong length may have covered other records
                self._seek()
                return
            if len(self._data) == total:  # the end of the member shows whether it is intact
                self._peek(offset)
            yield Record(number, offset, self._position, bytes(memoryview(self._data)[:total]))
            self._drop(total)
            return
        if wanted:
            yield Fault(offset, f"the record is larger than {self._largest:,} bytes", head.url)
        else:
            self._skipped[head.kind] += 1
        if not self._pass(head.size + head.length):
            yield Fault(offset, "the record is truncated", head.url)

    def _head(self) -> _Head | str:
        """Return the header of the record that begins here, or what is wrong with it."""
        while True:
            end = _END.search(self._data, 0, _LONGEST_HEAD)
            if end is not None:
                break
            if len(self._data) > _LONGEST_HEAD or not self._fill():
                return "the header of the record has no end"
        fields = {name.lower(): value for name, value in _FIELD.findall(self._data, 0, end.end())}
        length = fields.get(b"content-length", b"")
        url = fields.get(b"warc-target-uri", b"").decode("utf-8", "replace").strip("<>")
        if not length.isdigit() or len(length) > 18:
            return "the record has no valid Content-Length"
        kind = fields.get(b"warc-type", b"").decode("latin-1").lower() or "unknown"
        return _Head(end.end(), kind, int(length), url)

    def _member_within(self, total: int) -> int | None:
        """Return where a record begins with a member inside the first `total` bytes, although one is to end there."""
        for position, _ in self._members[1:]:
            at = position - self._position
            if 0 < at < min(total, len(self._data)) and self._data.startswith(BEGIN, at):
                return at
        return None

    def _peek(self, offset: int) -> None:
        """Read on, to learn whether the member at this offset ends well. Raises `_Broken` if it does not."""
        try:
            self._fill()
        except _Broken as broken:
            if broken.offset is None or broken.offset <= offset:
                raise
            self._chunks = chain([Chunk(b"", broken.offset, broken.what)], self._chunks)  # of the next member

    @property
    def _offset(self) -> int:
        """Offset in the file of the member in which the first unused byte lies."""
        while len(self._members) > 1 and self._members[1][0] <= self._position:
            del self._members[0]
        if not self._members:
            return self._position
        return self._members[0][1]

    def _begins(self) -> bool:
        while len(self._data) < len(BEGIN) and self._fill():
            pass
        return self._data.startswith(BEGIN)

    def _skip_blank(self) -> bool:
        """Skip the empty lines between records. Return whether anything follows."""
        while True:
            match = _BLANK.match(self._data)
            self._drop(match.end() if match is not None else 0)
            if self._data:
                return True
            if not self._fill():
                return False

    def _seek(self) -> None:
        """Go to the next line that begins like a record, or to the end."""
        while True:
            match = _NEXT.search(self._data)
            starts = [position - self._position for position, _ in self._members]
            ends = [at for at in starts if at >= 0 and self._data.startswith(BEGIN, at)]
            ends += [match.end()] if match is not None else []
            if ends:
                self._drop(min(ends))
                return
            self._drop(max(0, len(self._data) - 16))
            if not self._fill():
                self._drop(len(self._data))
                return

    def _pass(self, count: int) -> bool:
        """Skip bytes without keeping them. Return whether there were that many."""
        while count > len(self._data):
            count -= len(self._data)
            self._drop(len(self._data))
            if not self._fill():
                return False
        self._drop(count)
        return True

    def _drop(self, count: int) -> None:
        del self._data[:count]
        self._position += count

    def _fill(self) -> bool:
        """Read on. Return whether there was more. Raises `_Broken`."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        if chunk.broken:
            raise _Broken(chunk)
        if chunk.offset is not None:
            self._members.append((self._position + len(self._data), chunk.offset))
        self._data += chunk.data
        return True
