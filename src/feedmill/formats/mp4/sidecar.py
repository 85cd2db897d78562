"""Keep the tables of video files in the cache folder, so that later processes do not read and parse ``moov`` again.

``$FEEDMILL_CACHE_DIR/frames/<hash>`` is an array file (see `feedmill.formats.arrays`). Its name is a hash of the URL,
version and size of the video, so that one which changed gets another name. It takes 4 bytes a frame, or 8 if frames are
not shown in the order of decoding at a constant rate, and a kilobyte:

    frames  <u4[n]     in the order of decoding: bytes of the packet, bit 31 of key frames, bit 30 of hidden ones
    ticks   <i4[n]     times of the frames, or <i4[2], the time of the first frame and the step
    runs    <i8[2, k]  numbers of the packets that do not follow on the one before, and where these lie
    facts   |u1        all else, as JSON
    digest  |u1[16]    xxh3-128 of the arrays before

It is written for files in remote stores and for long local ones, and may be deleted at any time. It counts into the
size of the cache folder (`FileCache`); what is corrupt is read from the video again. It is published as a whole, and
not synchronized: what a crash leaves fails the digest. A reader has copied it, so that it may be evicted meanwhile.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Mapping
from fractions import Fraction
from itertools import count
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import FeedmillError
from feedmill.formats.arrays import pack_arrays, unpack_arrays
from feedmill.formats.mp4.table import Setup, Table, read_table
from feedmill.storage import LocalStore, Store
from feedmill.storage.base import Entry
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.folders import cache_folder
from feedmill.structs import decode_as

logger = logging.getLogger("feedmill")

FOLDER = "frames"
KEPT_FROM = 4096
"""Frames from which on the table of a local file is kept: shorter ones are parsed in a millisecond."""
_KEY, _HIDDEN = np.uint32(1 << 31), np.uint32(1 << 30)
_VERSION = 1
_TRIMMED_EACH = 64
"""Tables that a process writes until it counts the files in the cache folder, which may be as many as the videos."""
_written = count(1)


class _Facts(msgspec.Struct):
    codec: str
    extradata: bytes
    size: tuple[int, int]
    colors: tuple[int, int, int, int] | None
    time_base: tuple[int, int]
    orientation: int
    last: int


def kept_table(store: Store, path: str, entry: Entry) -> Table:
    """Return the table of a file from the cache folder, or from the file, and keep it. Raises as `read_table`."""
    words = f"{store.locate(path)}\n{entry.version} {entry.size}\n{_VERSION}"
    name = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    cache = LocalStore(cache_folder() / FOLDER)
    table = _read(cache, name, entry.size)
    if table is None:
        table = read_table(lambda begin, end: store.read(path, begin, end - begin), entry.size)
        if len(table.pts) >= KEPT_FROM or not store.is_local:
            _write(cache, name, table)
    return table


def _read(cache: LocalStore, name: str, size: int) -> Table | None:
    """Return a kept table; None if there is none, or it is corrupt."""
    try:
        with open(os.path.join(cache.root, name), "rb") as file:
            data = file.read()
            os.utime(file.fileno())  # the order of eviction
        arrays = unpack_arrays(data)
        if _digest(arrays) != arrays["digest"].tobytes():
            raise ValueError("its hash does not match")
        table = _table(arrays)
        if int((table.offset + table.size).max()) > size:
            raise ValueError("frames outside the file")
        return table
    except FileNotFoundError:
        return None
    except (OSError, FeedmillError, KeyError, IndexError, ValueError, msgspec.MsgspecError) as error:
        logger.warning("the kept frames of a video are read again, %s: %s", cache.locate(name), error)
        return None


def _table(arrays: Mapping[str, npt.NDArray[Any]]) -> Table:
    facts = decode_as(arrays["facts"].tobytes(), _Facts)
    frames, ticks, (begins, places) = arrays["frames"], arrays["ticks"], arrays["runs"]
    sizes = (frames & ~(_KEY | _HIDDEN)).astype(np.int64)
    ends = np.cumsum(sizes)
    offsets = ends - sizes
    offsets += np.repeat(places - offsets[begins], np.diff(begins, append=len(frames)))
    regular = len(ticks) != len(frames) or len(frames) < 3
    pts = ticks[0] + ticks[1].astype(np.int64) * np.arange(len(frames)) if regular else ticks.astype(np.int64)
    setup = Setup(facts.codec, facts.extradata, facts.size, facts.colors)
    lasts = np.broadcast_to(np.int64(facts.last), sizes.shape)
    key, shown = frames & _KEY != 0, frames & _HIDDEN == 0
    return Table(setup, Fraction(*facts.time_base), facts.orientation, pts, offsets, sizes, key, shown, lasts)


def _packed(table: Table) -> dict[str, npt.NDArray[Any]] | None:
    """Return the arrays of a table; None if it does not fit them."""
    if int(table.size.max()) >= 1 << 30 or int(np.abs(table.pts).max()) >= 1 << 31:
        return None
    frames = table.size.astype(np.uint32)
    frames[table.keys] |= _KEY
    hidden = np.ones(len(frames), np.bool_)
    hidden[table.order] = False
    frames[hidden] |= _HIDDEN
    steps = np.diff(table.pts)
    ticks = table.pts
    if len(frames) < 3 or (steps == steps[0]).all():
        ticks = np.asarray([table.pts[0], steps[0] if len(steps) else 0])
    begins = np.append(0, np.flatnonzero(table.offset[1:] != table.offset[:-1] + table.size[:-1]) + 1)
    facts = _Facts(
        table.setup.codec, table.setup.extradata, table.setup.size, table.setup.colors,
        (table.time_base.numerator, table.time_base.denominator), table.orientation, table.end - int(table.times[-1]),
    )  # fmt: skip
    arrays = {
        "frames": frames,
        "ticks": ticks.astype("<i4"),
        "runs": np.stack([begins, table.offset[begins]]).astype("<i8"),
        "facts": np.frombuffer(msgspec.json.encode(facts), np.uint8),
    }
    return {**arrays, "digest": np.frombuffer(_digest(arrays), np.uint8)}


def _write(cache: LocalStore, name: str, table: Table) -> None:
    arrays = _packed(table)
    if arrays is None:
        return
    out = io.BytesIO()
    pack_arrays(out, arrays)
    try:
        cache.write_note(name, out.getvalue())
    except (FeedmillError, OSError) as error:
        logger.warning("the frames of a video cannot be kept, so that each process reads them again: %s", error)
        return
    if next(_written) % _TRIMMED_EACH == 1:
        disk_cache(cache_folder()).trim()


def _digest(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    digest = xxhash.xxh3_128()
    for name in ("frames", "ticks", "runs", "facts"):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.digest()
