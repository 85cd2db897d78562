"""Open tars without an Energon index: a folder, one tar, or a list of tars.

Compressed tars are unpacked into the cache folder, because samples are read by offset. The unpacked shards of a dataset
lie in ``unpacked/<hash of its folder>/`` there, each with the size and version of its source in a note beside it: a
shard that changed is unpacked again. The folder is not evicted while a process uses the dataset, and may be deleted at
any other time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

import msgspec
import xxhash

from feedmill.errors import DataError
from feedmill.formats.format import OpenRequest
from feedmill.formats.tar import COMPRESSED
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.tar.index import plain_shards
from feedmill.jobs.resources import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Entry, LocalStore, Store
from feedmill.storage.base import storage_error
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.cache.folder import NOTE, DiskCache, Note, read_note
from feedmill.storage.folders import cache_folder
from feedmill.storage.limits import RATIO, SMALL, too_large
from feedmill.storage.local import publish
from feedmill.storage.staging import staged

_BLOCK = 1 << 20
_KINDS = {".tgz": "gz", ".tbz2": "bz2", ".txz": "xz"}


def open_found(wanted: OpenRequest) -> TarDataset:
    """Open the given tars, or all tars of the folder. Compressed ones are unpacked into the cache folder."""
    store = wanted.store
    shards = [wanted.name] if wanted.name else list(wanted.names)
    shards = shards or [entry.path for entry in store.files(suffixes=(".tar",))]
    if shards and all(shard.endswith(COMPRESSED) for shard in shards):
        return CompressedTars(store, shards, name=wanted.url)
    dataset = TarDataset(store, plain_shards(store, shards), name=wanted.url, base=store.url if wanted.names else None)
    return dataset.opened_as(about={"remarks": list(wanted.remarks)}) if wanted.remarks else dataset


class CompressedTars(TarDataset):
    """The samples of compressed tars, read from unpacked copies.

    Args:
        origin: the folder of the compressed tars.
        packed: their paths in it.
        name: path or URL as the user gave it.
    """

    def __init__(self, origin: Store, packed: Sequence[str], *, name: str) -> None:
        store, shards = unpacked_shards(origin, packed)
        table = plain_shards(store, shards)
        super().__init__(store, table, name=name, base=store.url, description={"unpacked": store.url})
        self.origin, self.packed = origin, list(packed)

    @property
    def row_files(self) -> Sequence[str]:
        return [self.origin.locate(shard) for shard in self.packed]


def unpacked_shards(store: Store, shards: Sequence[str]) -> tuple[Store, list[str]]:
    """Unpack compressed tars, unless that was done before; return the folder of the tars, and their names in it.

    Raises:
        NotFound: a shard is missing.
        DataError: a shard is corrupt, or unpacks to far more than any data does.
        StorageError: the cache folder cannot be written to, or its disk is full.
    """
    name = f"unpacked/{xxhash.xxh3_128_hexdigest(store.url.encode('utf-8', 'surrogateescape'))}"
    cache = disk_cache(cache_folder())
    folder = cache.folder / name
    try:
        cache.hold(name).keep()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = zip(store.entries(shards), shards, strict=True)
        entries = [entry or store.stat(shard) for entry, shard in found]
        threads = available_cores()
        names = list(ordered_map(partial(_unpacked, cache, folder, store), entries, workers=threads, in_flight=threads))
        cache.hold_derived(name)
        cache.trim()  # counts what was unpacked, which takes more than what was reserved
    except OSError as error:
        failed = storage_error(error, str(cache.folder))
        failed.fix = "Compressed tars are unpacked there: set FEEDMILL_CACHE_DIR to a folder with enough space."
        raise failed from None
    return LocalStore(folder), names


def _unpacked(cache: DiskCache, folder: Path, store: Store, entry: Entry) -> str:
    """Return the name of the unpacked shard in `folder`. Raises `OSError`, and as `unpacked_shards`."""
    end = next(end for end in COMPRESSED if entry.path.endswith(end))
    copy = folder / (quote(entry.path.removesuffix(end), safe=" ") + ".tar")
    with cache.exclusive(str(copy)):
        if not _is_current(copy, entry):
            with cache.reserving(entry.size):
                pass
            with staged(str(copy)) as temporary:
                with store.local_copy(entry.path) as source:
                    from feedmill.storage.codec import compression

                    _unpack(source, temporary, kind=_KINDS.get(end, compression(end)), file=store.locate(entry.path))
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(str(copy) + NOTE)  # of the version before
                publish(temporary, str(copy))
            note = Note(store.locate(entry.path), entry.version, entry.size, copy.stat().st_mtime_ns, "", "derived")
            with staged(str(copy) + NOTE) as temporary:
                Path(temporary).write_bytes(msgspec.json.encode(note))
                publish(temporary, str(copy) + NOTE)
    return copy.name


def _is_current(copy: Path, entry: Entry) -> bool:
    note = read_note(copy)
    if note is None or (note.size, note.version) != (entry.size, entry.version):
        return False
    with contextlib.suppress(OSError):
        return copy.stat().st_mtime_ns == note.changed
    return False


def _unpack(source: Path, target: str, *, kind: str, file: str) -> None:
    left = limit = max(SMALL, RATIO * source.stat().st_size)
    from feedmill.storage.codec import unpacked

    with source.open("rb") as raw, open(target, "wb") as out, unpacked(raw, kind, file=file) as stream:
        while block := stream.read(_BLOCK):
            left -= len(block)
            if left < 0:
                raise too_large(limit, file=file)
            out.write(block)
    if left == limit:
        raise DataError("the compressed tar is empty", file=file, kind="empty-file", fix="Restore it or exclude it.")
