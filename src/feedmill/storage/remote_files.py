"""Whole files of remote stores: uploaded, downloaded, deleted.

What is written in order is uploaded while it is written (`feedmill.storage.upload`). What a library builds in place,
and what is put to a web server, is spooled to this machine's temporary folder first.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from feedmill.errors import FeedmillError, NotFound
from feedmill.storage.base import Entry, Store, too_short
from feedmill.storage.local import is_disk_trouble, storage_error
from feedmill.storage.upload import upload

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_STEP = 8 << 20


class RemoteFiles(Store):
    """The part of a remote store that writes, downloads and deletes files.

    Attributes:
        options: settings of `obstore`, as given; they may hold secrets.
        host: scheme and bucket, or scheme and server.
    """

    options: dict[str, Any]
    host: str

    @property
    @abstractmethod
    def client(self) -> ObjectStore:
        """Return the client for requests."""

    @abstractmethod
    def key(self, path: str) -> str:
        """Return the key of a file below the store's URL. Raises `StorageError` for a folder."""

    @abstractmethod
    def asking(self, path: str) -> AbstractContextManager[None]:
        """Convert the errors of a request; every request runs inside this block."""

    @abstractmethod
    def forget(self, key: str) -> None:
        """Forget the version of an object that this store writes or deletes."""

    @contextlib.contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        if not self.url.startswith("http"):
            with upload(self, path) as file:
                yield file
            return
        try:
            spool = tempfile.TemporaryFile(prefix="feedmill-")  # noqa: SIM115 - closed below, on every way out
        except OSError as error:
            raise _spool_error(error) from None
        try:
            with spool:
                yield spool
                spool.seek(0)
                self._put(path, spool)
        except OSError as error:
            if is_disk_trouble(error):
                raise _spool_error(error) from None
            raise  # the error comes from the caller's own code

    @contextlib.contextmanager
    def build(self, path: str) -> Iterator[Path]:
        key = self.key(path)
        try:
            folder = tempfile.mkdtemp(prefix="feedmill-")
        except OSError as error:
            raise _spool_error(error) from None
        file = Path(folder, key.rpartition("/")[2])
        try:
            file.touch()
            yield file
            if self.url.startswith("http"):
                with file.open("rb") as spool:
                    self._put(path, spool)
                return
            with file.open("rb", buffering=0) as spool, upload(self, path, size=file.stat().st_size) as out:
                shutil.copyfileobj(spool, out, _STEP)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _put(self, path: str, spool: BinaryIO) -> None:
        """Put a file in one request."""
        import obstore

        with self.asking(path):
            obstore.put(self.client, self.key(path), spool, use_multipart=False)

    def put_new(self, path: str, data: bytes) -> bool:
        """Write one small file unless it exists, in one atomic request; return whether it was written.

        Raises `StorageError` of kind ``not-supported`` if the server has no conditional writes."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        key = self.key(path)
        with self.asking(path):
            try:
                obstore.put(self.client, key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def delete(self, path: str) -> None:
        import obstore

        key = self.key(path)
        self.forget(key)
        with contextlib.suppress(NotFound), self.asking(path):
            obstore.delete(self.client, key)

    @contextlib.contextmanager
    def local_copy(self, path: str) -> Iterator[Path]:
        name = self.key(path).rpartition("/")[2]
        try:
            folder = tempfile.TemporaryDirectory(prefix="feedmill-", ignore_cleanup_errors=True)
        except OSError as error:
            raise _spool_error(error) from None
        with folder:
            copy = Path(folder.name, name)
            try:
                with copy.open("wb") as f:
                    self.download(path, f)
            except OSError as error:
                raise _spool_error(error) from None
            yield copy

    def download(self, path: str, file: BinaryIO) -> Entry:
        """Stream one whole file, of one version, into an open file; return the entry of that version."""
        import obstore

        key = self.key(path)
        written = 0
        with self.asking(path):
            result = obstore.get(self.client, key)
            for piece in result.stream(min_chunk_size=_STEP):
                try:
                    written += file.write(piece)
                except OSError as error:
                    raise _spool_error(error) from None
        entry = entry_of(path, result.meta)
        if written != entry.size:
            raise too_short(self.locate(path), 0, entry.size, written)
        return entry


def entry_of(path: str, meta: ObjectMeta) -> Entry:
    """Return the entry of an object; its version is the ETag, or made of time and size without one."""
    version = (meta["e_tag"] or "").strip('"')
    return Entry(path, meta["size"], version or f"{meta['last_modified'].timestamp():.6f}-{meta['size']:x}")


def _spool_error(error: OSError) -> FeedmillError:
    """Return the error for a failure of the local disk rather than the store."""
    translated = storage_error(error, tempfile.gettempdir())
    if translated.kind in ("enospc", "edquot"):
        translated.fix = "Free some space there, or set TMPDIR to a folder on a larger disk."
    return translated
