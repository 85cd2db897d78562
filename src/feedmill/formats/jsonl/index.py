"""Find the lines of a JSONL file: in an index beside it, in the cache folder, or by reading the file once.

An index of ``x.jsonl`` is one of two files beside it:

    x.jsonl.idx   Energon's, which `feedmill prepare` writes: uint64[n + 1], the offset of each record (0 for the
                  first), then the size of the file
    x.idx         Modalities', which `feedmill tokens index` writes: offset and length of each line (`raw_index`)

Blank lines belong to the previous record. Every other line must begin with ``{`` and end with ``}``. Without an index,
the file is read once, in pieces. What was found is kept in ``$FEEDMILL_CACHE_DIR/lines/<hash>``, so that every later
process opens a file of any size at once. It is an array file:

    offsets    int64[n + 1]    as in ``x.jsonl.idx``
    hashes     uint64[pages]   xxh3-64 of every `_PAGE` offsets
    spaced     int64[...]      some of the offsets, see `Lines.spaced`, which fingerprints need
    facts      uint8[...]      JSON: `Facts`
    digest     uint8[16]       xxh3-128 of hashes, spaced and facts

Its name is a hash of path, size, version and `content_hash` of the file, and of the state of the index beside it. So a
file that changed has another name, and an old one is evicted some day (`DiskCache`). Pages are compared with their
hashes when they are first used; a corrupt file is made again.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.errors import DataError, FeedmillError
from feedmill.formats.arrays import STREAMED_AT, read_arrays, stream_arrays, unpack_arrays
from feedmill.formats.content import content_hash
from feedmill.formats.line_ranges import Arrays, begin_of, line_end, on_engine
from feedmill.formats.offsets import Int64s, load_offsets, read_records
from feedmill.kernels.jsonl.lines import STEP, LineIndex, LineScan, UInt8s
from feedmill.storage import Entry, LocalStore, Store
from feedmill.storage.base import changed
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.cache.mapped import mapped
from feedmill.storage.folders import cache_folder
from feedmill.storage.reasons import HEAD, other_format
from feedmill.structs import decode_as

logger = logging.getLogger("feedmill")

MARK = codecs.BOM_UTF8
"""The byte order mark of UTF-8, which JSON does not allow. Some editors write it at the beginning of a file: there, it
is skipped."""
KEPT_FROM = 4 << 20
"""Size of a file in bytes from which its lines are kept; finding those of a smaller one takes milliseconds."""
FOLDER = "lines"
_VERSION = 1
_PAGE = 512
_SAMPLED = 8
"""Entries of Energon's index that are compared with the file at each opening."""
_LARGE = 1 << 17
"""Number of offsets from which entries far from each other are read, not mapped: each would take a page of memory."""
_MAPPED = 1 << 20
"""Size in bytes up to which a kept file is read: each that is mapped takes a descriptor."""
_STEP = 8 << 20


def idx_name(path: str) -> str:
    """Return Energon's index of a JSONL file."""
    return f"{path}.idx"


class Facts(msgspec.Struct):
    """The facts about the lines of a file.

    Attributes:
        key: what identifies the state of the file; empty if it was not computed.
        index: path of the index beside the file that the lines are from, or that was compared with them; empty without.
        aligned: whether record i is line i, as there are no blank lines before a record; None if it is not known.
        remarks: indices beside the file that are not used, with the reason.
    """

    key: list[str] = []
    index: str = ""
    aligned: bool | None = None
    remarks: list[str] = []


