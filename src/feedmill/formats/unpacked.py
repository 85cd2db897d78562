"""Unpack compressed files of a dataset into the cache folder: samples are read by offset.

The unpacked files lie in ``unpacked/<hash of their folder and suffixes>/`` there, each with the size and version of its
source in a note beside it: a file that changed is unpacked again. The folder is not evicted while a process uses the
dataset, and may be deleted at any other time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

import msgspec
import xxhash

from feedmill.errors import ConfigError, DataError
from feedmill.jobs.resources import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Entry, LocalStore, Store
from feedmill.storage.base import storage_error
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.cache.folder import NOTE, DiskCache, Note, read_note
from feedmill.storage.codec import compression, unpacked
from feedmill.storage.folders import cache_folder
from feedmill.storage.limits import max_unpacked, too_large
from feedmill.storage.local import publish
from feedmill.storage.staging import staged

logger = logging.getLogger("feedmill")

_BLOCK = 1 << 20
_LONGEST = 200
"""Most file systems have names of up to 255 bytes, and temporary files and notes have longer ones."""
_NAMED = 256 << 20
"""Bytes of compressed files from which unpacking them is logged: it takes seconds."""
_TARS = {".tgz": "gz", ".tbz2": "bz2", ".txz": "xz"}
"""Kinds of compression by suffixes that mean a tar, too."""


class UnpackedStore(LocalStore):
    """The folder of unpacked files. Errors and reports name the files that they were made of.

    Args:
        origins: path or URL of the compressed file, by the name of the unpacked one.
    """

    def __init__(self, root: str | os.PathLike[str], origins: Mapping[str, str]) -> None:
        super().__init__(root)
        self._origins = origins

    def __reduce__(self) -> tuple[type[UnpackedStore], tuple[str, Mapping[str, str]]]:  # type: ignore[override]
        return UnpackedStore, (self.root, self._origins)

    def locate(self, path: str) -> str:
        return self._origins.get(path) or super().locate(path)


def unpacked_name(path: str) -> str:
    """Return the path of a compressed file without the suffix of its compression.

    >>> unpacked_name("a/0.jsonl.gz"), unpacked_name("1.tgz"), unpacked_name("2.jsonl")
    ('a/0.jsonl', '1.tar', '2.jsonl')
    """
    stem, end = os.path.splitext(path)
    return stem + ".tar" if end in _TARS else stem if compression(path) else path


def unpacked_files(store: Store, paths: Sequence[str]) -> tuple[UnpackedStore, list[str]]:
    """Unpack compressed files, unless that was done before.

    Returns:
        The folder of the unpacked files, and their names in it.

    Raises:
        NotFound: a file is missing.
        ConfigError: two files have the same name but for their compression: they may be copies.
        DataError: a file is corrupt, or unpacks to far more than any data does.
        StorageError: the cache folder cannot be written to, or its disk is full.
    """
    names = list(map(_name, paths))
    origins = dict(zip(names, map(store.locate, paths), strict=True))
    if len(origins) < len(names):
        again = next(number for number, name in enumerate(names) if name in names[:number])
        refuse_copies(origins[names[again]], store.locate(paths[names.index(names[again])]))
    ends = sorted({path.rpartition(".")[2] for path in paths})
    folder = "\n".join([store.url, *ends]).encode("utf-8", "surrogateescape")
    name = f"unpacked/{xxhash.xxh3_128_hexdigest(folder)}"
    cache = disk_cache(cache_folder())
    top = cache.folder / name
    try:
        cache.hold(name).keep()
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
        entries = [entry or store.stat(path) for entry, path in zip(store.entries(paths), paths, strict=True)]
        new = [entry.size for entry, name in zip(entries, names, strict=True) if not _is_current(top / name, entry)]
        if sum(new) >= _NAMED:
            logger.warning("%s: %d compressed files are unpacked once, into %s", store.url, len(new), top)
        unpack, threads = partial(_unpacked, cache, top, store), available_cores()
        for _ in ordered_map(unpack, zip(entries, names, strict=True), workers=threads, in_flight=threads):
            pass
        cache.hold_derived(name)
        cache.trim()  # counts what was unpacked, which takes more than what was reserved
        with cache.reserving(needs_disk=False):
            pass  # logs if that is more than the bound
    except OSError as error:
        failed = storage_error(error, str(cache.folder))
        failed.fix = "Compressed files are unpacked there: set FEEDMILL_CACHE_DIR to a folder with enough space."
        raise failed from None
    return UnpackedStore(top, origins), names


def _name(path: str) -> str:
    """Return the name of an unpacked file: that of its path, or a hash where that is too long for one name."""
    plain = unpacked_name(path)
    name = quote(plain, safe=" ")
    if len(name) <= _LONGEST:
        return name
    return xxhash.xxh3_128_hexdigest(plain.encode("utf-8", "surrogateescape")) + os.path.splitext(plain)[1]


def refuse_copies(one: str, other: str) -> None:
    """Raise `ConfigError` for two files whose names differ only by their compression: their data would count twice."""
    raise ConfigError(
        f"it has the name of {other}, but for the compression: if both are the same data, they would be read twice",
        file=one,
        kind="mixed-formats",
        fix="Remove or rename one of them, or name the files to read by a pattern.",
    )


def _unpacked(cache: DiskCache, folder: Path, store: Store, wanted: tuple[Entry, str]) -> None:
    """Write the unpacked file of this name in `folder`. Raises `OSError`, and as `unpacked_files`."""
    entry, name = wanted
    copy = folder / name
    with cache.exclusive(str(copy)):
        if not _is_current(copy, entry):
            with cache.reserving(entry.size):
                pass
            with staged(str(copy)) as temporary:
                with store.local_copy(entry.path) as source:
                    _unpack(source, temporary, path=entry.path, file=store.locate(entry.path))
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(str(copy) + NOTE)  # of the version before
                publish(temporary, str(copy))
            note = Note(store.locate(entry.path), entry.version, entry.size, copy.stat().st_mtime_ns, "", "derived")
            with staged(str(copy) + NOTE) as temporary:
                Path(temporary).write_bytes(msgspec.json.encode(note))
                publish(temporary, str(copy) + NOTE)


def _is_current(copy: Path, entry: Entry) -> bool:
    note = read_note(copy)
    if note is None or (note.size, note.version) != (entry.size, entry.version):
        return False
    with contextlib.suppress(OSError):
        return copy.stat().st_mtime_ns == note.changed
    return False


def _unpack(source: Path, target: str, *, path: str, file: str) -> None:
    left = limit = max_unpacked(source.stat().st_size, most=sys.maxsize)
    kind = _TARS.get(os.path.splitext(path)[1]) or compression(path)
    with source.open("rb") as raw, open(target, "wb") as out, unpacked(raw, kind, file=file) as stream:
        while block := stream.read(_BLOCK):
            left -= len(block)
            if left < 0:
                raise too_large(limit, file=file)
            out.write(block)
    if left == limit:
        raise DataError("the compressed file is empty", file=file, kind="empty-file", fix="Restore it or exclude it.")
