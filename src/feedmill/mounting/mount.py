"""Mount a dataset as a read-only file system."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from feedmill.errors import ConfigError, DataError, MissingExtra, StorageError
from feedmill.formats.base import Dataset
from feedmill.formats.energon import ENERGON, database
from feedmill.formats.energon import prepared as energon
from feedmill.formats.energon.index import IndexRows, write_index
from feedmill.formats.jsonl import JSONL
from feedmill.formats.jsonl.dataset import JsonlDataset
from feedmill.formats.sniff import open_found, sniff
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.tar.tables import ScannedShards
from feedmill.mounting.catalog import IndexCatalog, LinesCatalog
from feedmill.mounting.contents import RecordContents, TarContents
from feedmill.mounting.operations import Operations
from feedmill.storage import Store
from feedmill.storage.cache.copies import cached_copy

logger = logging.getLogger("feedmill")
DEVICE = "/dev/fuse"
_ENDED = 8
"""Exit code of FUSE if a signal, such as that of Ctrl-C, ended a mounted file system."""


def mount(
    url: str | os.PathLike[str],
    mountpoint: str | os.PathLike[str],
    *,
    sample_folders: bool = False,
    detach: bool = False,
    ready: Callable[[], object] = lambda: None,
) -> None:
    """Mount a dataset until it is unmounted (``fusermount3 -u``, or Ctrl-C).

    Args:
        url: Tars (prepared or not, a manifest or an index of them), or a JSONL file. Names of prepared tars come from
            their index; other tars are scanned first.
        mountpoint: An empty folder.
        sample_folders: Show each sample as a folder, instead of the files of all samples side by side.
        detach: Return at once and keep the file system running in the background.
        ready: Called after all checks, right before the files appear.

    Raises:
        ConfigError: The mount point cannot be used, or the dataset has no parts.
        MissingExtra: mfusepy is not installed.
        StorageError: FUSE is not available on this machine.
        NotFound, DataError: As in `feedmill.open`.
    """
    url = os.fspath(url)
    mountpoint = os.fspath(mountpoint)
    _check_mountpoint(mountpoint)
    try:
        import mfusepy
    except ImportError:
        raise MissingExtra("mounting needs mfusepy, which is not installed", "mount") from None
    except OSError as error:  # importing it loads the FUSE library
        raise _no_fuse(str(error)) from None
    if not os.path.exists(DEVICE):
        raise _no_fuse(f"{DEVICE} does not exist")
    logging.getLogger("fuse").setLevel(logging.CRITICAL)
    with operations(url, sample_folders=sample_folders) as made:
        ready()
        try:
            mfusepy.FUSE(
                made,
                os.path.abspath(mountpoint),
                foreground=not detach,
                nothreads=False,
                ro=True,
                fsname="feedmill",
                kernel_cache=True,
                entry_timeout=3600,
                attr_timeout=3600,
                negative_timeout=3600,
            )
        except RuntimeError as error:
            if error.args == (_ENDED,):
                return
            raise StorageError(
                f"the file system could not be mounted: FUSE returned {error}",
                file=mountpoint,
                kind="mount-failed",
                fix="Check that you may use /dev/fuse, that 'fusermount3' is installed, and that the folder is empty.",
            ) from None


def _check_mountpoint(path: str) -> None:
    if not os.path.isdir(path):
        raise ConfigError(
            "the mount point is not a folder", file=path, kind="bad-mountpoint", fix="Create the folder first."
        )
    if os.path.ismount(path):
        raise ConfigError(
            "the mount point is already in use", file=path, kind="bad-mountpoint", fix=f"Run 'fusermount3 -u {path}'."
        )
    if os.listdir(path):
        raise ConfigError("the mount point is not empty", file=path, kind="bad-mountpoint", fix="Use an empty folder.")


def _no_fuse(why: str) -> StorageError:
    return StorageError(
        f"FUSE is not available: {why}",
        kind="no-fuse",
        fix="Install FUSE (Debian: apt install fuse3). In a container, pass the device with --device /dev/fuse"
        " --cap-add SYS_ADMIN.",
    )


@contextmanager
def operations(url: str, *, sample_folders: bool = False) -> Iterator[Operations]:
    """Open the file system of a dataset for the duration of the block. Raises the errors of `mount`."""
    found = sniff(url)
    if found.format is JSONL:
        lines = open_found(found, url)
        assert isinstance(lines, JsonlDataset)
        sizes = _LineSizes(lines)
        total = found.store.stat(found.name).size
        yield Operations(LinesCatalog(sizes, len(lines), sample_folders), RecordContents(lines), size=total)
        return
    if found.format is ENERGON and (database := _usable_index(found.store)) is not None:
        info = energon.read_info(found.store)
        table = energon.PreparedShards(found.store, info, list(info), None, None)
        yield _over(found.store, table, database, sample_folders)
        return
    if found.format is ENERGON:
        yield from _scanned(
            found.store, [entry.path for entry in found.store.files(suffixes=(".tar",))], url, sample_folders
        )
        return
    dataset = open_found(found, url)
    if not isinstance(dataset, TarDataset):
        raise ConfigError(
            "this dataset cannot be mounted: its samples have no parts to show as files",
            file=url,
            kind="no-parts",
            fix="Mount tars (a folder, a tar, a manifest or an index of them), or a JSONL file.",
        )
    for remark in dataset.remarks:
        logger.warning("%s", remark)
    yield from _scanned(dataset.store, dataset.table.shards, url, sample_folders)


def _scanned(store: Store, shards: Sequence[str], url: str, sample_folders: bool) -> Iterator[Operations]:
    scanned = ScannedShards(store, shards)
    with tempfile.TemporaryDirectory(prefix="feedmill-mount-") as folder:
        database = Path(folder) / "index.sqlite"
        try:
            write_index(database, IndexRows.of(enumerate(scanned.scans)))
        except DataError as error:
            error.file = error.file or url
            raise
        yield _over(store, scanned, database, sample_folders)


def _over(
    store: Store, table: energon.PreparedShards | ScannedShards, database: Path, sample_folders: bool
) -> Operations:
    size = sum(store.stat(shard).size for shard in table.shards)
    contents = TarContents(store, table.shards, table)
    return Operations(IndexCatalog(database, sample_folders), contents, size=size)


def _usable_index(store: Store) -> Path | None:
    """Return the index if it has the tables of Energon 7.0 or later, otherwise None."""
    if not store.exists(database.INDEX):
        return None
    path = cached_copy(store, database.INDEX)
    connection = database.open_index(path)
    try:
        known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    finally:
        connection.close()
    return path if {"samples", "sample_parts"} <= known else None


class _LineSizes(dict[int, int]):
    """Size in bytes of each record without surrounding white space, read on access."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        self.dataset = dataset

    def __missing__(self, number: int) -> int:
        return len(self.dataset.read_raw([number])[0].raw("json"))