class Lines:
    """Where the records of a file lie.

    Attributes:
        offsets: int64[n + 1], the offset of each record, and the size of the file.
        facts: see `Facts`.
        forget: deletes what is kept of the file, which turned out to be in another state, so that the next process
            that opens it finds its lines.
    """

    def __init__(
        self,
        offsets: Int64s,
        facts: Facts,
        *,
        place: tuple[Store, str, int] | None = None,
        hashes: npt.NDArray[np.uint64] | None = None,
        spaced: Int64s | None = None,
        again: Callable[[], Lines] | None = None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self.offsets, self.facts, self.forget = offsets, facts, forget
        self._place = place if len(offsets) >= _LARGE else None  # store, path, and offset of the offsets there
        self._hashes, self._spaced, self._again = hashes, spaced, again
        self._checked = np.zeros(0 if hashes is None else len(hashes), bool)

    def check(self, records: Int64s) -> None:
        """Compare the offsets of these records with their hashes, once each. A corrupt file is made again."""
        if self._hashes is None:
            return
        pages = _distinct(np.concatenate((records // _PAGE, (records + 1) // _PAGE)))
        pages = pages[~self._checked[pages]]
        for page in pages.tolist():
            if _hash(self.offsets[page * _PAGE : (page + 1) * _PAGE]) != self._hashes[page]:
                self._make_again()
                return
        self._checked[pages] = True

    def check_one(self, record: int) -> None:
        """Like `check`, for one record."""
        if self._hashes is not None and not (self._checked[record // _PAGE] and self._checked[(record + 1) // _PAGE]):
            self.check(np.asarray([record], np.int64))

    def at(self, records: Int64s) -> Int64s:
        """Return some of the offsets, ``offsets[records]``, without mapping the pages of a large index for them."""
        if self._place is None:
            self.check(np.minimum(records, len(self.offsets) - 2))
            return np.asarray(self.offsets[records], np.int64)
        store, path, begin = self._place
        pages = _distinct(records // _PAGE)
        sizes = np.minimum(_PAGE, len(self.offsets) - pages * _PAGE)
        try:
            blocks = store.read_ranges(path, (begin + 8 * _PAGE * pages).tolist(), (8 * sizes).tolist())
        except FeedmillError:
            if self._hashes is None:
                raise
            self._place = None  # the cache was deleted; its file is still mapped
            return self.at(records)
        if self._hashes is not None and list(map(xxhash.xxh3_64_intdigest, blocks)) != self._hashes[pages].tolist():
            self._make_again()
            return self.at(records)
        at = np.searchsorted(pages, records // _PAGE) * _PAGE + records % _PAGE  # only the last page may be shorter
        return np.asarray(np.frombuffer(b"".join(blocks), "<i8")[at], np.int64)

    def spaced(self, count: int) -> Int64s:
        """Return one to two thousand evenly spaced offsets of the first `count` records, or all of fewer records."""
        if self._spaced is not None and count == len(self.offsets) - 1:
            return self._spaced
        return self.at(_spaced_numbers(count))

    def _make_again(self) -> None:
        assert self._again is not None
        self.__dict__.update(self._again().__dict__)


def _distinct(numbers: Int64s) -> Int64s:
    """Return numbers ascending, each once. `np.unique` imports modules for masked arrays at its first call."""
    ascending = np.sort(numbers)
    return np.asarray(ascending[np.concatenate(([True], ascending[1:] != ascending[:-1]))[: len(ascending)]])


def _spaced_numbers(count: int) -> Int64s:
    return np.arange(0, count + 1, max(1, count // 1000))


def _hash(offsets: Int64s) -> int:
    return xxhash.xxh3_64_intdigest(offsets.data)


def open_lines(store: Store, path: str, url: str) -> Lines:
    """Return the lines of a file.

    Args:
        url: path or URL of the file, for errors.

    Raises:
        DataError: the file is empty or blank, a line is not an object, or Energon's index does not match the file.
    """
    entry, idx = store.stat(path), idx_name(path)
    if store.exists(idx):
        return _indexed(store, entry, idx, url)
    index, remarks = _raw_index_of(store, path)
    lines = _kept(store, entry, index, remarks=remarks)
    for remark in lines.facts.remarks:
        logger.warning("%s", remark)
    return lines


def _indexed(store: Store, entry: Entry, idx: str, url: str) -> Lines:
    """Return the lines by Energon's index. An index that is older than its file is compared with all lines, once."""
    again = f"Run 'feedmill prepare {url}' again."
    offsets, stale = load_offsets(store, idx, fix=again), partial(_stale, store.locate(idx), again)
    if offsets[-1] != entry.size:
        raise stale(f"expected {offsets[-1]} bytes, found {entry.size}")
    if store.is_local and store.modified(entry.path) > store.modified(idx):
        return _kept(store, entry, store.stat(idx), (offsets, stale))
    if store.is_local and len(offsets) > 2:
        numbers = np.linspace(1, len(offsets) - 2, _SAMPLED).astype(np.int64)
        starts = offsets[numbers]
        inside = (starts > 0) & (starts < entry.size)
        before = store.read_ranges(entry.path, np.where(inside, starts - 1, 0).tolist(), [1] * len(starts))
        for number, start, fine, byte in zip(numbers.tolist(), starts.tolist(), inside.tolist(), before, strict=True):
            if not fine or byte != b"\n":
                raise stale(f"its entry {number} is {start}, where no line begins")
    return Lines(offsets, Facts(index=idx), place=(store, idx, 0) if store.is_local else None)


def _stale(index: str, fix: str, what: str) -> DataError:
    return DataError(f"the index does not match the file: {what}", file=index, kind="stale-index", fix=fix)


def _raw_index_of(store: Store, path: str) -> tuple[Entry | None, Sequence[str]]:
    """Return Modalities' index beside a file, if there is one; and a remark on another file of its name.

    Megatron gives that name to the index of the tokens that are made of a file, which needs no remark.
    """
    folder, slash, name = path.rpartition("/")
    raw = f"{folder}{slash}{name.rpartition('.')[0]}.idx"
    entry = store.entries([raw])[0] if raw != idx_name(path) else None
    if entry is None:
        return None, ()
    head = store.read(raw, 0, min(7, entry.size))
    if head[:1] == b"\x80":
        return entry, ()
    return None, () if head == b"MMIDIDX" else [_unused(store, raw, "it is not an index of lines")]


def _unused(store: Store, index: str, why: str) -> str:
    return f"{store.locate(index)}: not used, {why}. The lines are found by reading the file."


class _FromFile(Exception):
    """Wraps an error of the file, to tell it from those of the cache."""


class _Unfit(Exception):
    """Raised for an index that does not match its file; its argument is the reason."""


Expected = tuple[Int64s, Callable[[str], DataError]]
"""The offsets of Energon's index, and the error if they are not those of the lines."""
Write = Callable[[Iterable[Int64s], Facts], object]
"""Function that takes the offsets of a file in pieces, then the facts, which are complete after the last piece."""


def _kept(
    store: Store,
    entry: Entry,
    index: Entry | None,
    expected: Expected | None = None,
    *,
    remarks: Sequence[str] = (),
    damaged: bool = False,
) -> Lines:
    """Return the lines of a file from the cache folder, or find them and keep them there.

    Args:
        index: Modalities' index of the file, or with `expected` Energon's.
        damaged: whether the kept lines are known to be corrupt, so that all of them are compared with their hashes.
    """
    facts = Facts(remarks=list(remarks))
    if entry.size < KEPT_FROM:
        return _in_memory(store, entry, facts, index, expected)
    state = [] if index is None else [index.path, str(index.size), index.version]
    facts.key, name = kept_name(store, entry, *state)
    again = partial(_kept, store, entry, index, expected, remarks=remarks, damaged=True)
    cache, files, held = LocalStore(cache_folder() / FOLDER), disk_cache(cache_folder()), f"{FOLDER}/{name}"
    lines = _read(cache, name, facts.key, again, damaged, quiet=True)
    if lines is not None:
        files.hold_derived(held)
        return lines
    try:
        with files.exclusive(held):
            lines = _read(cache, name, facts.key, again, damaged)  # another process may have made it meanwhile
            if lines is None:
                _find(store, entry, facts, index, expected, partial(_write, cache, name))
                lines = _read(cache, name, facts.key, again)
        files.hold_derived(held, written=held)
    except _FromFile as error:
        raise error.args[0] from None
    except (FeedmillError, OSError) as error:
        where = store.locate(entry.path)
        logger.warning("the lines of %s cannot be cached, so each process finds them again: %s", where, error)
    return lines or _in_memory(store, entry, Facts(remarks=list(remarks)), index, expected)


def kept_name(store: Store, entry: Entry, *more: str) -> tuple[list[str], str]:
    """Return what identifies the state of a file, and the name of what is kept of it in `FOLDER`."""
    content = content_hash(store, entry.path, entry.size) if store.is_local else ""
    words = [str(_VERSION), store.locate(entry.path), str(entry.size), entry.version, content, *more]
    key = [word.encode("utf-8", "backslashreplace").decode() for word in words]
    return key, hashlib.sha256("\n".join(key).encode()).hexdigest()[:32]


def _in_memory(store: Store, entry: Entry, facts: Facts, index: Entry | None, expected: Expected | None) -> Lines:
    offsets = bytearray()

    def write(pieces: Iterable[Int64s], _: Facts) -> None:
        offsets.clear()
        for piece in pieces:
            offsets.extend(piece.astype("<i8", copy=False).data.cast("B"))

    try:
        _find(store, entry, facts, index, expected, write)
    except _FromFile as error:
        raise error.args[0] from None
    return Lines(np.frombuffer(offsets, "<i8"), facts)


def _find(
    store: Store, entry: Entry, facts: Facts, index: Entry | None, expected: Expected | None, write: Write
) -> None:
    """Write the offsets of a file by Modalities' index, or else by reading the file."""
    if index is not None and expected is None:
        try:
            write(_watched(_of_raw_index(store, entry, index, facts)), facts)
            return
        except _Unfit as error:
            facts.remarks.append(_unused(store, index.path, str(error)))
    pieces = scan_lines(store, entry, facts)
    if index is not None and expected is not None:
        facts.index = index.path
        pieces = _compared(pieces, *expected)
    write(_watched(pieces), facts)


def _watched(pieces: Iterable[Int64s]) -> Iterator[Int64s]:
    try:
        yield from pieces
    except (FeedmillError, OSError) as error:
        raise _FromFile(error) from error


def _of_raw_index(store: Store, entry: Entry, index: Entry, facts: Facts) -> Iterator[Int64s]:
    from feedmill.formats.tokens.raw_index import read_raw_index  # most files have none

    try:
        facts.aligned = yield from read_raw_index(store, index.path, entry.path)
    except DataError as error:
        raise _Unfit(error.what) from error
    facts.index = index.path


def _compared(pieces: Iterable[Int64s], offsets: Int64s, stale: Callable[[str], DataError]) -> Iterator[Int64s]:
    """Yield offsets that are those of an index. The index may have another first one: readers assume 0."""
    at = 0
    for piece in pieces:
        known = offsets[at : at + len(piece)]
        same = known == piece[: len(known)]
        same[: at == 0] = True
        if len(known) < len(piece) or not same.all():
            first = int(np.argmin(same)) if not same.all() else len(known)
            shown = (
                f"its entry {at + first} is {known[first]}" if first < len(known) else f"it has {at + first} entries"
            )
            raise stale(f"{shown}, and a line begins at byte {piece[first]} of the file, which is newer")
        yield piece
        at += len(piece)
    if at < len(offsets):
        raise stale(f"it has {len(offsets)} entries, and for the lines of the file, which is newer, there are {at}")


def _write(cache: LocalStore, name: str, pieces: Iterable[Int64s], facts: Facts) -> None:
    hashes = list[int]()

    def hashed() -> Iterator[Int64s]:
        rest = np.zeros(0, np.int64)
        for piece in pieces:
            rest = np.concatenate((rest, piece))
            whole = len(rest) - len(rest) % _PAGE
            hashes.extend(_hash(rest[at : at + _PAGE]) for at in range(0, whole, _PAGE))
            yield rest[:whole]
            rest = rest[whole:]
        hashes.extend([_hash(rest)] if len(rest) else [])
        yield rest

    def others() -> Arrays:
        count = os.fstat(out.fileno()).st_size - STREAMED_AT
        blocks = [os.pread(out.fileno(), 8, STREAMED_AT + 8 * at) for at in _spaced_numbers(count // 8 - 1).tolist()]
        arrays = {
            "hashes": np.asarray(hashes, "<u8"),
            "spaced": np.frombuffer(b"".join(blocks), "<i8"),
            "facts": np.frombuffer(msgspec.json.encode(facts), np.uint8),
        }
        return {**arrays, "digest": _digest(arrays)}

    with cache.build(name) as path, open(path, "r+b") as out:
        stream_arrays(out, "offsets", hashed(), others)


def _digest(arrays: Arrays) -> npt.NDArray[np.uint8]:
    hasher = xxhash.xxh3_128()
    for name in ("hashes", "spaced", "facts"):
        hasher.update(arrays[name].data)
    return np.frombuffer(hasher.digest(), np.uint8)


def _read(
    cache: LocalStore,
    name: str,
    key: Sequence[str],
    again: Callable[[], Lines],
    whole: bool = False,
    *,
    quiet: bool = False,
) -> Lines | None:
    """Return kept lines; None if there are none, or they are corrupt.

    Args:
        whole: compare all offsets with their hashes.
        quiet: log no warning if they are corrupt: they are read again by the one process that makes them again.
    """
    try:
        if not cache.exists(name):
            return None
        small = cache.stat(name).size <= _MAPPED
        arrays = unpack_arrays(cache.read(name)) if small else read_arrays(cache, name)
        offsets, hashes = arrays["offsets"], arrays["hashes"]
        if not np.array_equal(arrays["digest"], _digest(arrays)):
            raise ValueError("its hash differs")
        facts = decode_as(arrays["facts"].data, Facts)
        if facts.key != list(key) or len(hashes) != -(-len(offsets) // _PAGE) or len(offsets) < 2:
            raise ValueError("it is that of another file")
        for page in range(len(hashes)) if whole else ():
            if _hash(offsets[page * _PAGE : (page + 1) * _PAGE]) != hashes[page]:
                raise ValueError(f"the hash of its page {page} differs")
    except (FeedmillError, KeyError, ValueError, OSError, msgspec.MsgspecError) as error:
        if not quiet:
            where = cache.locate(name)
            logger.warning("the cached lines of a file are corrupt and are found again: %s: %s", where, error)
        return None
    place, forget = (cache, name, STREAMED_AT), partial(_forget, cache, name)
    return Lines(offsets, facts, place=place, hashes=hashes, spaced=arrays["spaced"], again=again, forget=forget)


def _forget(cache: LocalStore, name: str) -> None:
    with suppress(FeedmillError):  # the folder is read-only; the error of the reader matters more
        cache.delete(name)


def scan_lines(store: Store, entry: Entry, facts: Facts, folder: Store | None = None) -> Iterator[Int64s]:
    """Yield the offset of each record of a JSONL file, and the file's size, in pieces of int64; sets `facts.aligned`.

    Memory does not grow with the file or its longest line. Of a file that grows meanwhile, the bytes of `entry` are
    read.

    Args:
        folder: work folder, to use the engine in use.

    Raises:
        DataError: the file is empty or blank, or a line is not an object; it names the offset of the line.
    """
    path, where, count = entry.path, store.locate(entry.path), 0
    if not entry.size:
        with store.local_copy(path):  # raises for what is no regular file
            pass
        raise DataError("the file is empty", file=where, kind="empty-file", fix="Write one JSON object per line.")
    for starts, bad in _by_engine(store, path, folder) if folder is not None else _by_piece(store, entry, facts):
        if len(bad) and not (bad[0] == 0 and len(bad) == 1 and begins_with_mark(store, path)):
            raise _refusal(store, entry, int(bad[1 if bad[0] == 0 and begins_with_mark(store, path) else 0]))
        if len(starts):
            starts[0] *= bool(count)  # blank lines before the first record belong to it
            count += len(starts)
            yield starts
    if not count:
        raise DataError(
            "the file has only blank lines", file=where, kind="empty-file", fix="Write one JSON object per line."
        )
    if (grown := store.stat(path).size) > entry.size:
        facts.remarks.append(
            f"{where}: the file grew from {entry.size:,} to {grown:,} bytes while its lines were found: the last"
            f" {grown - entry.size:,} bytes are not read."
        )
    yield np.asarray([entry.size], np.int64)


def _by_piece(store: Store, entry: Entry, facts: Facts) -> Iterator[LineIndex]:
    scan = LineScan()
    for piece in _pieces(store, entry.path, 0, entry.size):
        yield scan.add(piece)
    last = scan.finish()
    facts.aligned = scan.aligned
    yield last


def _pieces(store: Store, path: str, begin: int, end: int) -> Iterator[UInt8s]:
    """Yield the bytes of a range in pieces, each valid until the next one is read."""
    if not store.is_local:
        with mapped(store, path) as data:
            yield from (data[at : min(at + STEP, end)] for at in range(begin, end, STEP))
        return
    buffer = np.empty(min(STEP, end - begin), np.uint8)
    for at in range(begin, end, STEP):
        piece = buffer[: min(STEP, end - at)]
        store.read_into(path, at, piece.data)
        yield piece


def _by_engine(store: Store, path: str, folder: Store) -> Iterator[LineIndex]:
    for _, part in on_engine(_lines_of, store, path, folder):
        yield LineIndex(part["starts"], part["bad"])


def _lines_of(store: Store, path: str, size: int, span: tuple[int, int]) -> Arrays:
    """Return the lines that begin in a range of bytes."""
    begin, end = (begin_of(store, path, size, at) for at in span)
    scan = LineScan(begin)
    parts = [scan.add(piece) for piece in _pieces(store, path, begin, end)]
    starts, bad = zip(*parts, scan.finish(), strict=True)
    return {"starts": np.concatenate(starts), "bad": np.concatenate(bad)}


def index_file(store: Store, path: str, folder: Store | None = None) -> Int64s:
    """Return the offset of each record of a JSONL file, and the file's size, int64[n + 1]. Arguments and errors are
    those of `scan_lines`."""
    offsets = bytearray()
    for piece in scan_lines(store, store.stat(path), Facts(), folder):
        offsets.extend(piece.data.cast("B"))
    return np.frombuffer(offsets, np.int64)


def _refusal(store: Store, entry: Entry, offset: int) -> FeedmillError:
    """Return the error for a line that is not an object, or for a file whose last line is still being written."""
    size = entry.size
    if store.stat(entry.path).size > size and line_end(store, entry.path, offset, size) == size:
        return changed(store.locate(entry.path))
    begin = b"" if offset else store.read(entry.path, 0, min(HEAD, size))
    return other_format(begin, "text", "safetensors", file=store.locate(entry.path)) or bad_line(
        store, entry.path, offset
    )


def bad_line(store: Store, path: str, offset: int) -> DataError:
    """Return the error for a line that is not one whole JSON object."""
    text = store.read(path, offset, min(60, store.stat(path).size - offset)).split(b"\n")[0]
    what = "this line is not a JSON object from '{' to '}'"
    fix = "Correct the line (each must have one complete object), or run 'feedmill edit repair' to remove it."
    if text.startswith(MARK + b"{"):
        what = "this line begins with a UTF-8 byte order mark, which JSON does not allow"
        fix = "Save the file without it, or run 'feedmill edit repair' to remove the mark."
    shown = text.removeprefix(MARK).decode("utf-8", "replace")
    return DataError(what, file=store.locate(path), offset=offset, record=shown, kind="bad-line", fix=fix)


def begins_with_mark(store: Store, path: str) -> bool:
    """Return whether the first line of a file is an object after a byte order mark."""
    return store.read(path, 0, min(len(MARK) + 1, store.stat(path).size)) == MARK + b"{"


def is_marked(line: bytes) -> bool:
    """Return whether a line is a JSON object after a byte order mark."""
    text = line.removeprefix(MARK).strip()
    if not line.startswith(MARK + b"{") or not text.endswith(b"}"):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return _odd_but_json(text)
    return True


def bad_records(store: Store, path: str, starts: Int64s) -> Iterator[DataError]:
    """Yield the lines that look like objects but are not valid JSON, found by parsing every one."""
    for low in range(0, len(starts) - 1, 4096):
        begins = starts[low : min(low + 4096, len(starts) - 1)]
        ends = starts[low + 1 : low + 1 + len(begins)]
        for begin, line in zip(begins.tolist(), read_records(store, path, begins, ends), strict=True):
            line = line if begin else line.removeprefix(MARK)
            try:
                orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if not _odd_but_json(line):
                    found = bad_line(store, path, begin)
                    found.what = f"this line is not valid JSON ({error})"
                    yield found


def _odd_but_json(line: bytes) -> bool:
    """Return whether Python's parser accepts the line: NaN, Infinity and huge integers are not JSON, but common."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def write_index(store: Store, path: str, starts: Int64s | None = None) -> Int64s:
    """Write ``<path>.idx`` and return the offsets, int64[n + 1].

    Args:
        starts: the offsets; by default, the file is scanned.
    """
    index = index_file(store, path) if starts is None else starts
    store.write_bytes(idx_name(path), index.astype("<u8").tobytes())
    return index


def lines_of(store: Store, path: str, offsets: Int64s) -> Int64s | None:
    """Return the line of each record, int64[n], by its offsets, int64[n + 1]; None if record i is line i for all."""
    lines, before = np.empty(len(offsets) - 1, np.int64), 0
    for begin in range(0, int(offsets[-1]), _STEP):
        block = store.read(path, begin, min(_STEP, int(offsets[-1]) - begin))
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
        first, last = np.searchsorted(offsets[:-1], [begin, begin + len(block)])
        starts = offsets[first:last].astype(np.int64) - begin
        if not begin:
            starts[:1] = len(block) - len(block.lstrip())  # the first record begins at 0, with blank lines before it
        lines[first:last] = before + np.searchsorted(ends, starts)
        before += len(ends)
    return None if (lines == np.arange(len(lines))).all() else lines
