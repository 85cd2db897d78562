"""Modalities' raw index of a JSONL file, ``<stem>.idx``: the location of each line.

The index is a pickled list of (offset, length) in bytes (see `pickled`), one pair per line. The length excludes the
newline, but includes a carriage return before it. Lines end only at byte 0x0A; the last may lack it. This is neither
Energon's ``.jsonl.idx`` (u64 offsets) nor Megatron's ``.idx`` (which begins with ``MMIDIDX``).

A line is valid if Python's ``json.loads`` accepts its bytes. It accepts more than JSON (NaN, Infinity, lone surrogates,
a byte order mark, even UTF-16) and less (no integers of over 4,300 digits, no depth of 1,000). A fast parser decides
for nearly all lines (`feedmill.kernels.jsonl.jsonlines`), and ``json.loads`` for all others. Blank lines and empty
files are invalid.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import DataError
from feedmill.formats.line_ranges import Arrays, line_end, on_engine
from feedmill.formats.offsets import Int64s
from feedmill.formats.tokens.pbin import load_pairs, read_pairs, write_pairs
from feedmill.jobs.progress import Progress
from feedmill.jobs.resources import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.kernels.jsonl.jsonlines import plain_lines
from feedmill.storage import Store

BLOCK = 1 << 18
RANGE = 16 << 20
"""Bytes that one thread processes at once."""
PARALLEL_FROM = 64 << 20
LISTED = 100
"""Maximum number of invalid lines that are listed; all are counted."""
CHECKED = 1000


class BadLine(NamedTuple):
    """A line that is not JSON: its number from 1, its offset, and the reason."""

    line: int
    offset: int
    reason: str


class RawIndex(NamedTuple):
    """Valid lines of a file, int64[n] offsets and lengths in bytes; number of invalid lines, and the first `LISTED`."""

    starts: Int64s
    lengths: Int64s
    dropped: int
    bad: list[BadLine]


class _Part(NamedTuple):
    """Index of a range of a file, like `RawIndex`, with lines counted from 0 in the range, and the number of lines."""

    starts: Int64s
    lengths: Int64s
    lines: int
    bad: list[tuple[int, int, str]]
    dropped: int


def raw_index_path(path: str) -> str:
    """Return the path of the index in Modalities: that of the file with the last suffix replaced by ``.idx``."""
    return str(PurePosixPath(path).with_suffix(".idx"))


def index_lines(
    store: Store,
    path: str,
    *,
    drop: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    folder: Store | None = None,
) -> RawIndex:
    """Find and check the lines of a JSONL file.

    Args:
        drop: skip invalid lines, and count and list them; otherwise the first one is an error.
        workers: number of threads; 0 for only this one; None for one per core if the file is large enough.
        progress: advanced by the processed bytes.
        folder: work folder, to use the engine in use.

    Raises:
        DataError: a line is invalid, or the file is empty. Not raised with `drop`.
        NotFound: there is no such file.
    """
    size = store.stat(path).size
    if size == 0:
        # In Modalities, an empty file is one blank line.
        return _merged(store, path, [_Part(*_no_lines(), 1, [(0, 0, "the file is empty")], 1)], drop)
    if folder is not None:
        return _merged(store, path, _of_engine(store, path, folder, progress), drop)
    if workers is None:
        workers = available_cores() if size >= PARALLEL_FROM else 0
    ranges = [(low, min(low + RANGE, size)) for low in range(0, size, RANGE)]
    # Scanning and reading release the GIL; only lines that the fast parser does not accept need it.
    parts = ordered_map(partial(_index_range, store, path, size), ranges, workers=workers, in_flight=2 * workers)
    return _merged(store, path, _with_progress(parts, ranges, progress), drop)


def _with_progress(parts: Iterable[_Part], ranges: list[tuple[int, int]], progress: Progress | None) -> Iterator[_Part]:
    for part, (low, high) in zip(parts, ranges, strict=True):
        if progress is not None:
            progress.advance(high - low)
        yield part


def _of_engine(store: Store, path: str, folder: Store, progress: Progress | None) -> Iterator[_Part]:
    for size, found in on_engine(_as_arrays, store, path, folder):
        if progress is not None:
            progress.advance(size)
        lines, dropped = found["counts"].tolist()
        bad = [(number, offset, reason) for number, offset, reason in orjson.loads(found["bad"].tobytes())]
        yield _Part(found["starts"], found["lengths"], lines, bad, dropped)


def _as_arrays(store: Store, path: str, size: int, span: tuple[int, int]) -> Arrays:
    part = _index_range(store, path, size, span)
    bad = np.frombuffer(orjson.dumps(part.bad), np.uint8)
    counts = np.asarray([part.lines, part.dropped])
    return {"starts": part.starts, "lengths": part.lengths, "counts": counts, "bad": bad}


def _merged(store: Store, path: str, parts: Iterable[_Part], drop: bool) -> RawIndex:
    starts, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    bad: list[BadLine] = []
    lines = dropped = 0
    for part in parts:
        for number, offset, reason in part.bad[: LISTED - len(bad)]:
            bad.append(BadLine(lines + number + 1, offset, reason))
        if bad and not drop:
            raise bad_line(store, path, bad[0])
        lines, dropped = lines + part.lines, dropped + part.dropped
        starts.append(part.starts)
        lengths.append(part.lengths)
    return RawIndex(np.concatenate(starts), np.concatenate(lengths), dropped, bad)


def bad_line(store: Store, path: str, bad: BadLine) -> DataError:
    """Return the error for a line that is not JSON."""
    return DataError(
        f"this line is not valid JSON ({bad.reason})",
        file=store.locate(path),
        record=f"line {bad.line}",
        offset=bad.offset,
        kind="bad-line",
        fix="Correct or delete the line, or skip invalid lines ('feedmill tokens index --on-error skip').",
    )


def _no_lines() -> tuple[Int64s, Int64s]:
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _index_range(store: Store, path: str, size: int, span: tuple[int, int]) -> _Part:
    """Return the lines that begin in a range of bytes."""
    all_starts, all_lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    bad: list[tuple[int, int, str]] = []
    lines = dropped = 0
    for base, block, used in _blocks(store, path, size, span):
        buffer = np.frombuffer(block, np.uint8, used)
        ends, plain = plain_lines(buffer)
        begins = np.concatenate((np.zeros(1, np.int64), ends + 1))[:-1]
        wrong = _wrong(block, begins, ends, np.flatnonzero(~plain))
        bad += [(lines + i, base + int(begins[i]), why) for i, why in wrong[: LISTED - len(bad)]]
        dropped, lines = dropped + len(wrong), lines + len(ends)
        if wrong:
            keep = np.ones(len(ends), bool)
            keep[[i for i, _ in wrong]] = False
            begins, ends = begins[keep], ends[keep]
        all_starts.append(begins + base)
        all_lengths.append(ends - begins)
    return _Part(np.concatenate(all_starts), np.concatenate(all_lengths), lines, bad, dropped)


def _blocks(store: Store, path: str, size: int, span: tuple[int, int]) -> Iterator[tuple[int, bytes, int]]:
    """Yield blocks of the lines that begin in a range: offset, bytes, and number of bytes in whole lines."""
    low, high = span
    at = low
    if low > 0:  # a line begins here only after a newline
        at = line_end(store, path, low - 1, size)
    while at < high:
        stop = min(at + BLOCK, high)
        block = store.read(path, at, stop - at)
        used = block.rfind(b"\n") + 1
        if used < len(block) and (stop == high or used == 0):
            block += store.read(path, stop, line_end(store, path, stop - 1, size) - stop)
            used = len(block)
        yield at, block, used
        at += used


def _wrong(block: bytes, begins: Int64s, ends: Int64s, doubtful: Int64s) -> list[tuple[int, str]]:
    """Return the lines that ``json.loads`` rejects: number in the block, and reason."""
    wrong = []
    for i in doubtful.tolist():
        reason = _refusal(block[begins[i] : ends[i]])
        if reason is not None:
            wrong.append((i, reason))
    return wrong


def _refusal(line: bytes) -> str | None:
    """Return why ``json.loads`` rejects a line; None if it accepts it."""
    if not line.strip():
        return "it is blank"
    try:
        json.loads(line)
    except RecursionError:
        return "it is nested too deeply"
    except UnicodeDecodeError as error:
        return f"it is not valid UTF-8 (byte {error.start})"
    except ValueError as error:
        return str(error)
    return None


def write_raw_index(
    store: Store,
    path: str,
    index_path: str | None = None,
    *,
    drop: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> RawIndex:
    """Index a JSONL file as ``modalities data create_raw_index`` does, byte for byte. Raises as `index_lines`."""
    index = index_lines(store, path, drop=drop, workers=workers, progress=progress)
    with store.write(index_path or raw_index_path(path)) as out:
        write_pairs(out, index.starts, index.lengths)
    return index


def load_raw_index(store: Store, index_path: str, path: str, data: Store | None = None) -> tuple[Int64s, Int64s]:
    """Return the index of a file: int64[n] offsets and lengths in bytes of its lines.

    Args:
        store, index_path: the index.
        path: the file, in the same store or in `data`.
        data: the store of the file.

    Raises:
        NotFound: one of the two is missing.
        DataError: the file is not such an index, or belongs to another file (entries outside the file, or not whole
            lines; up to `CHECKED` entries are compared).
    """
    data = store if data is None else data
    where = store.locate(index_path)
    again = f"Write it again from {data.locate(path)}."
    size, index_size = data.stat(path).size, store.stat(index_path).size
    if store.read(index_path, 0, min(7, index_size)) == b"MMIDIDX":
        raise DataError(
            "this is Megatron's index of a .bin file, not the index of a JSONL file", file=where, kind="bad-index"
        )
    starts, lengths = load_pairs(store, index_path, 0, index_size, fix=again)
    ends = starts + lengths
    wrong = (ends > size) | (ends < 0)  # a sum beyond 2^63 turns negative
    wrong[1:] |= starts[1:] <= ends[:-1]
    if not wrong.any() and len(starts):
        checked = np.unique(np.linspace(0, len(starts) - 1, CHECKED).astype(np.int64))
        wrong[checked] = ~_are_lines(data, path, size, starts[checked], ends[checked])
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"this is not the index of {data.locate(path)}: bytes {starts[i]} to {ends[i]} are not a line",
            file=where,
            record=f"entry {i}",
            kind="stale-index",
            fix=again,
        )
    return starts, lengths


def read_raw_index(store: Store, index_path: str, path: str) -> Generator[Int64s, None, bool]:
    """Yield the offset of each record of a JSONL file by its index, and the file's size, as Energon's index has them.

    Every line of the file that is not blank must be in the index.

    Returns:
        Whether the file has no blank lines before a record.

    Raises:
        DataError: the index is corrupt or that of another file, or skips lines: all bytes between its entries are
            compared, and the ends of up to `CHECKED` entries.
    """
    size, index_size = store.stat(path).size, store.stat(index_path).size
    step = max(1, index_size // CHECKED // 10)  # an entry takes about 10 bytes
    end, count, aligned = -1, 0, True
    for starts, lengths in read_pairs(store, index_path, 0, index_size, fix=""):
        if not len(starts):
            continue
        ends = starts + lengths
        before = np.concatenate(([end], ends[:-1]))
        wrong = (ends > size) | (ends < starts) | (starts <= before)
        if not wrong.any():
            some = np.arange(-count % step, len(starts), step)
            wrong[some] = ~_are_lines(store, path, size, starts[some], ends[some])
        if not wrong.any():
            gaps = np.flatnonzero(starts - before > 1)
            aligned &= not len(gaps)
            wrong[gaps] = [not _blank(store, path, *gap) for gap in zip(before[gaps] + 1, starts[gaps], strict=True)]
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise DataError(
                f"its entry {count + i} is bytes {starts[i]} to {ends[i]}, which is not the next line",
                file=store.locate(index_path),
                kind="stale-index",
            )
        end = int(ends[-1])
        starts[0] *= bool(count)
        count += len(starts)
        yield starts
    if not count or not _blank(store, path, end, size):
        raise DataError(f"it ends at byte {max(end, 0)} of {size}", file=store.locate(index_path), kind="stale-index")
    yield np.asarray([size], np.int64)
    return aligned


def _blank(store: Store, path: str, begin: int, end: int) -> bool:
    """Return whether a range of a file has nothing but white space."""
    return all(not store.read(path, at, min(BLOCK, end - at)).strip() for at in range(begin, end, BLOCK))


def _are_lines(store: Store, path: str, size: int, starts: Int64s, ends: Int64s) -> npt.NDArray[np.bool_]:
    """Return whether each range has a newline, or an end of the file, directly before and after it."""
    at = np.concatenate((starts - 1, ends))
    inside = (at >= 0) & (at < size)
    found = np.ones(len(at), bool)
    byte = store.read_ranges(path, at[inside].tolist(), [1] * int(inside.sum()))
    found[inside] = np.frombuffer(b"".join(byte), np.uint8) == ord("\n")
    return np.asarray(found[: len(starts)] & found[len(starts) :])
